//! C1 to C8, E40: whose bucket a request lands in, whatever its headers say.
//!
//! The peer of every connection here is 127.0.0.1. Two may pass per address.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate::http::{LimitLayer, Trust};
use tollgate_core::testing::Rng;

use crate::common::{rule, rules};
use crate::wire::{Server, limiter, serve};

async fn server(trust: Trust) -> Server {
    let limiter = limiter(rules(1, [rule("per-ip", &["ip"], &["2 per 1h"])]));
    serve(LimitLayer::new(limiter, "shop").trust(trust)).await
}

/// Behind a proxy of ours at 127.0.0.1.
async fn behind_a_proxy() -> Server {
    server(Trust::proxies(["127.0.0.1", "10.0.0.0/8"]).unwrap()).await
}

/// Returns true if all of these land in one bucket, in which only two may pass.
async fn share_one_bucket(server: &Server, headers: &[&[&str]]) {
    assert!(headers.len() > 2, "or nothing is shown");
    for (at, lines) in headers.iter().enumerate() {
        let expected = if at < 2 { 200 } else { 429 };
        assert_eq!(server.get(lines).await.status, expected, "{lines:?}");
    }
}

/// C1
#[tokio::test]
async fn addresses_that_an_untrusted_peer_claims_land_in_one_bucket() {
    let mut rng = Rng::new(1);
    for trust in [Trust::nobody(), Trust::proxies(["10.0.0.0/8"]).unwrap()] {
        let server = server(trust).await;
        let claims: Vec<String> = (0..6)
            .map(|_| {
                format!("X-Forwarded-For: {}", std::net::Ipv4Addr::from_bits(rng.any() as u32))
            })
            .collect();
        let lines: Vec<[&str; 1]> = claims.iter().map(|claim| [claim.as_str()]).collect();
        let lines: Vec<&[&str]> = lines.iter().map(|line| &line[..]).collect();

        share_one_bucket(&server, &lines).await;
    }
}

/// C2
#[tokio::test]
async fn hops_are_walked_from_the_right_and_never_past_what_exists() {
    let server = behind_a_proxy().await;
    let fifty = format!("X-Forwarded-For: 7.7.7.7{}", ", 10.0.0.9".repeat(49));

    share_one_bucket(
        &server,
        &[
            &["X-Forwarded-For: 7.7.7.7"],
            &["X-Forwarded-For: 6.6.6.6, 7.7.7.7, 10.0.0.1, 10.0.0.2"],
            &[&fifty],
        ],
    )
    .await;
    assert_eq!(server.statuses(3, &["X-Forwarded-For: 10.1.1.1"]).await, [200, 200, 429]);
}

/// C2
#[tokio::test]
async fn more_hops_than_there_can_be_are_a_bad_request() {
    let server = behind_a_proxy().await;
    let hops = format!("X-Forwarded-For: 7.7.7.7{}", ", 10.0.0.9".repeat(50));
    let bytes = format!("X-Forwarded-For: {}", "7.7.7.7 ".repeat(600));

    for line in [&hops, &bytes] {
        let reply = server.get(&[line]).await;
        assert_eq!(reply.status, 400);
        assert!(reply.body.contains("more than 50 hops or 4096 bytes"), "{}", reply.body);
    }
}

/// C3
#[tokio::test]
async fn ports_are_dropped_and_what_is_no_address_ends_the_walk() {
    let server = behind_a_proxy().await;

    share_one_bucket(
        &server,
        &[
            &["X-Forwarded-For: 1.2.3.4:80"],
            &["X-Forwarded-For: 1.2.3.4"],
            &["X-Forwarded-For: _hidden, 1.2.3.4:443"],
        ],
    )
    .await;
    // All of these are 10.0.0.7, the last that is believed.
    share_one_bucket(
        &server,
        &[
            &["X-Forwarded-For: 1.2.3.4:80, [2001:db8::1]:443, unknown, 10.0.0.7"],
            &["X-Forwarded-For: 8.8.8.8, _hidden, 10.0.0.7:80"],
            &["X-Forwarded-For: 9.9.9.9, 1.2.3.4.5, 10.0.0.7"],
        ],
    )
    .await;
}

/// C4
#[tokio::test]
async fn lines_of_any_case_with_tabs_are_one_list_in_order() {
    let server = behind_a_proxy().await;

    share_one_bucket(
        &server,
        &[
            &["X-Forwarded-For: 6.6.6.6, 7.7.7.7, 10.0.0.1"],
            &["x-forwarded-for: 5.5.5.5", "X-FORWARDED-FOR:\t7.7.7.7\t,\t10.0.0.1"],
            &["X-Forwarded-for: 4.4.4.4,7.7.7.7", "x-Forwarded-For: 10.0.0.2 , 10.0.0.1"],
        ],
    )
    .await;
}

/// C5, as far as a layer goes: it strips nothing, so nothing it needs is stripped.
#[tokio::test]
async fn a_connection_field_that_names_the_address_field_hides_nothing() {
    let server = behind_a_proxy().await;

    share_one_bucket(
        &server,
        &[
            &["X-Forwarded-For: 7.7.7.7"],
            &["Connection: X-Forwarded-For, X-User-Id", "X-Forwarded-For: 7.7.7.7"],
            &["X-Forwarded-For: 7.7.7.7", "Connection: x-forwarded-for"],
        ],
    )
    .await;
}

/// C6
#[tokio::test]
async fn other_address_fields_are_ignored_unless_configured() {
    let others: [&[&str]; 4] = [
        &["Forwarded: for=\"[::1]\""],
        &["X-Real-IP: 6.6.6.6"],
        &["True-Client-IP: 6.6.6.6"],
        &["CF-Connecting-IP: 6.6.6.6"],
    ];
    share_one_bucket(&behind_a_proxy().await, &others).await;

    let ours = || Trust::proxies(["127.0.0.1"]).unwrap();
    let forwarded = server(ours().by_forwarded()).await;
    assert_eq!(forwarded.statuses(3, &["Forwarded: for=\"[2001:db8::1]\""]).await, [200, 200, 429]);
    assert_eq!(forwarded.get(&["Forwarded: for=192.0.2.1;proto=http"]).await.status, 200);
    let real = server(ours().by_header("x-real-ip".parse().unwrap())).await;
    assert_eq!(real.statuses(3, &["X-Real-IP: 6.6.6.6"]).await, [200, 200, 429]);
    assert_eq!(real.get(&["X-Real-IP: 6.6.6.7"]).await.status, 200);
}

/// C7
#[tokio::test]
async fn mapped_and_plain_forms_land_in_one_bucket() {
    let server = behind_a_proxy().await;

    share_one_bucket(
        &server,
        &[
            &["X-Forwarded-For: ::ffff:1.2.3.4"],
            &["X-Forwarded-For: ::ffff:102:304"],
            &["X-Forwarded-For: 1.2.3.4"],
            &["X-Forwarded-For: [0:0:0:0:0:FFFF:1.2.3.4]:443"],
        ],
    )
    .await;
    share_one_bucket(
        &server,
        &[
            &["X-Forwarded-For: 2001:db8::1.2.3.4"],
            &["X-Forwarded-For: 2001:db8:0:0::1"],
            &["X-Forwarded-For: 2001:DB8::"],
        ],
    )
    .await;
}

/// C8
#[tokio::test]
async fn all_addresses_of_one_network_of_64_bits_land_in_one_bucket() {
    let server = behind_a_proxy().await;
    let mut rng = Rng::new(8);

    for at in 0..20 {
        let address =
            std::net::Ipv6Addr::from_bits(0x2001_0db8_0007_0001 << 64 | u128::from(rng.any()));
        let reply = server.get(&[&format!("X-Forwarded-For: {address}")]).await;
        assert_eq!(reply.status, if at < 2 { 200 } else { 429 }, "{address}");
    }
    assert_eq!(server.get(&["X-Forwarded-For: 2001:db8:7:2::1"]).await.status, 200, "the next one");
    share_one_bucket(
        &server,
        &[
            &["X-Forwarded-For: fe80::1%eth0"],
            &["X-Forwarded-For: [fe80::1%25wlan0]:80"],
            &["X-Forwarded-For: fe80::1"],
        ],
    )
    .await;
}

/// C9, as far as a layer goes: nothing reads the PROXY protocol, so to HTTP it is a mistake, and
/// the connection ends.
#[tokio::test]
async fn the_proxy_protocol_is_no_http_and_names_nobody() {
    let server = behind_a_proxy().await;
    let request = b"GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n";
    let v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11";
    let address = [0, 12, 6, 6, 6, 6, 7, 7, 7, 7, 0, 1, 0, 2];
    let large = [&v2[..], &[0xff; 2], &[0; 0xffff]].concat();
    let hellos = [
        &b"PROXY TCP4 6.6.6.6 7.7.7.7 1 2\r\n"[..],
        b"PROXY UNKNOWN\r\n",
        &[&v2[..], &address].concat(),
        v2,
        &large,
    ];

    for hello in hellos {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        // A client that the server disconnects may neither send all of its request nor read the reply.
        let _ = stream.write_all(&[hello, request].concat()).await;
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply).await;
        let reply = String::from_utf8(reply).unwrap();
        assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 400 "), "{reply}");
    }
    assert_eq!(server.statuses(3, &[]).await, [200, 200, 429], "nothing was counted");
}

/// E40; thousands more of these, without sockets, in `src/http/client.rs`.
#[tokio::test]
async fn prepending_anything_changes_nothing() {
    let server = behind_a_proxy().await;
    let mut rng = Rng::new(40);
    let parts =
        ["10.0.0.2", "6.6.6.6", ", ", ",", "\"", "unknown", "[", ":80", " ", "é", "fd00::1"];

    for at in 0..60 {
        let anything: String = (0..rng.below(9)).map(|_| rng.pick(&parts)).collect();
        let one = format!("X-Forwarded-For: {anything}, 7.7.7.7, 10.0.0.1");
        let (first, second) = (format!("X-Forwarded-For: {anything}"), "X-Forwarded-For: 7.7.7.7");
        let lines: &[&str] = if at % 2 == 0 { &[&one] } else { &[&first, second] };
        assert_eq!(server.get(lines).await.status, if at < 2 { 200 } else { 429 }, "{anything}");
    }
}

#[tokio::test]
async fn rules_by_address_without_a_peer_are_a_mistake_that_is_told() {
    use tower::ServiceExt;
    let limiter = limiter(rules(1, [rule("per-ip", &["ip"], &["2 per 1h"])]));
    let app = |layer| axum::Router::new().fallback(|| async { "ok" }).layer(layer);
    let request = || http::Request::new(axum::body::Body::empty());

    let silent = app(LimitLayer::new(limiter.clone(), "shop"));
    assert_eq!(silent.oneshot(request()).await.unwrap().status(), 500);

    let on_purpose = app(LimitLayer::new(limiter, "shop").peer(|_| None));
    assert_eq!(on_purpose.oneshot(request()).await.unwrap().status(), 200, "on-missing: skip");
}
