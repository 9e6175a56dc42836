//! The Redis protocol as real clients speak it.

use std::net::SocketAddr;
use std::process::Command;

use super::support::{metric, start};

/// Output of a program.
fn run(program: &str, address: SocketAddr, words: &[&str]) -> String {
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let output =
        Command::new(program).args(["-h", &host, "-p", &port]).args(words).output().unwrap_or_else(
            |error| panic!("{program} does not run ({error}): see .ci/redis-is-here"),
        );
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_cli_speaks_both_protocols() {
    let running = start().await;
    let cli = |words: &[&str]| run("redis-cli", running.resp, words);

    assert_eq!(cli(&["CL.THROTTLE", "user123", "15", "30", "60"]), "0\n16\n15\n-1\n2\n");
    assert_eq!(cli(&["--no-raw", "DEL", "user123"]), "(integer) 1\n");
    let checked = cli(&["-3", "--json", "TG.CHECK", "shop", "1", "user", "alice"]);
    let checked: serde_json::Value = serde_json::from_str(&checked).unwrap();
    assert_eq!(checked["allowed"], 1);
    assert_eq!(checked["remaining"], 2);
    assert_eq!(checked["rule"], serde_json::Value::Null);
    assert!(cli(&["INFO"]).contains("tollgate_version:"));
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_benchmark_is_served_and_every_command_counted() {
    let running = start().await;

    for (pipeline, clients) in [("1", "4"), ("32", "10")] {
        run(
            "redis-benchmark",
            running.resp,
            &[
                "-n",
                "6400",
                "-P",
                pipeline,
                "-c",
                clients,
                "-r",
                "100",
                "-q",
                "CL.THROTTLE",
                "key:__rand_int__",
                "15",
                "30",
                "60",
            ],
        );
    }

    let outcome = |outcome: &str| {
        metric(
            running.admin,
            &format!("tollgate_requests_total{{protocol=\"cl.throttle\",outcome=\"{outcome}\"}}"),
        )
    };
    let (allowed, refused) = (outcome("allowed"), outcome("refused"));
    assert!(allowed + refused >= 12_800, "{allowed} + {refused}");
    assert!(allowed >= 1_600, "a hundred keys of sixteen each");
    assert_eq!(outcome("error"), 0);
}
