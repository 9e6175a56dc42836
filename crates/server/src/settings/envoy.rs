//! Settings for Envoy's calls: where its rules are, and how calls are answered.
//!
//! Each setting is a word, so that a file, a variable and a flag say it in the same way. The names of
//! the reference's variables are in `docs/envoy.md`.

use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{self, Deserializer};
use tollgate::envoy::{self, Conduct};
use tollgate::rules::declaration;

use super::value::{from_text, words};
use crate::protocols::grpc::{self, HeaderNames};

words! {
    /// Handling of a domain in several files.
    EnvoyDomains {
        /// An error.
        Separate = "separate",
        /// Merged, as with `MERGE_DOMAIN_CONFIG`.
        Merge = "merge",
    }
}

words! {
    /// Charges of a call with a descriptor over its limit.
    EnvoyCharge {
        /// Nothing.
        AllOrNone = "all-or-none",
        /// Every descriptor by itself, as the reference charges.
        All = "all",
    }
}

words! {
    /// Answer while the store is unreachable.
    EnvoyOnOutage {
        /// This node, by its share of each limit.
        Local = "local",
        /// Everything passes.
        Admit = "admit",
        /// The call is an error.
        Refuse = "refuse",
    }
}

words! {
    /// Enforcement of limits.
    EnvoyMode {
        /// Requests over a limit are refused.
        Enforce = "enforce",
        /// Nothing is refused, as with `SHADOW_MODE`.
        Shadow = "shadow",
    }
}

words! {
    /// Dynamic metadata in answers.
    EnvoyMetadata {
        /// Left out.
        Omit = "omit",
        /// Included, as with `RESPONSE_DYNAMIC_METADATA`.
        Include = "include",
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

from_text!(EnvoyDomains, EnvoyCharge, EnvoyOnOutage, EnvoyMode, EnvoyMetadata, EnvoyHeaders);

/// Settings for Envoy's calls.
#[derive(Clone, Debug)]
pub struct EnvoySettings {
    /// Files, and directories of files, of envoyproxy/ratelimit.
    pub rules: Vec<PathBuf>,
    /// Handling of a domain in several of them.
    pub domains: EnvoyDomains,
    /// Behaviour of calls.
    pub calls: grpc::GrpcSettings,
}

impl Default for EnvoySettings {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            domains: EnvoyDomains::Separate,
            calls: grpc::GrpcSettings::default(),
        }
    }
}

/// Options about Envoy's calls.
#[derive(Debug, Default)]
pub(super) struct EnvoyOptions {
    pub(super) charge: Option<EnvoyCharge>,
    pub(super) on_outage: Option<EnvoyOnOutage>,
    pub(super) mode: Option<EnvoyMode>,
    pub(super) headers: Option<EnvoyHeaders>,
    pub(super) metadata: Option<EnvoyMetadata>,
}

impl EnvoyOptions {
    /// Combines the options with defaults.
    pub(super) fn resolve(self) -> grpc::GrpcSettings {
        let charge = match self.charge {
            None | Some(EnvoyCharge::AllOrNone) => envoy::Charge::AllOrNone,
            Some(EnvoyCharge::All) => envoy::Charge::All,
        };
        let on_outage = match self.on_outage {
            None | Some(EnvoyOnOutage::Local) => declaration::OnOutage::Local,
            Some(EnvoyOnOutage::Admit) => declaration::OnOutage::Admit,
            Some(EnvoyOnOutage::Refuse) => declaration::OnOutage::Refuse,
        };
        grpc::GrpcSettings {
            conduct: Conduct::DEFAULT.charging(charge).in_outages(on_outage),
            enforcement: match self.mode {
                None | Some(EnvoyMode::Enforce) => grpc::Enforcement::Enforce,
                Some(EnvoyMode::Shadow) => grpc::Enforcement::Shadow,
            },
            headers: self.headers.and_then(|headers| headers.0),
            metadata: match self.metadata {
                None | Some(EnvoyMetadata::Omit) => grpc::Metadata::Omit,
                Some(EnvoyMetadata::Include) => grpc::Metadata::Include,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let settings = toml::from_str::<super::super::Options>(file).unwrap().resolve().unwrap();
        assert_eq!(
            settings.listen[crate::Listener::Grpc],
            super::super::ListenAddress::At(([127, 0, 0, 1], 9).into())
        );
        let EnvoySettings { rules, domains, calls } = settings.envoy;
        assert_eq!(rules, [PathBuf::from("one.yaml"), PathBuf::from("more")]);
        assert_eq!(domains, EnvoyDomains::Merge);
        let conduct = Conduct::DEFAULT.charging(envoy::Charge::All);
        assert_eq!(calls.conduct, conduct.in_outages(declaration::OnOutage::Refuse));
        assert_eq!(calls.enforcement, grpc::Enforcement::Shadow);
        assert_eq!(calls.headers, Some(HeaderNames::default()));
        assert_eq!(calls.metadata, grpc::Metadata::Include);
        let bad = toml::from_str::<super::super::Options>("envoy-mode = \"maybe\"").unwrap_err();
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
