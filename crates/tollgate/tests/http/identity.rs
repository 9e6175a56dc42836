//! C10 to C12: keys of who users are, and of what they call themselves.

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::routing::get;
use axum::{Router, response::Response};
use tollgate::http::LimitLayer;

use crate::common::{on, rule, rules};
use crate::wire::{Server, limiter, serve, serve_app};

/// One may pass for each pair of tenant and user, which come as hexadecimal digits, and may be
/// repeated, so that headers can carry any bytes.
async fn server() -> Server {
    let limiter = limiter(rules(1, [rule("per-user", &["tenant", "user"], &["1 per 1h"])]));
    let layer = LimitLayer::new(limiter, "shop")
        .attribute("tenant", |request| Some(bytes(request, "x-tenant")?.into()))
        .attribute("user", |request| Some(bytes(request, "x-user")?.into()));
    serve(layer).await
}

fn bytes(request: &http::request::Parts, name: &str) -> Option<Vec<u8>> {
    let text = request.headers.get(name)?.to_str().unwrap();
    let (digits, times) = text.split_once('*').unwrap_or((text, "1"));
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
    Some(bytes.repeat(times.parse().unwrap()))
}

impl Server {
    async fn as_user(&self, tenant: &[u8], user: &[u8], times: usize) -> u16 {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let tenant = format!("X-Tenant: {}", hex(tenant));
        let user = format!("X-User: {}*{times}", hex(user));
        self.get(&[&tenant, &user]).await.status
    }
}

/// The user who has shown the one token that there is.
#[derive(Clone)]
struct VerifiedUser(&'static str);

async fn verify(mut request: Request, next: Next) -> Response {
    let shown = request.headers().get("authorization").and_then(|shown| shown.to_str().ok());
    let mut words = shown.unwrap_or_default().split_whitespace();
    let scheme = words.next().unwrap_or_default();
    let token = (scheme.eq_ignore_ascii_case("bearer"), words.next(), words.next());
    if token == (true, Some("k"), None) {
        request.extensions_mut().insert(VerifiedUser("alice"));
    }
    next.run(request).await
}

/// C10
#[tokio::test]
async fn only_who_is_verified_has_a_counter_and_others_have_their_addresses() {
    let of_user = on(rule("per-user", &["user"], &["3 per 1h"]), "known", "yes");
    let of_address = on(rule("per-ip", &["ip"], &["2 per 1h"]), "known", "no");
    let layer = LimitLayer::new(limiter(rules(1, [of_user, of_address])), "shop")
        .attribute("user", |request| Some(request.extensions.get::<VerifiedUser>()?.0.into()))
        .attribute("known", |request| {
            let known = request.extensions.get::<VerifiedUser>().is_some();
            Some(if known { "yes" } else { "no" }.into())
        });
    let app = Router::new().route("/", get(|| async { "ok" })).layer(layer).layer(from_fn(verify));
    let server = serve_app(app).await;

    let verified = ["Bearer k", "bearer   k", "BEARER\tk ", "Bearer k"];
    for (at, shown) in verified.into_iter().enumerate() {
        let reply = server.get(&[&format!("Authorization: {shown}")]).await;
        assert_eq!(reply.status, if at < 3 { 200 } else { 429 }, "{shown}");
    }
    let others = ["n1 Bearer k", "Bearer n2", "Bearer k n3", "Basic k", "", "Bearer"];
    for (at, shown) in others.into_iter().enumerate() {
        let reply = server.get(&[&format!("Authorization: {shown}")]).await;
        assert_eq!(reply.status, if at < 2 { 200 } else { 429 }, "{shown}");
        assert_eq!(reply.field("ratelimit-policy"), Some("\"per-ip\";q=2;w=3600"), "{shown}");
    }
}

/// C11
#[tokio::test]
async fn users_of_any_bytes_are_told_apart() {
    let server = server().await;
    let users: [&[u8]; 14] = [
        b"",
        b":",
        b"|",
        b"{",
        b"}",
        b"{}",
        b"a:b",
        b"\0",
        b"\n",
        b"a\0",
        b"\xff\xfe",
        b"t1:a",
        b"1:a",
        b"{tag}",
    ];

    for user in users {
        assert_eq!(server.as_user(b"t", user, 1).await, 200, "{user:?}");
    }
    for user in users {
        assert_eq!(server.as_user(b"t", user, 1).await, 429, "{user:?} is still the same");
    }
}

/// C11
#[tokio::test]
async fn long_users_are_told_apart_up_to_a_mebibyte_and_refused_beyond() {
    let server = server().await;

    for times in [255, 256, 257, 258, 1 << 16, (1 << 20) - 1, 1 << 20] {
        assert_eq!(server.as_user(b"t", b"u", times).await, 200, "{times}");
        assert_eq!(server.as_user(b"t", b"u", times).await, 429, "{times}");
    }
    assert_eq!(server.as_user(b"t", b"u", (1 << 20) + 1).await, 400);
}

/// C12
#[tokio::test]
async fn pairs_that_join_to_the_same_text_are_two_keys() {
    let server = server().await;
    let pairs: [(&[u8], &[u8]); 6] = [
        (b"ab", b"c"),
        (b"a", b"bc"),
        (b"", b"abc"),
        (b"abc", b""),
        (b"a", b"b:c"),
        (b"a:b", b"c"),
    ];

    for (tenant, user) in pairs {
        assert_eq!(server.as_user(tenant, user, 1).await, 200, "{tenant:?} {user:?}");
    }
    for (tenant, user) in pairs {
        assert_eq!(server.as_user(tenant, user, 1).await, 429, "{tenant:?} {user:?}");
    }
}
