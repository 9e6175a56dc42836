//! Refusals in gRPC: a response of trailers only, with the details as `google.rpc.Status`.
//!
//! The three messages (`Status`, `RetryInfo`, `QuotaFailure`) have a handful of fields and are written
//! by hand, so that limiting HTTP does not need a protobuf crate.

use std::fmt::Write as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method, Response};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

/// The status code of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum GrpcCode {
    InvalidArgument = 3,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Internal = 13,
    Unavailable = 14,
}

impl GrpcCode {
    #[expect(clippy::as_conversions, reason = "the discriminants are the numbers")]
    const fn number(self) -> u8 {
        self as u8
    }
}

/// True if a request speaks gRPC or gRPC-Web, where trailers are headers here. Only `POST` counts: a
/// refusal has the status 200, which caches keep for other methods.
pub(super) fn is_grpc(request: &Parts) -> bool {
    request.method == Method::POST && content_type(&request.headers).is_some()
}

fn content_type(headers: &HeaderMap) -> Option<&HeaderValue> {
    headers.get(CONTENT_TYPE).filter(|value| {
        let rest = value.as_bytes().strip_prefix(b"application/grpc");
        rest.is_some_and(|rest| rest.first().is_none_or(|byte| b"+-;".contains(byte)))
    })
}

/// A response of trailers only.
pub(super) fn response(
    request: &HeaderMap,
    code: GrpcCode,
    message: &str,
    retry: Option<Duration>,
    policies: &[String],
) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    let fallback = || HeaderValue::from_static("application/grpc");
    headers.insert(CONTENT_TYPE, content_type(request).cloned().unwrap_or_else(fallback));
    headers.insert(STATUS, u16::from(code.number()).into());
    if let Ok(message) = HeaderValue::from_str(&percent_encoded(message)) {
        headers.insert(MESSAGE, message);
    }
    let details = status(code, message, retry, policies);
    if let Ok(details) = HeaderValue::from_str(&STANDARD_NO_PAD.encode(details)) {
        headers.insert(DETAILS, details);
    }
    response
}

/// `google.rpc.Status { code = 1, message = 2, details = 3 }`
fn status(code: GrpcCode, message: &str, retry: Option<Duration>, policies: &[String]) -> Vec<u8> {
    let mut status = Vec::new();
    number(1, u64::from(code.number()), &mut status);
    bytes(2, message.as_bytes(), &mut status);
    if let Some(retry) = retry {
        // RetryInfo { retry_delay = 1 }, Duration { seconds = 1, nanos = 2 }
        let (mut delay, mut info) = (Vec::new(), Vec::new());
        number(1, retry.as_secs(), &mut delay);
        number(2, u64::from(retry.subsec_nanos()), &mut delay);
        bytes(1, &delay, &mut info);
        detail("type.googleapis.com/google.rpc.RetryInfo", &info, &mut status);
    }
    if !policies.is_empty() {
        // QuotaFailure { violations = 1 }, Violation { subject = 1, description = 2 }
        let mut failure = Vec::new();
        for policy in policies {
            let mut violation = Vec::new();
            bytes(1, policy.as_bytes(), &mut violation);
            bytes(2, message.as_bytes(), &mut violation);
            bytes(1, &violation, &mut failure);
        }
        detail("type.googleapis.com/google.rpc.QuotaFailure", &failure, &mut status);
    }
    status
}

/// `google.protobuf.Any { type_url = 1, value = 2 }` among the details.
fn detail(url: &str, value: &[u8], status: &mut Vec<u8>) {
    let mut any = Vec::new();
    bytes(1, url.as_bytes(), &mut any);
    bytes(2, value, &mut any);
    bytes(3, &any, status);
}

/// A field that is a number; 0 is not written.
fn number(field: u8, number: u64, out: &mut Vec<u8>) {
    if number > 0 {
        out.push(field << 3);
        varint(number, out);
    }
}

/// A field that is bytes, text or a message.
fn bytes(field: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(field << 3 | 2);
    varint(u64::try_from(bytes.len()).unwrap_or(u64::MAX), out);
    out.extend_from_slice(bytes);
}

fn varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(u8::try_from(number & 0x7f).unwrap_or_default() | 0x80);
        number >>= 7;
    }
    out.push(u8::try_from(number).unwrap_or_default());
}

/// Escapes `%` and everything but printable ASCII, as gRPC does in messages.
pub(super) fn percent_encoded(message: &str) -> String {
    let mut out = String::with_capacity(message.len());
    for byte in message.bytes() {
        if (b' '..=b'~').contains(&byte) && byte != b'%' {
            out.push(char::from(byte));
        } else {
            // Writing into a string does not fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}
