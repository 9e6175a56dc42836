//! C11, C12: keys of what users call themselves.

use tollgate::http::LimitLayer;

use crate::common::{rule, rules};
use crate::wire::{Server, limiter, serve};

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
