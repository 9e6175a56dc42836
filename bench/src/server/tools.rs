//! The load tools, and the number that each of them prints.

use std::net::SocketAddr;
use std::process::Command;

/// Connections of each tool.
const CONNECTIONS: &str = "32";

/// Commands a second by redis-benchmark, over a million random keys.
pub fn redis_benchmark(at: SocketAddr, pipeline: u32, command: &[&str]) -> f64 {
    let requests = if pipeline == 1 { 200_000 } else { 2_000_000 };
    let mut tool = Command::new("redis-benchmark");
    tool.args(["-h", "127.0.0.1", "-p", &at.port().to_string(), "-c", CONNECTIONS])
        .args(["-r", "1000000", "-n", &requests.to_string(), "-P", &pipeline.to_string()])
        .arg("--csv")
        .args(command);
    let text = output(tool);
    let last = text.lines().last().unwrap_or_default();
    let field = last.split(',').nth(1).unwrap_or_default();
    field.trim_matches('"').parse().unwrap_or_else(|_| panic!("redis-benchmark said {text}"))
}

/// Requests a second by wrk, with the script's requests; every answer must be a success.
pub fn wrk(at: SocketAddr, script: &str) -> f64 {
    let mut tool = Command::new("wrk");
    tool.args([
        "-t",
        "1",
        "-c",
        CONNECTIONS,
        "-d",
        "3s",
        "-s",
        script,
        &format!("http://{at}/v1/check"),
    ]);
    let text = output(tool);
    assert!(!text.contains("Non-2xx") && !text.contains("Socket errors"), "wrk said {text}");
    let line = text.lines().find_map(|line| line.strip_prefix("Requests/sec:"));
    line.and_then(|rate| rate.trim().parse().ok()).unwrap_or_else(|| panic!("wrk said {text}"))
}

/// Calls a second by h2load, all with the message in this file; every one must be answered.
pub fn h2load(at: SocketAddr, message: &str) -> f64 {
    let mut tool = Command::new("h2load");
    // Four connections of sixteen streams: as many calls at once as the workers of an Envoy have.
    tool.args(["-n", "150000", "-c", "4", "-m", "16", "-d", message])
        .args(["-H", "content-type: application/grpc", "-H", "te: trailers"])
        .arg(format!("http://{at}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"));
    let text = output(tool);
    assert!(text.contains("150000 succeeded, 0 failed, 0 errored"), "h2load said {text}");
    let line = text.lines().find_map(|line| line.strip_prefix("finished in "));
    let rate = line.and_then(|line| line.split(", ").nth(1)?.strip_suffix(" req/s"));
    rate.and_then(|rate| rate.parse().ok()).unwrap_or_else(|| panic!("h2load said {text}"))
}

fn output(mut tool: Command) -> String {
    let name = tool.get_program().to_string_lossy().into_owned();
    let output = tool.output().unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
