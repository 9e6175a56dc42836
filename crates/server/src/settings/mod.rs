//! What a server is told: by flags, by `TOLLGATE_*` variables, by a file, or not at all.
//!
//! [`Options`] is what somebody said, and knows no defaults; [`Settings`] is what holds. Flags go
//! before variables, variables before the file, the file before defaults. A secret can be in a file
//! of its own (`*-file`, `TOLLGATE_*_FILE`), so that no process list and no unit file shows it.
//!
//! A new setting is a field of both, a line in `resolve`, and a row in `docs/server.md`.

pub mod envoy;
pub mod rules_from;
pub mod value;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use tollgate::http::Trust;

use crate::listener::{Listener, PerListener};
use crate::tls;
use envoy::EnvoySettings;
use rules_from::{RulesFrom, RulesFromOptions};
use value::{
    AttributeHeader, DurationText, ListenAddress, LogFormat, LogLevel, Secret, WithoutRules,
};

/// Defines the options once: as fields, and for [`Options::or`].
macro_rules! options {
    ($(#[$outer:meta])* pub struct $name:ident {
        $($(#[$inner:meta])* pub $field:ident: Option<$kind:ty>,)+
    }) => {
        $(#[$outer])*
        pub struct $name {
            $($(#[$inner])* pub $field: Option<$kind>,)+
        }

        impl $name {
            /// Each field of this, or of `under` where this says nothing.
            fn or(self, under: Self) -> Self {
                Self { $($field: self.$field.or(under.$field),)+ }
            }
        }
    };
}

options! {
    /// What somebody said. Nothing here has a default.
    #[derive(Args, Clone, Debug, Default, Deserialize)]
    #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
    pub struct Options {
        /// Where counters are kept: `embedded`, or the URL of Redis or Valkey [default: embedded]
        #[arg(long, env = "TOLLGATE_STORE", hide_env_values = true, value_name = "URL")]
        pub store: Option<Secret>,
        /// A file that holds the URL, for one with a password
        #[arg(long, env = "TOLLGATE_STORE_FILE", value_name = "FILE")]
        pub store_file: Option<PathBuf>,
        /// The password of Redis, in place of one in the URL
        #[arg(long, env = "TOLLGATE_STORE_PASSWORD", hide_env_values = true, value_name = "TEXT")]
        pub store_password: Option<Secret>,
        /// A file that holds that password
        #[arg(long, env = "TOLLGATE_STORE_PASSWORD_FILE", value_name = "FILE")]
        pub store_password_file: Option<PathBuf>,
        /// How long Redis may take for a decision [default: 20ms]
        #[arg(long, env = "TOLLGATE_STORE_DEADLINE", value_name = "TIME")]
        pub store_deadline: Option<DurationText>,
        /// How many keys the embedded store keeps [default: 1000000]
        #[arg(long, env = "TOLLGATE_MAX_KEYS", value_name = "COUNT")]
        pub max_keys: Option<usize>,
        /// The fleet this node belongs to; its nodes share out limits while Redis is away
        #[arg(long, env = "TOLLGATE_FLEET", value_name = "NAME")]
        pub fleet: Option<String>,
        /// How many nodes the fleet has, until they have been counted [default: 1]
        #[arg(long, env = "TOLLGATE_NODES", value_name = "COUNT")]
        pub nodes: Option<u64>,
        /// The fleet's secret, 32 hexadecimal digits: it hashes long keys and signs reservations
        #[arg(long, env = "TOLLGATE_SECRET", hide_env_values = true, value_name = "HEX")]
        pub secret: Option<Secret>,
        /// A file that holds that secret
        #[arg(long, env = "TOLLGATE_SECRET_FILE", value_name = "FILE")]
        pub secret_file: Option<PathBuf>,
        /// The rules, as YAML, TOML or JSON; read again whenever they change
        #[arg(long, env = "TOLLGATE_RULES", value_name = "FILE")]
        pub rules: Option<PathBuf>,
        /// Rules in Redis: `redis` for one set, `hashes` for hashes that others write, both in the
        /// store's Redis, or `redis://…`, `hashes:redis://…` elsewhere
        #[arg(long, env = "TOLLGATE_RULES_FROM", hide_env_values = true, value_name = "WHERE")]
        pub rules_from: Option<Secret>,
        /// A file that says so, for a URL with a password
        #[arg(long, env = "TOLLGATE_RULES_FROM_FILE", value_name = "FILE")]
        pub rules_from_file: Option<PathBuf>,
        /// What the set is called in Redis [default: default]
        #[arg(long, env = "TOLLGATE_RULES_NAME", value_name = "NAME")]
        pub rules_name: Option<String>,
        /// The keys of hashes that are rules [default: rate_limit_config:*]
        #[arg(long, env = "TOLLGATE_RULES_PATTERN", value_name = "PATTERN")]
        pub rules_pattern: Option<String>,
        /// The channel on which changes of hashes are announced [default: rate_limit_config_channel]
        #[arg(long, env = "TOLLGATE_RULES_CHANNEL", value_name = "CHANNEL")]
        pub rules_channel: Option<String>,
        /// The domain that rules of hashes make up [default: default]
        #[arg(long, env = "TOLLGATE_RULES_DOMAIN", value_name = "DOMAIN")]
        pub rules_domain: Option<String>,
        /// How often the rules are looked at besides being watched [default: 1s]
        #[arg(long, env = "TOLLGATE_RULES_POLL", value_name = "TIME")]
        pub rules_poll: Option<DurationText>,
        /// A directory for the last good rules, which a restart falls back on
        #[arg(long, env = "TOLLGATE_STATE_DIR", value_name = "DIR")]
        pub state_dir: Option<PathBuf>,
        /// What requests are told while there are no rules: admit or refuse [default: admit]
        #[arg(long, env = "TOLLGATE_WITHOUT_RULES", value_name = "WORD")]
        pub without_rules: Option<WithoutRules>,
        /// Where HTTP is served, or `off` [default: 127.0.0.1:8080]
        #[arg(long, env = "TOLLGATE_HTTP", value_name = "ADDRESS")]
        pub http: Option<ListenAddress>,
        /// Where Envoy's rate limit service is served over gRPC, or `off` [default: 127.0.0.1:8081]
        #[arg(long, env = "TOLLGATE_GRPC", value_name = "ADDRESS")]
        pub grpc: Option<ListenAddress>,
        /// Files of envoyproxy/ratelimit, and directories of them; read again whenever they change
        #[arg(long, env = "TOLLGATE_ENVOY_RULES", value_name = "PATH", value_delimiter = ',')]
        pub envoy_rules: Option<Vec<PathBuf>>,
        /// Whether a domain may be in several of them: separate or merge [default: separate]
        #[arg(long, env = "TOLLGATE_ENVOY_DOMAINS", value_name = "WORD")]
        pub envoy_domains: Option<envoy::EnvoyDomains>,
        /// What a call of Envoy's that is over a limit is charged: all-or-none or all [default:
        /// all-or-none]
        #[arg(long, env = "TOLLGATE_ENVOY_CHARGE", value_name = "WORD")]
        pub envoy_charge: Option<envoy::EnvoyCharge>,
        /// What answers Envoy while the store does not: local, admit or refuse [default: local]
        #[arg(long, env = "TOLLGATE_ENVOY_ON_OUTAGE", value_name = "WORD")]
        pub envoy_on_outage: Option<envoy::EnvoyOnOutage>,
        /// Whether Envoy is told to refuse anybody: enforce or shadow [default: enforce]
        #[arg(long, env = "TOLLGATE_ENVOY_MODE", value_name = "WORD")]
        pub envoy_mode: Option<envoy::EnvoyMode>,
        /// Headers that Envoy adds to responses: off, on, or three names [default: off]
        #[arg(long, env = "TOLLGATE_ENVOY_HEADERS", value_name = "NAMES")]
        pub envoy_headers: Option<envoy::EnvoyHeaders>,
        /// Whether answers to Envoy carry dynamic metadata: omit or include [default: omit]
        #[arg(long, env = "TOLLGATE_ENVOY_METADATA", value_name = "WORD")]
        pub envoy_metadata: Option<envoy::EnvoyMetadata>,
        /// Where the Redis protocol is served, or `off` [default: 127.0.0.1:6380]
        #[arg(long, env = "TOLLGATE_RESP", value_name = "ADDRESS")]
        pub resp: Option<ListenAddress>,
        /// Threads that serve the Redis protocol [default: half the cores, at least 1]
        #[arg(long, env = "TOLLGATE_RESP_THREADS", value_name = "COUNT")]
        pub resp_threads: Option<usize>,
        /// Where the admin API is served, or `off` [default: 127.0.0.1:9091]
        #[arg(long, env = "TOLLGATE_ADMIN", value_name = "ADDRESS")]
        pub admin: Option<ListenAddress>,
        /// The certificate chain of the HTTP, gRPC and admin listeners, as PEM; followed
        #[arg(long, env = "TOLLGATE_TLS_CERT", value_name = "FILE")]
        pub tls_cert: Option<PathBuf>,
        /// Its key, as PEM
        #[arg(long, env = "TOLLGATE_TLS_KEY", value_name = "FILE")]
        pub tls_key: Option<PathBuf>,
        /// Connections that each listener serves at a time [default: 10000]
        #[arg(long, env = "TOLLGATE_MAX_CONNECTIONS", value_name = "COUNT")]
        pub max_connections: Option<usize>,
        /// What clients of the HTTP, gRPC and RESP listeners must say: a bearer token, or the password of AUTH
        #[arg(long, env = "TOLLGATE_API_TOKEN", hide_env_values = true, value_name = "TEXT")]
        pub api_token: Option<Secret>,
        /// A file that holds that token
        #[arg(long, env = "TOLLGATE_API_TOKEN_FILE", value_name = "FILE")]
        pub api_token_file: Option<PathBuf>,
        /// What clients of the admin API must say, as a bearer token
        #[arg(long, env = "TOLLGATE_ADMIN_TOKEN", hide_env_values = true, value_name = "TEXT")]
        pub admin_token: Option<Secret>,
        /// A file that holds that token
        #[arg(long, env = "TOLLGATE_ADMIN_TOKEN_FILE", value_name = "FILE")]
        pub admin_token_file: Option<PathBuf>,
        /// Networks of proxies that are believed about whom they speak for [default: none]
        #[arg(long, env = "TOLLGATE_TRUST", value_name = "NETWORK", value_delimiter = ',')]
        pub trust: Option<Vec<String>>,
        /// The domain of forward-auth requests that name none [default: the first of the rules]
        #[arg(long, env = "TOLLGATE_AUTH_DOMAIN", value_name = "DOMAIN")]
        pub auth_domain: Option<String>,
        /// Attributes that a trusted proxy says in headers, such as `user=x-user`
        #[arg(
            long,
            env = "TOLLGATE_AUTH_ATTRIBUTE",
            value_name = "NAME=HEADER",
            value_delimiter = ','
        )]
        pub auth_attribute: Option<Vec<AttributeHeader>>,
        /// How long readiness is off before connections are drained [default: 0s]
        #[arg(long, env = "TOLLGATE_DRAIN_DELAY", value_name = "TIME")]
        pub drain_delay: Option<DurationText>,
        /// How long connections may take to end [default: 10s]
        #[arg(long, env = "TOLLGATE_DRAIN_TIMEOUT", value_name = "TIME")]
        pub drain_timeout: Option<DurationText>,
        /// off, error, warn, info, debug or trace [default: info]
        #[arg(long, env = "TOLLGATE_LOG_LEVEL", value_name = "WORD")]
        pub log_level: Option<LogLevel>,
        /// json or text [default: text on a terminal, else json]
        #[arg(long, env = "TOLLGATE_LOG_FORMAT", value_name = "WORD")]
        pub log_format: Option<LogFormat>,
    }
}

impl Options {
    /// Reads a settings file: TOML, whose keys are the names of the flags.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or says what no flag says; with the place.
    pub fn read(path: &Path) -> Result<Self, SettingsError> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            SettingsError(format!("the settings file {} cannot be read: {error}", path.display()))
        })?;
        toml::from_str(&text).map_err(|error| {
            // The text around the place is left out: it may be a secret.
            let at = error.span().map_or_else(String::new, |span| {
                let line = text.get(..span.start).map_or(1, |before| before.split('\n').count());
                format!(":{line}")
            });
            SettingsError(format!("{}{at}: {}", path.display(), error.message()))
        })
    }

    /// The same, with what `under` says where this says nothing. A secret and its file are one
    /// setting: whichever is said here goes before both.
    #[must_use]
    pub fn over(self, mut under: Self) -> Self {
        macro_rules! pairs {
            ($($said:ident $file:ident),+ $(,)?) => {$(
                if self.$said.is_some() || self.$file.is_some() {
                    (under.$said, under.$file) = (None, None);
                }
            )+};
        }
        pairs! {
            store store_file, store_password store_password_file, secret secret_file,
            rules_from rules_from_file, api_token api_token_file, admin_token admin_token_file,
        }
        self.or(under)
    }

    /// What holds.
    ///
    /// # Errors
    ///
    /// When a secret's file cannot be read, or a value makes no sense beside the others.
    pub fn resolve(mut self) -> Result<Settings, SettingsError> {
        let defaults = Settings::default();
        let envoy = self.take_envoy();
        let listen = PerListener::new(|listener| {
            listener.setting(&self).unwrap_or(defaults.listen[listener])
        });
        let lasting =
            |said: Option<DurationText>, default: Duration| said.map_or(default, |it| it.0);
        let trust = Trust::proxies(self.trust.unwrap_or_default())
            .map_err(|error| SettingsError(format!("trust: {error}")))?;
        let settings = Settings {
            store: secret("store", self.store, self.store_file)?.unwrap_or(defaults.store),
            store_password: secret(
                "store-password",
                self.store_password,
                self.store_password_file,
            )?,
            store_deadline: lasting(self.store_deadline, defaults.store_deadline),
            max_keys: self.max_keys.unwrap_or(defaults.max_keys),
            fleet: self.fleet.unwrap_or(defaults.fleet),
            nodes: self.nodes.unwrap_or(defaults.nodes),
            secret: secret("secret", self.secret, self.secret_file)?
                .map(|text| fleet_secret(&text))
                .transpose()?,
            rules: self.rules,
            rules_from: RulesFrom::new(RulesFromOptions {
                from: secret("rules-from", self.rules_from, self.rules_from_file)?,
                name: self.rules_name,
                pattern: self.rules_pattern,
                channel: self.rules_channel,
                domain: self.rules_domain,
            })?,
            rules_poll: lasting(self.rules_poll, defaults.rules_poll),
            state_dir: self.state_dir,
            without_rules: self.without_rules.unwrap_or(defaults.without_rules),
            listen,
            envoy,
            resp_threads: self.resp_threads.unwrap_or(defaults.resp_threads).clamp(1, MAX_THREADS),
            tls: tls(self.tls_cert, self.tls_key)?,
            max_connections: self.max_connections.unwrap_or(defaults.max_connections),
            api_token: secret("api-token", self.api_token, self.api_token_file)?,
            admin_token: secret("admin-token", self.admin_token, self.admin_token_file)?,
            trust,
            auth_domain: self.auth_domain,
            auth_attributes: self.auth_attribute.unwrap_or_default(),
            drain_delay: lasting(self.drain_delay, defaults.drain_delay),
            drain_timeout: lasting(self.drain_timeout, defaults.drain_timeout),
            log_level: self.log_level.unwrap_or(defaults.log_level),
            log_format: self.log_format,
        };
        settings.checked()
    }

    fn take_envoy(&mut self) -> EnvoySettings {
        let said = envoy::EnvoyOptions {
            charge: self.envoy_charge,
            on_outage: self.envoy_on_outage,
            mode: self.envoy_mode,
            headers: self.envoy_headers.take(),
            metadata: self.envoy_metadata,
        };
        EnvoySettings {
            rules: self.envoy_rules.take().unwrap_or_default(),
            domains: self.envoy_domains.unwrap_or(envoy::EnvoyDomains::Separate),
            calls: said.resolve(),
        }
    }
}

/// More threads than this do not serve faster.
const MAX_THREADS: usize = 256;

/// What holds. Its `Debug` shows no secret.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `embedded`, or a URL.
    pub store: Secret,
    /// The password, in place of one in the URL.
    pub store_password: Option<Secret>,
    /// How long Redis may take for a decision.
    pub store_deadline: Duration,
    /// How many keys the embedded store keeps.
    pub max_keys: usize,
    /// The fleet this node belongs to.
    pub fleet: String,
    /// How many nodes it has, until they have been counted.
    pub nodes: u64,
    /// What the fleet hashes and signs with; drawn at start if not said.
    pub secret: Option<FleetSecret>,
    /// The file of the rules.
    pub rules: Option<PathBuf>,
    /// Where in Redis they are, in place of a file.
    pub rules_from: Option<RulesFrom>,
    /// How often they are looked at besides being watched.
    pub rules_poll: Duration,
    /// Where the last good rules are kept.
    pub state_dir: Option<PathBuf>,
    /// What requests are told before there are rules.
    pub without_rules: WithoutRules,
    /// Where each listener is.
    pub listen: PerListener<ListenAddress>,
    /// How Envoy's calls are answered, and by which rules.
    pub envoy: EnvoySettings,
    /// How many threads serve the Redis protocol.
    pub resp_threads: usize,
    /// The certificate of the HTTP, gRPC and admin listeners, and its key.
    pub tls: Option<tls::TlsFiles>,
    /// How many connections a listener serves at a time.
    pub max_connections: usize,
    /// What clients of the HTTP, gRPC and RESP listeners must say.
    pub api_token: Option<Secret>,
    /// What clients of the admin API must say.
    pub admin_token: Option<Secret>,
    /// Which proxies are believed.
    pub trust: Trust,
    /// The domain of forward-auth requests that name none.
    pub auth_domain: Option<String>,
    /// What proxies say in headers.
    pub auth_attributes: Vec<AttributeHeader>,
    /// How long readiness is off before connections are drained.
    pub drain_delay: Duration,
    /// How long connections may take to end.
    pub drain_timeout: Duration,
    /// What is logged.
    pub log_level: LogLevel,
    /// How; as the terminal has it if not said.
    pub log_format: Option<LogFormat>,
}

/// Sixteen bytes that all nodes of a fleet share.
#[derive(Clone, Copy)]
pub struct FleetSecret(pub [u8; 16]);

impl fmt::Debug for FleetSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

impl Default for Settings {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            store: "embedded".parse().unwrap_or_else(|_| unreachable!()),
            store_password: None,
            store_deadline: Duration::from_millis(20),
            max_keys: 1_000_000,
            fleet: String::new(),
            nodes: 1,
            secret: None,
            rules: None,
            rules_from: None,
            rules_poll: Duration::from_secs(1),
            state_dir: None,
            without_rules: WithoutRules::Admit,
            listen: PerListener::new(|listener| ListenAddress::At(listener.default_address())),
            envoy: EnvoySettings::default(),
            resp_threads: (cores / 2).clamp(1, MAX_THREADS),
            tls: None,
            max_connections: 10_000,
            api_token: None,
            admin_token: None,
            trust: Trust::nobody(),
            auth_domain: None,
            auth_attributes: Vec::new(),
            drain_delay: Duration::ZERO,
            drain_timeout: Duration::from_secs(10),
            log_level: LogLevel::Info,
            log_format: None,
        }
    }
}

impl Settings {
    /// The defaults, with every listener on a free port of loopback.
    pub fn on_free_ports() -> Self {
        let free = ListenAddress::At(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        Self { listen: PerListener::new(|_| free), ..Self::default() }
    }

    /// Whether counters are kept in this process.
    pub fn is_embedded(&self) -> bool {
        self.store.expose() == "embedded"
    }

    fn checked(self) -> Result<Self, SettingsError> {
        if self.listen == PerListener::new(|_| ListenAddress::Off) {
            let flags = Listener::ALL.map(|listener| format!("--{}", listener.name())).join(", ");
            return Err(SettingsError(format!(
                "every listener is off, so nobody could ask: give one of them an address ({flags}), \
                 such as --http 127.0.0.1:8080"
            )));
        }
        if let ListenAddress::At(address) = self.listen[Listener::Admin]
            && !address.ip().is_loopback()
            && self.admin_token.is_none()
        {
            return Err(SettingsError(format!(
                "the admin API would listen at {address}, where others reach it: set \
                 --admin-token-file (TOLLGATE_ADMIN_TOKEN_FILE), or listen at 127.0.0.1"
            )));
        }
        for (name, is_zero) in [
            ("max-connections", self.max_connections == 0),
            ("max-keys", self.max_keys == 0),
            ("store-deadline", self.store_deadline.is_zero()),
        ] {
            if is_zero {
                return Err(SettingsError(format!("{name} is 0, so nobody could be served")));
            }
        }
        if self.rules_poll < Duration::from_millis(10) {
            return Err(SettingsError(
                "rules-poll is below 10ms: the rules would be all it reads".into(),
            ));
        }
        match &self.rules_from {
            Some(_) if self.rules.is_some() => Err(SettingsError(
                "both rules and rules-from are said: exactly one of them is the authority".into(),
            ))?,
            Some(RulesFrom { url: None, .. }) if self.is_embedded() => Err(SettingsError(
                "rules-from names the store's Redis, and the store is embedded: say its URL, such \
                 as --rules-from redis://host"
                    .into(),
            ))?,
            _ => {}
        }
        Ok(self)
    }
}

fn tls(
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
) -> Result<Option<tls::TlsFiles>, SettingsError> {
    match (cert, key) {
        (None, None) => Ok(None),
        (Some(cert), Some(key)) => Ok(Some(tls::TlsFiles { cert, key })),
        (Some(_), None) => {
            Err(SettingsError("tls-cert is set without tls-key: TLS needs both".into()))
        }
        (None, Some(_)) => {
            Err(SettingsError("tls-key is set without tls-cert: TLS needs both".into()))
        }
    }
}

/// A secret by itself or by its file, and not by both: one of them would be passed over.
pub(crate) fn secret(
    name: &str,
    said: Option<Secret>,
    file: Option<PathBuf>,
) -> Result<Option<Secret>, SettingsError> {
    let path = match (said, file) {
        (said, None) => return Ok(said),
        (None, Some(path)) => path,
        (Some(_), Some(_)) => {
            return Err(SettingsError(format!(
                "both {name} and {name}-file are said, by flags or variables: say one of them"
            )));
        }
    };
    let wrong = |why: &dyn fmt::Display| {
        SettingsError(format!("{name}-file {} cannot be used: {why}", path.display()))
    };
    let text = std::fs::read_to_string(&path).map_err(|error| wrong(&error))?;
    text.parse().map(Some).map_err(|error| wrong(&error))
}

fn fleet_secret(text: &Secret) -> Result<FleetSecret, SettingsError> {
    let wrong = || SettingsError("the fleet's secret is not 32 hexadecimal digits".into());
    let text = text.expose();
    if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    u128::from_str_radix(text, 16).map(|bits| FleetSecret(bits.to_be_bytes())).map_err(|_| wrong())
}

/// Why a server cannot be told so. A person has to change something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError(pub(crate) String);

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SettingsError {}
