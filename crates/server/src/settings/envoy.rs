//! What Envoy's calls are told: where its rules are, and how they are answered.
//!
//! Each setting is a word, so that a file, a variable and a flag say it in the same way. The names of
//! the reference's variables are in `docs/envoy.md`.

use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{self, Deserializer};
use tollgate::core::rule::declaration;
use tollgate::envoy::{self, Conduct};

use super::value::{from_text, words};
use crate::protocols::grpc::{self, HeaderNames};

words! {
    /// Whether a domain may be spread over several files.
    Domains {
        /// It may not.
        Separate = "separate",
        /// It may, as with `MERGE_DOMAIN_CONFIG`.
        Merge = "merge",
    }
}

words! {
    /// What is charged when a descriptor of a call is over its limit.
    Charge {
        /// Nothing.
        AllOrNone = "all-or-none",
        /// Every descriptor by itself, as the reference charges.
        All = "all",
    }
}

words! {
    /// What answers while the store does not.
    OnOutage {
        /// This node, by its share of each limit.
        Local = "local",
        /// Everything passes.
        Admit = "admit",
        /// The call is an error.
        Refuse = "refuse",
    }
}

words! {
    /// Whether anybody is refused.
    Mode {
        /// Who is over a limit is.
        Enforce = "enforce",
        /// Nobody is, as with `SHADOW_MODE`.
        Shadow = "shadow",
    }
}

words! {
    /// Whether answers carry dynamic metadata.
    Metadata {
        /// They do not.
        Omit = "omit",
        /// They do, as with `RESPONSE_DYNAMIC_METADATA`.
        Include = "include",
    }
}

/// The headers that Envoy adds to responses: `off`, `on`, or the names of three.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers(pub Option<HeaderNames>);

impl FromStr for Headers {
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
                "{text:?} is neither `off` nor `on` nor three names of headers, such as \
                 `X-RateLimit-Limit,X-RateLimit-Remaining,X-RateLimit-Reset`"
            )),
        }
    }
}

from_text!(Domains, Charge, OnOutage, Mode, Metadata, Headers);

/// What holds for Envoy's calls.
#[derive(Clone, Debug)]
pub struct EnvoySettings {
    /// Files, and directories of files, of envoyproxy/ratelimit.
    pub rules: Vec<PathBuf>,
    /// Whether a domain may be in several of them.
    pub domains: Domains,
    /// How calls are answered.
    pub calls: grpc::Settings,
}

impl Default for EnvoySettings {
    fn default() -> Self {
        Self { rules: Vec::new(), domains: Domains::Separate, calls: grpc::Settings::default() }
    }
}

/// What was said about how calls are answered.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) charge: Option<Charge>,
    pub(super) on_outage: Option<OnOutage>,
    pub(super) mode: Option<Mode>,
    pub(super) headers: Option<Headers>,
    pub(super) metadata: Option<Metadata>,
}

impl Said {
    /// How calls are answered, by what was said and by defaults.
    pub(super) fn resolve(self) -> grpc::Settings {
        let charge = match self.charge {
            None | Some(Charge::AllOrNone) => envoy::Charge::AllOrNone,
            Some(Charge::All) => envoy::Charge::All,
        };
        let on_outage = match self.on_outage {
            None | Some(OnOutage::Local) => declaration::OnOutage::Local,
            Some(OnOutage::Admit) => declaration::OnOutage::Admit,
            Some(OnOutage::Refuse) => declaration::OnOutage::Refuse,
        };
        grpc::Settings {
            conduct: Conduct::DEFAULT.charging(charge).in_outages(on_outage),
            enforcement: match self.mode {
                None | Some(Mode::Enforce) => grpc::Enforcement::Enforce,
                Some(Mode::Shadow) => grpc::Enforcement::Shadow,
            },
            headers: self.headers.and_then(|headers| headers.0),
            metadata: match self.metadata {
                None | Some(Metadata::Omit) => grpc::Metadata::Omit,
                Some(Metadata::Include) => grpc::Metadata::Include,
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
            super::super::Listen::At(([127, 0, 0, 1], 9).into())
        );
        let EnvoySettings { rules, domains, calls } = settings.envoy;
        assert_eq!(rules, [PathBuf::from("one.yaml"), PathBuf::from("more")]);
        assert_eq!(domains, Domains::Merge);
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
        assert_eq!("off".parse(), Ok(Headers(None)));
        assert_eq!("on".parse(), Ok(Headers(Some(HeaderNames::default()))));
        let Headers(Some(names)) = "X-L, X-Rem,X-Res".parse().unwrap() else { panic!() };
        assert_eq!((&*names.limit, &*names.remaining, &*names.reset), ("X-L", "X-Rem", "X-Res"));
        for bad in ["", "yes", "a,b", "a,b,c,d", "a,b,c d", "a,,c"] {
            assert!(bad.parse::<Headers>().is_err(), "{bad:?}");
        }
    }
}
