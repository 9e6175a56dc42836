//! Settings for Envoy's calls: where its rules are, and how calls are answered.
//!
//! Each setting is a word, the same in a file, a variable and a flag. The names of the reference's
//! variables are in `docs/envoy.md`.

use std::path::PathBuf;
use std::str::FromStr;

use tollgate::envoy::{self, CallPolicy};
use tollgate::rules::declaration::OnOutage;

use super::Options;
use crate::enum_text::{impl_deserialize, impl_from_str, text_enum};
use crate::protocols::grpc::{GrpcSettings, HeaderNames};

text_enum! {
    /// Handling of a domain in several files.
    #[derive(Default)]
    pub enum EnvoyDomains {
        /// An error.
        #[default]
        Separate = "separate",
        /// Merged, as with `MERGE_DOMAIN_CONFIG`.
        Merge = "merge",
    }
}

text_enum! {
    /// Charges of a call with a descriptor over its limit.
    #[derive(Default)]
    pub enum EnvoyCharge {
        /// Nothing.
        #[default]
        AllOrNone = "all-or-none",
        /// Every descriptor by itself, as the reference charges.
        All = "all",
    }
}

text_enum! {
    /// Answer while the store is unreachable.
    #[derive(Default)]
    pub enum EnvoyOnOutage {
        /// This node, by its share of each limit.
        #[default]
        Local = "local",
        /// Everything passes.
        Admit = "admit",
        /// The call is an error.
        Refuse = "refuse",
    }
}

/// The headers that Envoy adds to responses: `off`, `on`, or the names of three.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyHeaders(pub Option<HeaderNames>);

impl FromStr for EnvoyHeaders {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => return Ok(Self(None)),
            "on" => return Ok(Self(Some(HeaderNames::default()))),
            _ => {}
        }
        let names: Vec<&str> = text.split(',').map(str::trim).collect();
        let are_names = names.iter().all(|name| http::HeaderName::from_str(name).is_ok());
        match names[..] {
            [limit, remaining, reset] if are_names => Ok(Self(Some(HeaderNames {
                limit: limit.to_owned(),
                remaining: remaining.to_owned(),
                reset: reset.to_owned(),
            }))),
            _ => Err(format!(
                "{text:?} is not `off`, `on` or three header names, such as \
                 `X-RateLimit-Limit,X-RateLimit-Remaining,X-RateLimit-Reset`"
            )),
        }
    }
}

impl_from_str!(EnvoyDomains, EnvoyCharge, EnvoyOnOutage);
impl_deserialize!(EnvoyDomains, EnvoyCharge, EnvoyOnOutage, EnvoyHeaders);

/// Settings for Envoy's calls.
#[derive(Clone, Debug, Default)]
pub struct EnvoySettings {
    /// Files, and directories of files, of envoyproxy/ratelimit.
    pub rules: Vec<PathBuf>,
    /// Handling of a domain in several of them.
    pub domains: EnvoyDomains,
    /// Behaviour of calls.
    pub calls: GrpcSettings,
}

impl EnvoySettings {
    /// Takes the options about Envoy's calls, and combines them with defaults.
    pub(super) fn take(options: &mut Options) -> Self {
        let charge = match options.envoy_charge.unwrap_or_default() {
            EnvoyCharge::AllOrNone => envoy::ChargeMode::AllOrNone,
            EnvoyCharge::All => envoy::ChargeMode::All,
        };
        let on_outage = match options.envoy_on_outage.unwrap_or_default() {
            EnvoyOnOutage::Local => OnOutage::Local,
            EnvoyOnOutage::Admit => OnOutage::Admit,
            EnvoyOnOutage::Refuse => OnOutage::Refuse,
        };
        let calls = GrpcSettings {
            policy: CallPolicy::DEFAULT.charging(charge).in_outages(on_outage),
            enforcement: options.envoy_mode.unwrap_or_default(),
            headers: options.envoy_headers.take().and_then(|headers| headers.0),
            metadata: options.envoy_metadata.unwrap_or_default(),
        };
        let rules = options.envoy_rules.take().unwrap_or_default();
        Self { rules, domains: options.envoy_domains.unwrap_or_default(), calls }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ListenAddress;
    use super::*;
    use crate::protocols::grpc::{Enforcement, Metadata};

    #[test]
    fn a_file_says_the_same_as_flags() {
        let file = r#"
            grpc = "127.0.0.1:9"
            envoy-rules = ["one.yaml", "more"]
            envoy-domains = "merge"
            envoy-charge = "all"
            envoy-on-outage = "refuse"
            envoy-mode = "shadow"
            envoy-headers = "on"
            envoy-metadata = "include"
        "#;
        let settings = toml::from_str::<Options>(file).unwrap().resolve().unwrap();
        let grpc = ListenAddress::At(([127, 0, 0, 1], 9).into());
        assert_eq!(settings.listen[crate::Listener::Grpc], grpc);
        let EnvoySettings { rules, domains, calls } = settings.envoy;
        assert_eq!(rules, [PathBuf::from("one.yaml"), PathBuf::from("more")]);
        assert_eq!(domains, EnvoyDomains::Merge);
        let policy = CallPolicy::DEFAULT.charging(envoy::ChargeMode::All);
        assert_eq!(calls.policy, policy.in_outages(OnOutage::Refuse));
        assert_eq!(calls.enforcement, Enforcement::Shadow);
        assert_eq!(calls.headers, Some(HeaderNames::default()));
        assert_eq!(calls.metadata, Metadata::Include);
        let bad = toml::from_str::<Options>("envoy-mode = \"maybe\"").unwrap_err();
        assert!(bad.message().contains("not one of: enforce shadow"), "{bad}");
    }

    #[test]
    fn headers_are_off_on_or_three_names() {
        assert_eq!("off".parse(), Ok(EnvoyHeaders(None)));
        assert_eq!("on".parse(), Ok(EnvoyHeaders(Some(HeaderNames::default()))));
        let EnvoyHeaders(Some(names)) = "X-L, X-Rem,X-Res".parse().unwrap() else { panic!() };
        assert_eq!((&*names.limit, &*names.remaining, &*names.reset), ("X-L", "X-Rem", "X-Res"));
        for bad in ["", "yes", "a,b", "a,b,c,d", "a,b,c d", "a,,c"] {
            assert!(bad.parse::<EnvoyHeaders>().is_err(), "{bad:?}");
        }
    }
}
