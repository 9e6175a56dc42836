//! A response into JSON: fields that say nothing are left out, as protocol buffers do.

use prost_types::Struct;
use prost_types::value::Kind;
use serde_json::{Map, Value, json};

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
    let mut fields = Map::new();
    put(&mut fields, "overallCode", code(response.overall_code()));
    let statuses = response.statuses.iter().map(descriptor_status).collect();
    put(&mut fields, "statuses", Value::Array(statuses));
    let header = |header: &crate::protocols::grpc::proto::envoy::config::core::v3::HeaderValue| json!({ "key": header.key, "value": header.value });
    let headers = response.response_headers_to_add.iter().map(header).collect();
    put(&mut fields, "responseHeadersToAdd", Value::Array(headers));
    if let Some(metadata) = &response.dynamic_metadata {
        fields.insert("dynamicMetadata".to_owned(), structure(metadata));
    }
    Value::Object(fields).to_string()
}

fn descriptor_status(status: &DescriptorStatus) -> Value {
    let mut fields = Map::new();
    put(&mut fields, "code", code(status.code()));
    if let Some(limit) = &status.current_limit {
        fields.insert("currentLimit".to_owned(), rate_limit(limit));
    }
    put(&mut fields, "limitRemaining", json!(status.limit_remaining));
    if let Some(left) = &status.duration_until_reset {
        fields.insert("durationUntilReset".to_owned(), json!(format!("{}s", left.seconds)));
    }
    Value::Object(fields)
}

fn rate_limit(limit: &RateLimit) -> Value {
    let mut fields = Map::new();
    put(&mut fields, "requestsPerUnit", json!(limit.requests_per_unit));
    put(&mut fields, "unit", json!(limit.unit().as_str_name()));
    put(&mut fields, "name", json!(limit.name));
    Value::Object(fields)
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

/// A field, unless it says nothing.
fn put(fields: &mut Map<String, Value>, name: &str, value: Value) {
    let says = match &value {
        Value::Null => false,
        Value::Number(number) => number.as_u64() != Some(0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Bool(_) | Value::Object(_) => true,
    };
    if says {
        fields.insert(name.to_owned(), value);
    }
}
