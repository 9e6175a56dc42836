//! Reaching a server, and being refused by one.

use tollgate_harness::RedisServer;

use super::*;
use crate::checks::Warning;
use crate::error::ConnectErrorKind;

async fn refused(config: Config) -> ConnectError {
    Link::connect(&config, COUNT).await.map(|_| ()).unwrap_err()
}

fn missing(link: &Link) -> Option<(&[String], bool)> {
    link.warnings().iter().find_map(|warning| match warning {
        Warning::MissingPermissions { commands, keys, .. } => Some((commands.as_slice(), *keys)),
        _ => None,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tcp_and_a_unix_socket() {
    let server = RedisServer::start().unwrap();

    let tcp = link(without_timeout(&server.url())).await;
    let unix = link(without_timeout(&server.unix_url())).await;

    assert_eq!((count(&tcp).await, count(&unix).await), (1, 2));
    assert_eq!(missing(&tcp), None);
    let health = RedisStats { connected: 1, noscript: 1, ..RedisStats::default() };
    assert_eq!(tcp.health(), health);
    assert_eq!(unix.health(), RedisStats { noscript: 0, ..health });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn into_another_database() {
    let server = RedisServer::start().unwrap();

    let link = link(without_timeout(&format!("{}/3", server.url()))).await;

    assert_eq!(count(&link).await, 1);
    assert_eq!(stored(&server), 0, "the harness looks at database 0");
    let error = refused(without_timeout(&server.url()).db(9_999)).await;
    assert_eq!(error.kind(), ConnectErrorKind::Settings);
    assert!(error.to_string().ends_with("has no database 9999"), "{error}");
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tls_to_a_server_that_is_trusted() {
    let server = RedisServer::builder().tls().start().unwrap();
    let tls = server.tls().unwrap();

    let link = link(without_timeout(&tls.url()).tls_ca_file(tls.ca_file())).await;
    assert_eq!(count(&link).await, 1);

    let stranger = RedisServer::builder().tls().start().unwrap();
    let stranger = stranger.tls().unwrap();
    let error = refused(without_timeout(&stranger.url()).tls_ca_file(tls.ca_file())).await;
    assert_eq!(error.kind(), ConnectErrorKind::Settings);
    assert!(error.to_string().ends_with("is not trusted"), "{error}");

    let error = refused(without_timeout(&tls.url()).tls_ca_file("/nonexistent")).await;
    assert_eq!(error.kind(), ConnectErrorKind::Settings);
    assert_eq!(error.to_string(), "/nonexistent cannot be used for TLS");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_recommended_user_needs_nothing_more() {
    let server = RedisServer::start().unwrap();
    let config = without_timeout(&server.url()).user("alice").password("hush");
    // A user without permissions gets the list of those to ask for.
    server.command(&[b"ACL", b"SETUSER", b"alice", b"on", b">hush", b"+ping"]).unwrap();
    let powerless = link(config.clone()).await;
    let Some(Warning::MissingPermissions { acl, .. }) =
        powerless.warnings().iter().find(|w| matches!(w, Warning::MissingPermissions { .. }))
    else {
        panic!("{:?}", powerless.warnings());
    };
    let line = acl.replace("<password>", "hush");
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    server.command(&words).unwrap();
    // The test's script stores replies outside `tg:` only when called with an id.
    let link = link(config).await;

    assert_eq!(count(&link).await, 1);
    assert_eq!(missing(&link), None, "{:?}", link.warnings());
    assert!(!link.warnings().iter().any(|w| matches!(w, Warning::Unchecked { .. })));
    let refused = run(&powerless).await;
    assert!(refused.is_ok(), "rights given later count for connections made before: {refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_rights_are_named() {
    let start = |rights: &str| {
        let user = format!("user alice on >hush {rights}");
        let server = RedisServer::builder().config(user).start().unwrap();
        let config = without_timeout(&server.url()).user("alice").password("hush");
        (server, config)
    };

    let (_server, config) = start("~tg:* +@all -set -zadd -config");
    let lacks_commands = link(config).await;
    assert_eq!(missing(&lacks_commands), Some((&["set".to_owned(), "zadd".to_owned()][..], false)));

    let (_server, config) = start("~other:* +@all");
    let lacks_keys = link(config).await;
    assert_eq!(missing(&lacks_keys), Some((&[][..], true)));

    let (_server, config) = start("~tg:* -@all +ping +time +evalsha");
    let lacks_eval = link(config).await;
    assert_eq!(missing(&lacks_eval), Some((&["eval".to_owned()][..], false)));
    let unchecked = |w: &&Warning| matches!(w, Warning::Unchecked { .. });
    assert_eq!(lacks_eval.warnings().iter().filter(unchecked).count(), 2, "INFO was forbidden");
    let error = run(&lacks_eval).await.unwrap_err();
    assert_eq!((error.kind(), code(&error)), (StoreErrorKind::Unavailable, "NOPERM".to_owned()));
    assert!(!lacks_eval.health().breaker_open, "it answers, if only to refuse");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_a_clear_error() {
    let server = RedisServer::builder().config("requirepass right").start().unwrap();
    let config = without_timeout(&server.url());

    let error = refused(config.clone().password("hush")).await;
    assert_eq!(error.kind(), ConnectErrorKind::Authentication);
    let address = server.address();
    let expected = format!("redis at {address} does not accept the password of user \"default\"");
    assert_eq!(error.to_string(), expected);

    let error = refused(config.clone()).await;
    assert_eq!(error.kind(), ConnectErrorKind::Authentication);
    let expected = format!("redis at {address} requires a password, and none is configured");
    assert_eq!(error.to_string(), expected);

    let open = RedisServer::start().unwrap();
    let error = refused(without_timeout(&open.url()).password("hush")).await;
    assert_eq!(error.kind(), ConnectErrorKind::Authentication);

    let right = link(config.password("right")).await;
    assert_eq!(count(&right).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_missing_is_waited_for() {
    let server = RedisServer::start().unwrap();
    server.kill().unwrap();

    let link = link(without_timeout(&server.url())).await;
    let error = run(&link).await.unwrap_err();
    assert_failed(&error, StoreErrorKind::Unavailable, &Cause::NotConnected);
    assert_eq!(link.warnings(), []);
    assert_eq!(link.health(), RedisStats::default());

    server.restart().unwrap();
    assert_eq!(recovered(&link).await, 1);
    assert_eq!(link.health().reconnects, 0, "it was the first connection");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_evicts_is_warned_of() {
    let server = RedisServer::builder()
        .config("maxmemory 100mb")
        .config("maxmemory-policy allkeys-lru")
        .start()
        .unwrap();

    let link = link(without_timeout(&server.url())).await;

    let expected = Warning::Evicts { policy: "allkeys-lru".to_owned(), maxmemory: 100 << 20 };
    assert!(link.warnings().contains(&expected), "{:?}", link.warnings());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_connections_take_turns() {
    let (_server, proxy, link) = proxied(|url| without_timeout(url).connections(3)).await;
    until("three connections", || link.health().connected == 3).await;

    let turns: Vec<_> = (0..6).map(|_| link.shared.pick().unwrap().1).collect();
    assert!((0..3).all(|turn| turns[turn].is(&turns[turn + 3])));
    assert!(!turns[0].is(&turns[1]) && !turns[1].is(&turns[2]) && !turns[0].is(&turns[2]));
    assert_eq!(proxy.connections(), 3);
    assert_eq!(count(&link).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_link_closes_its_connections() {
    let server = RedisServer::start().unwrap();
    let clients = || match server.command(&[b"CLIENT", b"LIST"]).unwrap() {
        Raw::Bulk(list) => String::from_utf8(list).unwrap().lines().count(),
        other => panic!("{other:?}"),
    };
    let before = clients();
    let link = link(without_timeout(&server.url()).connections(2)).await;
    until("two connections", || clients() == before + 2).await;

    drop(link);

    until("no connection", || clients() == before).await;
}
