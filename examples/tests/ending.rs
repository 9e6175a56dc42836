//! The programs that end by themselves, run as a user would: what they print is what they teach.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::process::{Command, Output};

use tollgate_harness::RedisServer;

/// Runs a program without any store in its environment.
fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_remove("REDIS_URL").env_remove("TOLLGATE_STORE");
    command
}

/// The lines that it printed.
fn printed(output: Output) -> Vec<String> {
    let (out, error) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
    let out = out.unwrap();
    assert!(output.status.success(), "{}: {out}{}", output.status, error.unwrap());
    out.lines().map(str::to_owned).collect()
}

fn run(program: &str) -> Vec<String> {
    printed(command(program).output().unwrap())
}

#[test]
fn tonic_is_told_resource_exhausted_with_the_delay() {
    let lines = run(env!("CARGO_BIN_EXE_example-tonic"));

    let [first, second, refused, delay] = lines.as_slice() else { panic!("{lines:#?}") };
    for (line, left) in [(first, 1), (second, 0)] {
        let fields = format!("answered; ratelimit: \"checks\";r={left};t=");
        assert!(line.starts_with(&fields), "{line}");
    }
    let why = "ResourceExhausted: over the limit; ask again after ";
    assert!(refused.starts_with(why), "{refused}");
    assert!(delay.starts_with("RetryInfo: ") && delay.ends_with('s'), "{delay}");
    assert_ne!(delay, "RetryInfo: 0ns");
}

#[test]
fn outbound_calls_wait_in_order_and_those_beyond_the_patience_fail() {
    let lines = run(env!("CARGO_BIN_EXE_example-outbound"));

    let failed = "failed: the call was not made, because its turn did not come: \
                  not admitted in time; ask again after 5s";
    assert_eq!(
        lines,
        [
            "  0 s: the bank sees payment 1",
            &format!("  0 s: payment 4 {failed}"),
            &format!("  0 s: payment 5 {failed}"),
            " 10 s: the bank sees payment 2",
            " 20 s: the bank sees payment 3",
        ]
    );
}

#[test]
fn instances_on_one_redis_admit_together_what_one_would() {
    let redis = RedisServer::start().unwrap();
    let program = env!("CARGO_BIN_EXE_example-instances");
    let run = |name: &str| printed(command(program).env(name, redis.url()).output().unwrap());

    for name in ["REDIS_URL", "TOLLGATE_STORE"] {
        let lines = run(name);
        assert_eq!(lines.len(), 4, "{lines:#?}");
        assert_eq!(lines[3], "together: 60 passed, where 60 an hour may", "{lines:#?}");
    }
}

#[test]
fn instances_without_a_redis_say_what_to_do() {
    let output = command(env!("CARGO_BIN_EXE_example-instances")).output().unwrap();

    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("redis-server") && said.contains("REDIS_URL="), "{said}");
}

#[test]
fn a_cold_limiter_warms_up_and_gets_cold_again() {
    let lines = run(env!("CARGO_BIN_EXE_example-warm-up"));

    // By the formula: from just below three seconds, a quarter less each time.
    let ramp = ["0.0", "2.9", "2.6", "2.4", "2.1", "1.9", "1.6", "1.4", "1.1", "1.0", "1.0"];
    let query = |(at, waited): (usize, &&str)| format!("  query {at:2} waited {waited} s");
    let mut expected = vec!["cold:".to_owned()];
    expected.extend((1..).zip(&ramp).map(query));
    expected.push("after a minute without queries, cold again:".to_owned());
    expected.extend((1..).zip(&ramp[..3]).map(query));
    assert_eq!(lines, expected);
}

#[test]
fn a_shaper_lets_tasks_go_one_by_one_and_refuses_beyond_its_line() {
    let lines = run(env!("CARGO_BIN_EXE_example-shaper"));

    let full = "not admitted in time; ask again after 500ms";
    assert_eq!(
        lines,
        [
            "0.0 s: mail 1 goes out",
            &format!("0.0 s: no room in line for mail 7: {full}"),
            &format!("0.0 s: no room in line for mail 8: {full}"),
            "0.5 s: mail 2 goes out",
            "1.0 s: mail 3 goes out",
            "1.5 s: mail 4 goes out",
            "2.0 s: mail 5 goes out",
            "2.5 s: mail 6 goes out",
        ]
    );
}

#[test]
fn an_observer_prints_refusals_with_their_reason() {
    let lines = run(env!("CARGO_BIN_EXE_example-observer"));

    assert_eq!(
        lines,
        [
            "refused by the limit of rule login",
            "refused by the block list: 203.0.113.66",
            "2 passed, 2 were refused",
        ]
    );
}
