//! How Envoy's calls are answered: the same for all calls.

use tollgate::envoy::Conduct;

/// How calls are answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GrpcSettings {
    /// What is charged, and what answers in an outage.
    pub conduct: Conduct,
    /// Whether anybody is refused at all.
    pub enforcement: Enforcement,
    /// The headers that Envoy adds to responses; none unless named.
    pub headers: Option<HeaderNames>,
    /// Whether answers carry dynamic metadata.
    pub metadata: Metadata,
}

/// Whether anybody is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Enforcement {
    /// Who is over a limit is refused.
    #[default]
    Enforce,
    /// Nobody is, as with the reference's `SHADOW_MODE`: statuses say who is over, and the whole is
    /// OK.
    Shadow,
}

/// Whether answers carry dynamic metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Metadata {
    /// They do not.
    #[default]
    Omit,
    /// The call, and the metadata of the rules that passed, as with the reference's
    /// `RESPONSE_DYNAMIC_METADATA`.
    Include,
}

/// Names of headers with the state of the tightest limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderNames {
    /// Of `requests_per_unit`.
    pub limit: String,
    /// Of what is left.
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
