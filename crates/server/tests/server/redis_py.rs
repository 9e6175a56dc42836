//! The Redis protocol as redis-py speaks it: RESP2 and RESP3, pipelines, errors, a password.

use std::path::Path;
use std::process::Command;

use super::support::start_with;

#[tokio::test(flavor = "multi_thread")]
async fn redis_py_speaks_both_protocols() {
    let running = start_with(|settings| {
        settings.api_token = Some("said-by-redis-py".parse().unwrap());
    })
    .await;
    let python = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("clients/bin/python");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/redis_py.py");
    let (host, port) = (running.resp.ip().to_string(), running.resp.port().to_string());

    let output = Command::new(&python)
        .args([script, &host, &port, "said-by-redis-py"])
        .output()
        .unwrap_or_else(|error| {
            panic!("{} does not run ({error}): see .ci/redis-py", python.display())
        });

    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.starts_with("redis-py "), "{printed}{wrong}");
}
