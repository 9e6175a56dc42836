//! A server behind TLS, seen by Redis's own client.
#![cfg(feature = "tls")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::process::Command;

use tollgate_harness::RedisServer;

/// The output of `redis-cli` (package redis-tools) for a PING under these options.
fn ping(url: &str, options: &[&str]) -> String {
    let output = Command::new("redis-cli")
        .args(["-u", url])
        .args(options)
        .arg("PING")
        .output()
        .unwrap_or_else(|error| panic!("redis-cli: {error}; apt-get install redis-tools"));
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn only_who_trusts_the_authority_connects() {
    let server = RedisServer::builder().tls().start().unwrap();
    let stranger = RedisServer::builder().tls().start().unwrap();
    let tls = server.tls().unwrap();
    let ca = tls.ca_file().to_str().unwrap();
    let other_ca = stranger.tls().unwrap().ca_file().to_str().unwrap();

    assert_eq!(ping(&tls.url(), &["--cacert", ca]), "PONG\n");
    assert!(ping(&tls.url(), &["--cacert", other_ca]).contains("certificate verify failed"));

    server.restart().unwrap();
    assert_eq!(ping(&tls.url(), &["--cacert", ca]), "PONG\n");
    assert_eq!(ping(&server.url(), &[]), "PONG\n", "the plain port stays");
}
