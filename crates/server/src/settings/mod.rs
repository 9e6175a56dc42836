//! Settings of a server, from flags, `TOLLGATE_*` variables, a file and defaults.
//!
//! [`Options`] holds what was given, without defaults; [`Settings`] is the result. Flags override
//! variables, variables the file, the file defaults. A secret can be in a file of its own (`*-file`,
//! `TOLLGATE_*_FILE`), so that no process list and no unit file shows it.
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
use crate::protocols::grpc;
use crate::tls::TlsFiles;
use envoy::EnvoySettings;
use rules_from::RulesFrom;
use value::{
    AttributeHeader, DurationText, ListenAddress, LogFormat, LogLevel, Secret, WithoutRules,
};

/// Defines the options once: as fields with their variables and value names, and for
/// [`Options::or`].
macro_rules! options {
    ($(#[$outer:meta])* pub struct $name:ident {
        $($(#[$help:meta])* $field:ident: $kind:ty = $env:literal, $value:literal
            $(, $key:ident = $more:literal)?;)+
    }) => {
        $(#[$outer])*
        pub struct $name {
            $(
                $(#[$help])*
                #[arg(long, env = $env, value_name = $value $(, $key = $more)?)]
                pub $field: Option<$kind>,
            )+
        }

        impl $name {
            /// Each field of this, or of `under` if this has none.
            fn or(self, under: Self) -> Self {
                Self { $($field: self.$field.or(under.$field),)+ }
            }
        }
    };
}

options! {
    /// Options as given by flags, variables or a file. Nothing here has a default.
    #[derive(Args, Clone, Debug, Default, Deserialize)]
    #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
    pub struct Options {
        /// Counter store: `embedded`, or the URL of Redis or Valkey [default: embedded]
        store: Secret = "TOLLGATE_STORE", "URL", hide_env_values = true;
        /// File that holds the store URL, for a URL with a password
        store_file: PathBuf = "TOLLGATE_STORE_FILE", "FILE";
        /// Password of Redis, instead of one in the URL
        store_password: Secret = "TOLLGATE_STORE_PASSWORD", "TEXT", hide_env_values = true;
        /// File that holds the password of Redis
        store_password_file: PathBuf = "TOLLGATE_STORE_PASSWORD_FILE", "FILE";
        /// Time limit for a decision in Redis [default: 20ms]
        store_deadline: DurationText = "TOLLGATE_STORE_DEADLINE", "TIME";
        /// Keys that the embedded store can hold [default: 1000000]
        max_keys: usize = "TOLLGATE_MAX_KEYS", "COUNT";
        /// Fleet of this node; its nodes divide the limits while Redis is unreachable
        fleet: String = "TOLLGATE_FLEET", "NAME";
        /// Nodes in the fleet, until they have been counted [default: 1]
        nodes: u64 = "TOLLGATE_NODES", "COUNT";
        /// Secret of the fleet, 32 hexadecimal digits: hashes long keys and signs reservations
        secret: Secret = "TOLLGATE_SECRET", "HEX", hide_env_values = true;
        /// File that holds the secret of the fleet
        secret_file: PathBuf = "TOLLGATE_SECRET_FILE", "FILE";
        /// Rule file in YAML, TOML or JSON; reloaded when it changes
        rules: PathBuf = "TOLLGATE_RULES", "FILE";
        /// Rules in Redis: `redis` for one set, `hashes` for hashes that another system writes, both in
        /// the store's Redis; `redis://…` or `hashes:redis://…` for another server
        rules_from: Secret = "TOLLGATE_RULES_FROM", "WHERE", hide_env_values = true;
        /// File that holds the value of --rules-from, for a URL with a password
        rules_from_file: PathBuf = "TOLLGATE_RULES_FROM_FILE", "FILE";
        /// Name of the rule set in Redis [default: default]
        rules_name: String = "TOLLGATE_RULES_NAME", "NAME";
        /// Key pattern of rule hashes [default: rate_limit_config:*]
        rules_pattern: String = "TOLLGATE_RULES_PATTERN", "PATTERN";
        /// Channel that announces changes of rule hashes [default: rate_limit_config_channel]
        rules_channel: String = "TOLLGATE_RULES_CHANNEL", "CHANNEL";
        /// Domain of the rules in hashes [default: default]
        rules_domain: String = "TOLLGATE_RULES_DOMAIN", "DOMAIN";
        /// Polling interval for rules, in addition to watching them [default: 1s]
        rules_poll: DurationText = "TOLLGATE_RULES_POLL", "TIME";
        /// Directory for the last good rules, which a restart falls back on
        state_dir: PathBuf = "TOLLGATE_STATE_DIR", "DIR";
        /// Answer while no rules have been loaded: admit or refuse [default: admit]
        without_rules: WithoutRules = "TOLLGATE_WITHOUT_RULES", "WORD";
        /// Address of the HTTP listener, or `off` [default: 127.0.0.1:8080]
        http: ListenAddress = "TOLLGATE_HTTP", "ADDRESS";
        /// Address of the gRPC listener (Envoy's rate limit service), or `off` [default: 127.0.0.1:8081]
        grpc: ListenAddress = "TOLLGATE_GRPC", "ADDRESS";
        /// Rule files of envoyproxy/ratelimit, and directories of them; reloaded when they change
        envoy_rules: Vec<PathBuf> = "TOLLGATE_ENVOY_RULES", "PATH", value_delimiter = ',';
        /// Domains in several Envoy files: separate (an error) or merge [default: separate]
        envoy_domains: envoy::EnvoyDomains = "TOLLGATE_ENVOY_DOMAINS", "WORD";
        /// Charges of an Envoy call that is over a limit: all-or-none or all [default: all-or-none]
        envoy_charge: envoy::EnvoyCharge = "TOLLGATE_ENVOY_CHARGE", "WORD";
        /// Answer to Envoy while the store is unreachable: local, admit or refuse [default: local]
        envoy_on_outage: envoy::EnvoyOnOutage = "TOLLGATE_ENVOY_ON_OUTAGE", "WORD";
        /// Enforcement for Envoy: enforce or shadow [default: enforce]
        envoy_mode: grpc::Enforcement = "TOLLGATE_ENVOY_MODE", "WORD";
        /// Headers for Envoy to add to responses: off, on, or three names [default: off]
        envoy_headers: envoy::EnvoyHeaders = "TOLLGATE_ENVOY_HEADERS", "NAMES";
        /// Dynamic metadata in answers to Envoy: omit or include [default: omit]
        envoy_metadata: grpc::Metadata = "TOLLGATE_ENVOY_METADATA", "WORD";
        /// Address of the Redis protocol listener, or `off` [default: 127.0.0.1:6380]
        resp: ListenAddress = "TOLLGATE_RESP", "ADDRESS";
        /// Threads for the Redis protocol [default: half the cores, at least 1]
        resp_threads: usize = "TOLLGATE_RESP_THREADS", "COUNT";
        /// Address of the admin API, or `off` [default: 127.0.0.1:9091]
        admin: ListenAddress = "TOLLGATE_ADMIN", "ADDRESS";
        /// Certificate chain of the HTTP, gRPC and admin listeners, as PEM; reloaded when it changes
        tls_cert: PathBuf = "TOLLGATE_TLS_CERT", "FILE";
        /// Private key of the certificate, as PEM
        tls_key: PathBuf = "TOLLGATE_TLS_KEY", "FILE";
        /// Connections per listener [default: 10000]
        max_connections: usize = "TOLLGATE_MAX_CONNECTIONS", "COUNT";
        /// Token that HTTP, gRPC and RESP clients must send: as a bearer token, or with AUTH
        api_token: Secret = "TOLLGATE_API_TOKEN", "TEXT", hide_env_values = true;
        /// File that holds the API token
        api_token_file: PathBuf = "TOLLGATE_API_TOKEN_FILE", "FILE";
        /// Bearer token that admin clients must send
        admin_token: Secret = "TOLLGATE_ADMIN_TOKEN", "TEXT", hide_env_values = true;
        /// File that holds the admin token
        admin_token_file: PathBuf = "TOLLGATE_ADMIN_TOKEN_FILE", "FILE";
        /// Networks of trusted proxies, which may ask for their clients [default: none]
        trust: Vec<String> = "TOLLGATE_TRUST", "NETWORK", value_delimiter = ',';
        /// Domain of forward-auth requests that name none [default: the first domain of the rules]
        auth_domain: String = "TOLLGATE_AUTH_DOMAIN", "DOMAIN";
        /// Attributes that a trusted proxy sends in headers, such as `user=x-user`
        auth_attribute: Vec<AttributeHeader> = "TOLLGATE_AUTH_ATTRIBUTE", "NAME=HEADER", value_delimiter = ',';
        /// Time between reporting not ready and closing listeners [default: 0s]
        drain_delay: DurationText = "TOLLGATE_DRAIN_DELAY", "TIME";
        /// Time limit for open connections to finish [default: 10s]
        drain_timeout: DurationText = "TOLLGATE_DRAIN_TIMEOUT", "TIME";
        /// Log level: off, error, warn, info, debug or trace [default: info]
        log_level: LogLevel = "TOLLGATE_LOG_LEVEL", "WORD";
        /// Log format: json or text [default: text on a terminal, else json]
        log_format: LogFormat = "TOLLGATE_LOG_FORMAT", "WORD";
    }
}

impl Options {
    /// Reads a settings file: TOML, whose keys are the names of the flags.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or has an unknown key or a bad value; with the line.
    pub fn read(path: &Path) -> Result<Self, SettingsError> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            SettingsError(format!("cannot read the settings file {}: {error}", path.display()))
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

    /// Fills the gaps from `under`. A secret and its file are one setting: setting either of them in
    /// `self` overrides both in `under`.
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

    /// Combines the options with defaults, and validates them.
    ///
    /// # Errors
    ///
    /// When a secret's file cannot be read, or values conflict.
    pub fn resolve(mut self) -> Result<Settings, SettingsError> {
        let defaults = Settings::default();
        let envoy = EnvoySettings::take(&mut self);
        let rules_from = secret("rules-from", &self.rules_from, &self.rules_from_file)?;
        let rules_from = rules_from.map(|from| RulesFrom::new(&from, &mut self)).transpose()?;
        let listen = PerListener::new(|listener| {
            listener.setting(&self).unwrap_or(defaults.listen[listener])
        });
        let lasting =
            |said: Option<DurationText>, default: Duration| said.map_or(default, |it| it.0);
        let trust = Trust::proxies(self.trust.unwrap_or_default())
            .map_err(|error| SettingsError(format!("--trust: {error}")))?;
        let settings = Settings {
            store: secret("store", &self.store, &self.store_file)?.unwrap_or(defaults.store),
            store_password: secret(
                "store-password",
                &self.store_password,
                &self.store_password_file,
            )?,
            store_deadline: lasting(self.store_deadline, defaults.store_deadline),
            max_keys: self.max_keys.unwrap_or(defaults.max_keys),
            fleet: self.fleet.unwrap_or(defaults.fleet),
            nodes: self.nodes.unwrap_or(defaults.nodes),
            secret: secret("secret", &self.secret, &self.secret_file)?
                .map(|text| fleet_secret(&text))
                .transpose()?,
            rules: self.rules,
            rules_from,
            rules_poll: lasting(self.rules_poll, defaults.rules_poll),
            state_dir: self.state_dir,
            without_rules: self.without_rules.unwrap_or(defaults.without_rules),
            listen,
            envoy,
            resp_threads: self.resp_threads.unwrap_or(defaults.resp_threads).clamp(1, MAX_THREADS),
            tls: tls(self.tls_cert, self.tls_key)?,
            max_connections: self.max_connections.unwrap_or(defaults.max_connections),
            api_token: secret("api-token", &self.api_token, &self.api_token_file)?,
            admin_token: secret("admin-token", &self.admin_token, &self.admin_token_file)?,
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
}

/// More threads than this do not serve faster.
const MAX_THREADS: usize = 256;

/// Settings of a server. `Debug` shows no secret.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `embedded`, or a URL.
    pub store: Secret,
    /// The password, in place of one in the URL.
    pub store_password: Option<Secret>,
    /// Time limit for a decision in Redis.
    pub store_deadline: Duration,
    /// Keys that the embedded store can hold.
    pub max_keys: usize,
    /// The fleet this node belongs to.
    pub fleet: String,
    /// Nodes in it, until they have been counted.
    pub nodes: u64,
    /// Secret that the fleet hashes and signs with; random if none.
    pub secret: Option<FleetSecret>,
    /// The file of the rules.
    pub rules: Option<PathBuf>,
    /// Rules in Redis, instead of a file.
    pub rules_from: Option<RulesFrom>,
    /// Polling interval, in addition to watching.
    pub rules_poll: Duration,
    /// Directory for the last good rules.
    pub state_dir: Option<PathBuf>,
    /// Answer to requests before rules are loaded.
    pub without_rules: WithoutRules,
    /// Address of each listener.
    pub listen: PerListener<ListenAddress>,
    /// Rules and behaviour for Envoy's calls.
    pub envoy: EnvoySettings,
    /// Threads for the Redis protocol.
    pub resp_threads: usize,
    /// The certificate of the HTTP, gRPC and admin listeners, and its key.
    pub tls: Option<TlsFiles>,
    /// Connections per listener.
    pub max_connections: usize,
    /// Token that HTTP, gRPC and RESP clients must send.
    pub api_token: Option<Secret>,
    /// Token that admin clients must send.
    pub admin_token: Option<Secret>,
    /// Trusted proxies.
    pub trust: Trust,
    /// The domain of forward-auth requests that name none.
    pub auth_domain: Option<String>,
    /// Attributes that trusted proxies send in headers.
    pub auth_attributes: Vec<AttributeHeader>,
    /// Time between reporting not ready and closing listeners.
    pub drain_delay: Duration,
    /// Time limit for open connections to finish.
    pub drain_timeout: Duration,
    /// Log level.
    pub log_level: LogLevel,
    /// Log format; text on a terminal, else JSON, if none.
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
            without_rules: WithoutRules::default(),
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
            log_level: LogLevel::default(),
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

    /// True if counters are in this process.
    pub fn is_embedded(&self) -> bool {
        self.store.expose() == "embedded"
    }

    fn checked(self) -> Result<Self, SettingsError> {
        if self.listen == PerListener::new(|_| ListenAddress::Off) {
            let flags = Listener::ALL.map(|listener| format!("--{}", listener.name())).join(", ");
            return Err(SettingsError(format!(
                "every listener is off: set one of {flags} to an address, such as \
                 --http 127.0.0.1:8080"
            )));
        }
        if let ListenAddress::At(address) = self.listen[Listener::Admin]
            && !address.ip().is_loopback()
            && self.admin_token.is_none()
        {
            return Err(SettingsError(format!(
                "the admin API at {address} can be reached from other machines: set \
                 --admin-token-file (TOLLGATE_ADMIN_TOKEN_FILE), or listen on 127.0.0.1"
            )));
        }
        for (name, is_zero) in [
            ("max-connections", self.max_connections == 0),
            ("max-keys", self.max_keys == 0),
            ("store-deadline", self.store_deadline.is_zero()),
        ] {
            if is_zero {
                return Err(SettingsError(format!("--{name} must be greater than 0")));
            }
        }
        if self.rules_poll < Duration::from_millis(10) {
            return Err(SettingsError("--rules-poll must be at least 10ms".into()));
        }
        match &self.rules_from {
            Some(_) if self.rules.is_some() => Err(SettingsError(
                "--rules and --rules-from are both set: rules have exactly one source".into(),
            ))?,
            Some(RulesFrom { url: None, .. }) if self.is_embedded() => Err(SettingsError(
                "--rules-from uses the store's Redis, but the store is embedded: give a URL, such \
                 as --rules-from redis://host"
                    .into(),
            ))?,
            _ => {}
        }
        Ok(self)
    }
}

fn tls(cert: Option<PathBuf>, key: Option<PathBuf>) -> Result<Option<TlsFiles>, SettingsError> {
    let (set, missing) = match (cert, key) {
        (None, None) => return Ok(None),
        (Some(cert), Some(key)) => return Ok(Some(TlsFiles { cert, key })),
        (Some(_), None) => ("cert", "key"),
        (None, Some(_)) => ("key", "cert"),
    };
    Err(SettingsError(format!("--tls-{set} is set without --tls-{missing}: TLS needs both")))
}

/// Reads a secret from its setting or its file. Setting both is an error.
pub(crate) fn secret(
    name: &str,
    said: &Option<Secret>,
    file: &Option<PathBuf>,
) -> Result<Option<Secret>, SettingsError> {
    let Some(path) = file else { return Ok(said.clone()) };
    if said.is_some() {
        let why = format!("--{name} and --{name}-file are both set: set only one of them");
        return Err(SettingsError(why));
    }
    let wrong = |why: &dyn fmt::Display| {
        SettingsError(format!("cannot use --{name}-file {}: {why}", path.display()))
    };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
    text.parse().map(Some).map_err(|error| wrong(&error))
}

fn fleet_secret(text: &Secret) -> Result<FleetSecret, SettingsError> {
    let wrong = || SettingsError("--secret must be 32 hexadecimal digits".into());
    let text = text.expose();
    if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    u128::from_str_radix(text, 16).map(|bits| FleetSecret(bits.to_be_bytes())).map_err(|_| wrong())
}

/// Invalid settings, which a person has to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError(pub(crate) String);

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SettingsError {}
