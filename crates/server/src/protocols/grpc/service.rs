//! Envoy's rate limit service, `ShouldRateLimit`: from a request to a response.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate::Store;
use tollgate::envoy::{Call, CallError, Descriptor, Entry, EnvoyAnswer, MAX_ENTRIES};
use tollgate::{Explanation, Limiter};
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Response, Status};

use super::account::InFlightCall;
use super::own_rules::{self, RuleAnswer};
use super::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use super::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use super::settings::GrpcSettings;
use super::{MAX_MESSAGE, json, wire};

/// Envoy's rate limit service on a limiter.
#[derive(Debug)]
pub struct RateLimits<S> {
    limiter: Limiter<S>,
    settings: GrpcSettings,
}

impl<S: Store + 'static> RateLimits<S> {
    /// Answers by the limiter's [`envoy_rules`](Limiter::envoy_rules).
    pub const fn new(limiter: Limiter<S>, settings: GrpcSettings) -> Self {
        Self { limiter, settings }
    }

    /// Answers one request.
    ///
    /// # Errors
    ///
    /// When the request is invalid, or the store does not answer and outages are errors.
    pub async fn answer(&self, asked: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let answered = self.decide(asked).await;
        let response = answered.and_then(|answered| answered.response(asked, &self.settings));
        response.map_err(|error| status(&error))
    }

    /// Answers one request in JSON, as the reference does at `/json`: a status of HTTP and a body.
    /// A text above [`MAX_MESSAGE`] is not read.
    pub async fn answer_json(&self, text: &str) -> (u16, String) {
        if text.len() > MAX_MESSAGE {
            let length = text.len();
            return (400, format!("a request of {length} bytes is longer than {MAX_MESSAGE}"));
        }
        match json::read(text) {
            Ok(asked) => {
                let answered = self.decide(&asked).await;
                self.write_json(&asked, &answered)
            }
            Err(error) => (400, error.to_string()),
        }
    }

    /// The same for a request that was read and answered already.
    pub(crate) fn write_json(
        &self,
        asked: &RateLimitRequest,
        answered: &Result<CallAnswer, CallFailure>,
    ) -> (u16, String) {
        let response = answered.as_ref().map_err(|error| *error);
        match response.and_then(|answered| answered.response(asked, &self.settings)) {
            Ok(response) => (json::status(&response), json::write(&response)),
            // The reference says 400 to whatever goes wrong, an outage included.
            Err(error) => (400, error.to_string()),
        }
    }

    /// Decides a request, and charges its cost.
    pub(crate) async fn decide(&self, asked: &RateLimitRequest) -> Result<CallAnswer, CallFailure> {
        bounded(asked).map_err(CallFailure::Call)?;
        if own_rules::has_domain(&self.limiter, &asked.domain) {
            // In a box: it would lengthen every call of Envoy's own domains.
            return Box::pin(own_rules::decide(&self.limiter, asked)).await.map(CallAnswer::Rules);
        }
        let answered = self.decide_by_files(asked).await;
        answered.map(CallAnswer::Envoy).map_err(CallFailure::Call)
    }

    async fn decide_by_files(&self, asked: &RateLimitRequest) -> Result<EnvoyAnswer, CallError> {
        let entries = entries(asked);
        let descriptors = descriptors(asked, &entries);
        let call = Call::new(&asked.domain, &descriptors).with_hits(asked.hits_addend);
        self.limiter.should_rate_limit(&call, self.settings.policy).await
    }
}

/// Explanation of a call.
pub(crate) enum CallExplanation {
    /// By files of Envoy's.
    Envoy(EnvoyAnswer),
    /// By our own rules.
    Rules(Explanation),
}

/// Explains a call, without charging anything.
pub(crate) async fn explain<S: Store + 'static>(
    limiter: &Limiter<S>,
    asked: &RateLimitRequest,
) -> Result<CallExplanation, String> {
    bounded(asked).map_err(|error| error.to_string())?;
    if own_rules::has_domain(limiter, &asked.domain) {
        return Ok(CallExplanation::Rules(limiter.explain(&own_rules::described(asked)?).await));
    }
    let entries = entries(asked);
    let descriptors = descriptors(asked, &entries);
    let call = Call::new(&asked.domain, &descriptors).with_hits(asked.hits_addend);
    let answer = limiter.explain_rate_limit(&call).await;
    answer.map(CallExplanation::Envoy).map_err(|error| error.to_string())
}

/// The entries of all descriptors, in one list, so that a call of two descriptors allocates nothing.
fn entries(asked: &RateLimitRequest) -> SmallVec<[Entry<'_>; 8]> {
    let mut entries = SmallVec::new();
    for it in &asked.descriptors {
        entries.extend(it.entries.iter().map(|it| Entry { key: &it.key, value: &it.value }));
    }
    entries
}

/// The descriptors, each with its part of the entries.
fn descriptors<'a>(
    asked: &RateLimitRequest,
    mut entries: &'a [Entry<'a>],
) -> SmallVec<[Descriptor<'a>; 4]> {
    let mut descriptors = SmallVec::new();
    for it in &asked.descriptors {
        let (own, others) = entries.split_at_checked(it.entries.len()).unwrap_or((entries, &[]));
        entries = others;
        descriptors.push(descriptor(it, own));
    }
    descriptors
}

/// Checks the size of a call.
fn bounded(asked: &RateLimitRequest) -> Result<(), CallError> {
    let count = asked.descriptors.len();
    if count > Call::MAX_DESCRIPTORS {
        return Err(CallError::TooManyDescriptors { count });
    }
    let mut counts = asked.descriptors.iter().map(|it| it.entries.len()).enumerate();
    match counts.find(|(_, count)| *count > MAX_ENTRIES) {
        Some((descriptor, count)) => Err(CallError::TooManyEntries { descriptor, count }),
        None => Ok(()),
    }
}

/// Answer to a call.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nothing is allocated for the usual one")]
pub(crate) enum CallAnswer {
    /// By files of Envoy's.
    Envoy(EnvoyAnswer),
    /// By our own rules.
    Rules(Box<RuleAnswer>),
}

impl CallAnswer {
    /// Version of the rules that decided.
    pub(crate) fn version(&self) -> u64 {
        match self {
            Self::Envoy(answer) => answer.version(),
            Self::Rules(own) => own.version,
        }
    }

    fn response(
        &self,
        asked: &RateLimitRequest,
        settings: &GrpcSettings,
    ) -> Result<RateLimitResponse, CallFailure> {
        match self {
            Self::Envoy(answer) => Ok(wire::response(asked, answer, settings)),
            Self::Rules(own) => own.response(asked, settings),
        }
    }
}

/// Error of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallFailure {
    /// An error of the library.
    Call(CallError),
    /// It uses a field that a domain of our rules does not support.
    Misuse(&'static str),
}

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(error) => error.fmt(f),
            Self::Misuse(why) => f.write_str(why),
        }
    }
}

fn descriptor<'a>(asked: &RateLimitDescriptor, entries: &'a [Entry<'a>]) -> Descriptor<'a> {
    Descriptor {
        entries,
        limit: asked.limit.as_ref().map(wire::limit),
        hits: asked.hits_addend,
        gives_back: asked.is_negative_hits,
    }
}

#[tonic::async_trait]
impl<S: Store + 'static> RateLimitService for RateLimits<S> {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let asked = request.get_ref();
        let in_flight = request.extensions().get::<Arc<InFlightCall>>();
        if in_flight.is_some_and(|in_flight| !in_flight.may_give_back()) && gives_back(asked) {
            return Err(Status::permission_denied(GIVES_BACK));
        }
        if in_flight.is_some_and(|in_flight| in_flight.refuses(&asked.domain)) {
            return Err(Status::unavailable(NO_RULES));
        }
        let answered = self.decide(asked).await;
        if let Some(in_flight) = in_flight {
            in_flight.count_answer(asked, &answered);
        }
        let answered = answered.map_err(|error| status(&error))?;
        let response = answered.response(asked, &self.settings).map_err(|error| status(&error))?;
        let mut response = Response::new(response);
        response.metadata_mut().insert(RULES_VERSION, MetadataValue::from(answered.version()));
        Ok(response)
    }
}

/// Header with the version of the rules that decided.
pub(crate) const RULES_VERSION: &str = "x-tollgate-rules-version";

/// Error while no rules are loaded.
pub(crate) const NO_RULES: &str = "no rules have been loaded yet";

/// Error of a refund that is not allowed.
pub(crate) const GIVES_BACK: &str =
    "is_negative_hits refunds charges: off loopback it needs --api-token";

/// True if a request asks for a refund.
pub(crate) fn gives_back(asked: &RateLimitRequest) -> bool {
    asked.descriptors.iter().any(|descriptor| descriptor.is_negative_hits)
}

/// The status of an error. An outage is one, too: Envoy then does as its `failure_mode_deny` says,
/// while it lets an unknown code pass.
fn status(error: &CallFailure) -> Status {
    let code = match error {
        // As the reference, whose errors have no code.
        CallFailure::Call(CallError::EmptyDomain | CallError::NoDescriptors) => Code::Unknown,
        CallFailure::Call(CallError::Unavailable(_)) => Code::Unavailable,
        CallFailure::Call(_) | CallFailure::Misuse(_) => Code::InvalidArgument,
    };
    Status::new(code, error.to_string())
}
