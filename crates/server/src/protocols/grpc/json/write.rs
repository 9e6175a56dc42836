//! A response into JSON: fields with default values are left out, as protocol buffers do.

use prost_types::Struct;
use prost_types::value::Kind;
use serde_json::{Value, json};

use crate::protocols::grpc::proto::envoy::config::core::v3::HeaderValue;
use crate::protocols::grpc::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::protocols::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};

/// The status of HTTP for a response.
pub fn status(response: &RateLimitResponse) -> u16 {
    match response.overall_code() {
        Code::Ok => 200,
        Code::OverLimit => 429,
        Code::Unknown => 500,
    }
}

/// Writes a response.
pub fn write(response: &RateLimitResponse) -> String {
    let statuses = response.statuses.iter().map(descriptor_status).collect();
    let header = |header: &HeaderValue| json!({ "key": header.key, "value": header.value });
    let headers = response.response_headers_to_add.iter().map(header).collect();
    let fields = [
        ("overallCode", code(response.overall_code())),
        ("statuses", Value::Array(statuses)),
        ("responseHeadersToAdd", Value::Array(headers)),
        ("dynamicMetadata", response.dynamic_metadata.as_ref().map_or(Value::Null, structure)),
    ];
    object(fields).to_string()
}

fn descriptor_status(status: &DescriptorStatus) -> Value {
    let left = status.duration_until_reset.as_ref();
    object([
        ("code", code(status.code())),
        ("currentLimit", status.current_limit.as_ref().map_or(Value::Null, rate_limit)),
        ("limitRemaining", json!(status.limit_remaining)),
        ("durationUntilReset", left.map_or(Value::Null, |it| json!(format!("{}s", it.seconds)))),
    ])
}

fn rate_limit(limit: &RateLimit) -> Value {
    object([
        ("requestsPerUnit", json!(limit.requests_per_unit)),
        ("unit", json!(limit.unit().as_str_name())),
        ("name", json!(limit.name)),
    ])
}

fn code(code: Code) -> Value {
    match code {
        Code::Unknown => Value::Null,
        code => json!(code.as_str_name()),
    }
}

fn structure(metadata: &Struct) -> Value {
    let fields = metadata.fields.iter();
    Value::Object(fields.map(|(key, value)| (key.clone(), free_form(value))).collect())
}

fn free_form(value: &prost_types::Value) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(flag)) => json!(flag),
        Some(Kind::NumberValue(number)) => json!(number),
        Some(Kind::StringValue(text)) => json!(text),
        Some(Kind::ListValue(list)) => Value::Array(list.values.iter().map(free_form).collect()),
        Some(Kind::StructValue(fields)) => structure(fields),
    }
}

/// An object of the fields that differ from their defaults.
fn object<const COUNT: usize>(fields: [(&str, Value); COUNT]) -> Value {
    let says = |value: &Value| match value {
        Value::Null => false,
        Value::Number(number) => number.as_u64() != Some(0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Bool(_) | Value::Object(_) => true,
    };
    let fields = fields.into_iter().filter(|(_, value)| says(value));
    Value::Object(fields.map(|(name, value)| (name.to_owned(), value)).collect())
}
