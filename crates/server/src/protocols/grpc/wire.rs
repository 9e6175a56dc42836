//! Conversion between messages and the library's calls and answers.

use prost_types::value::Kind;
use prost_types::{Duration, ListValue, Struct, Value};
use tollgate::envoy::{self, Code, EnvoyAnswer, Override, Status, Unit};

use super::proto::envoy::config::core::v3::HeaderValue;
use super::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use super::proto::envoy::service::ratelimit::v3::rate_limit_response as response;
use super::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use super::proto::envoy::r#type::v3::RateLimitUnit;
use super::settings::{Enforcement, GrpcSettings, HeaderNames, Metadata};

/// The limit that comes with a descriptor.
pub(super) fn limit(limit: &RateLimitOverride) -> Override {
    // Units have the same names in requests and in answers.
    let name = RateLimitUnit::try_from(limit.unit).unwrap_or_default().as_str_name();
    let known = Unit::ALL.into_iter().find(|it| unit(*it).as_str_name() == name);
    Override { requests_per_unit: limit.requests_per_unit, unit: known }
}

/// The message of an answer.
pub(super) fn response(
    asked: &RateLimitRequest,
    answer: &EnvoyAnswer,
    settings: &GrpcSettings,
) -> RateLimitResponse {
    let tightest = answer.tightest().and_then(LimitHeaders::new);
    let statuses = answer.statuses().iter().map(|status| self::status(answer, status)).collect();
    let mut response = frame(asked, answer.code(), statuses, tightest, settings);
    // Merged only if the settings include it.
    if let Some(fields) = &mut response.dynamic_metadata
        && let Some(metadata) = answer.metadata()
    {
        fields.fields.insert("metadata".to_owned(), value(free_form(&metadata)));
    }
    response
}

/// A message with these statuses, and what else the settings want in it.
pub(super) fn frame(
    asked: &RateLimitRequest,
    overall: Code,
    statuses: Vec<response::DescriptorStatus>,
    tightest: Option<LimitHeaders>,
    settings: &GrpcSettings,
) -> RateLimitResponse {
    let overall = match settings.enforcement {
        Enforcement::Enforce => overall,
        Enforcement::Shadow => Code::Ok,
    };
    let headers = settings.headers.as_ref().and_then(|names| Some(tightest?.headers(names)));
    let metadata = match settings.metadata {
        Metadata::Omit => None,
        Metadata::Include => Some(metadata(asked)),
    };
    RateLimitResponse {
        overall_code: code(overall).into(),
        statuses,
        response_headers_to_add: headers.map(Vec::from).unwrap_or_default(),
        dynamic_metadata: metadata,
        ..RateLimitResponse::default()
    }
}

pub(super) const fn code(code: Code) -> response::Code {
    match code {
        Code::Ok => response::Code::Ok,
        Code::OverLimit => response::Code::OverLimit,
    }
}

fn status(answer: &EnvoyAnswer, status: &Status) -> response::DescriptorStatus {
    let current_limit = status.limit.map(|limit| response::RateLimit {
        requests_per_unit: limit.requests_per_unit(),
        unit: unit(limit.unit()).into(),
        name: answer.rule(status).map(|rule| rule.name().to_owned()).unwrap_or_default(),
    });
    response::DescriptorStatus {
        code: code(status.code).into(),
        current_limit,
        limit_remaining: status.remaining,
        duration_until_reset: status.reset_after.map(seconds),
        quota: None,
    }
}

/// Whole seconds.
pub(super) fn seconds(left: std::time::Duration) -> Duration {
    Duration { seconds: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), nanos: 0 }
}

pub(super) const fn unit(unit: Unit) -> response::rate_limit::Unit {
    match unit {
        Unit::Second => response::rate_limit::Unit::Second,
        Unit::Minute => response::rate_limit::Unit::Minute,
        Unit::Hour => response::rate_limit::Unit::Hour,
        Unit::Day => response::rate_limit::Unit::Day,
        Unit::Week => response::rate_limit::Unit::Week,
        Unit::Month => response::rate_limit::Unit::Month,
        Unit::Year => response::rate_limit::Unit::Year,
    }
}

/// The state of a limit, for headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LimitHeaders {
    pub(super) limit: u64,
    pub(super) remaining: u64,
    pub(super) reset_s: u64,
}

impl LimitHeaders {
    fn new(status: &Status) -> Option<Self> {
        let limit = status.limit?;
        Some(Self {
            limit: limit.requests_per_unit().into(),
            remaining: status.remaining.into(),
            // Where the store was not asked, the window ends within its length.
            reset_s: status.reset_after.unwrap_or(limit.unit().period()).as_secs(),
        })
    }

    fn headers(self, names: &HeaderNames) -> [HeaderValue; 3] {
        let header = |key: &str, value: u64| HeaderValue {
            key: key.to_owned(),
            value: value.to_string(),
            raw_value: Vec::new(),
        };
        [
            header(&names.limit, self.limit),
            header(&names.remaining, self.remaining),
            header(&names.reset, self.reset_s),
        ]
    }
}

/// The call.
fn metadata(asked: &RateLimitRequest) -> Struct {
    let descriptors = asked.descriptors.iter().map(descriptor).collect();
    let mut fields = vec![
        ("domain", text(&asked.domain)),
        ("descriptors", Kind::ListValue(ListValue { values: descriptors })),
    ];
    if asked.hits_addend > 0 {
        fields.push(("hitsAddend", Kind::NumberValue(f64::from(asked.hits_addend))));
    }
    structure(fields)
}

fn descriptor(asked: &RateLimitDescriptor) -> Value {
    let entries = asked.entries.iter();
    let values = entries.map(|it| value(text(&format!("{}={}", it.key, it.value)))).collect();
    let mut fields = vec![("entries", Kind::ListValue(ListValue { values }))];
    if let Some(limit) = &asked.limit {
        let unit = RateLimitUnit::try_from(limit.unit).unwrap_or_default().as_str_name();
        let limit = format!("requests_per_unit:{} unit:{unit}", limit.requests_per_unit);
        fields.push(("limit", text(&limit)));
    }
    if let Some(hits) = asked.hits_addend {
        fields.push(("hitsAddend", Kind::NumberValue(double(hits))));
    }
    value(Kind::StructValue(structure(fields)))
}

fn free_form(metadata: &envoy::Metadata) -> Kind {
    match metadata {
        envoy::Metadata::Null => Kind::NullValue(0),
        envoy::Metadata::Bool(flag) => Kind::BoolValue(*flag),
        envoy::Metadata::Number(number) => Kind::NumberValue(*number),
        envoy::Metadata::Text(text) => Kind::StringValue(text.clone()),
        envoy::Metadata::List(items) => {
            let values = items.iter().map(|item| value(free_form(item))).collect();
            Kind::ListValue(ListValue { values })
        }
        envoy::Metadata::Map(fields) => {
            let fields = fields.iter().map(|(key, item)| (&**key, free_form(item)));
            Kind::StructValue(structure(fields))
        }
    }
}

fn structure<'f>(fields: impl IntoIterator<Item = (&'f str, Kind)>) -> Struct {
    let fields = fields.into_iter().map(|(key, kind)| (key.to_owned(), value(kind))).collect();
    Struct { fields }
}

const fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

fn text(text: &str) -> Kind {
    Kind::StringValue(text.to_owned())
}

/// The nearest double.
fn double(number: u64) -> f64 {
    match u32::try_from(number) {
        Ok(small) => f64::from(small),
        Err(_) => number.to_string().parse().unwrap_or(f64::MAX),
    }
}
