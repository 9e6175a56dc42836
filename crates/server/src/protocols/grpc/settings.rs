//! Behaviour of Envoy's calls, the same for all of them.

use tollgate::envoy::CallPolicy;

use crate::enum_text::{impl_deserialize, impl_from_str, text_enum};

/// Behaviour of Envoy's calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GrpcSettings {
    /// Charges, and behaviour in an outage.
    pub policy: CallPolicy,
    /// Enforcement of limits.
    pub enforcement: Enforcement,
    /// The headers that Envoy adds to responses; none unless named.
    pub headers: Option<HeaderNames>,
    /// Dynamic metadata in answers.
    pub metadata: Metadata,
}

text_enum! {
    /// Enforcement of limits.
    #[derive(Default)]
    pub enum Enforcement {
        /// Requests over a limit are refused.
        #[default]
        Enforce = "enforce",
        /// Nothing is refused, as with the reference's `SHADOW_MODE`: statuses report the limits,
        /// and the whole is OK.
        Shadow = "shadow",
    }
}

text_enum! {
    /// Dynamic metadata in answers.
    #[derive(Default)]
    pub enum Metadata {
        /// Left out.
        #[default]
        Omit = "omit",
        /// The call, and the metadata of the rules that passed, as with the reference's
        /// `RESPONSE_DYNAMIC_METADATA`.
        Include = "include",
    }
}

impl_from_str!(Enforcement, Metadata);
impl_deserialize!(Enforcement, Metadata);

/// Names of headers with the state of the tightest limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderNames {
    /// Of `requests_per_unit`.
    pub limit: String,
    /// Of the remaining count.
    pub remaining: String,
    /// Of the seconds until the window ends.
    pub reset: String,
}

impl Default for HeaderNames {
    /// Those of the reference: `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`.
    fn default() -> Self {
        Self {
            limit: "RateLimit-Limit".to_owned(),
            remaining: "RateLimit-Remaining".to_owned(),
            reset: "RateLimit-Reset".to_owned(),
        }
    }
}
