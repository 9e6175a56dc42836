//! The cases, and the line each prints.

use std::net::SocketAddr;

use prost::Message as _;
use tollgate_harness::RedisServer;
use tollgate_server::protocols::grpc::proto::envoy;

use super::memory;
use super::program::{Program, TempFile};
use super::tools::{h2load, redis_benchmark, wrk};

const ROUNDS: usize = 5;

/// One rule by user, which a user of the bench does not get to the end of.
const RULES: &str = "
version: 1
domain: shop
rules:
  - name: per-user
    by: [user]
    limits: [4000000 per 1h]
";

/// A hundred thousand users, whose requests are written before the clock runs.
const USERS: &str = r#"
local requests = {}
function init(args)
  for user = 1, 100000 do
    local body = string.format('{"domain":"shop","attributes":{"user":"%08d"}}', user)
    requests[user] = wrk.format("POST", nil, { ["Content-Type"] = "application/json" }, body)
  end
end
function request() return requests[math.random(#requests)] end
"#;

const ENVOY: &str = "
domain: shop
descriptors:
  - key: path
    rate_limit: { unit: hour, requests_per_unit: 4000000000, name: per-path }
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 4000000000, name: per-user }
";

pub fn run(only: &str) {
    let redis = RedisServer::start().expect("a server to measure against");
    if "resp".starts_with(only) || only.starts_with("resp") {
        resp(&redis);
    }
    if "memory".starts_with(only) {
        memory::run();
    }
    if "http".starts_with(only) || only.starts_with("http") {
        http("http", &["--store=embedded"], 0.85);
        http("http-redis", &on(&redis).each_ref().map(String::as_str), 0.0);
    }
    if "grpc".starts_with(only) || only.starts_with("grpc") {
        grpc("grpc", &["--store=embedded"], 0.8);
        grpc("grpc-redis", &on(&redis).each_ref().map(String::as_str), 0.6);
    }
}

/// On this Redis. The deadline is long: what is measured is what is decided, not what is given up.
fn on(redis: &RedisServer) -> [String; 2] {
    [format!("--store={}", redis.url()), "--store-deadline=5s".to_owned()]
}

fn resp(redis: &RedisServer) {
    let server = Program::tollgate(&["--max-keys=2000000"]);
    let (ours, peer) = (server.at("resp"), SocketAddr::from(([127, 0, 0, 1], redis.port())));
    let throttle = ["CL.THROTTLE", "key:__rand_int__", "100", "100", "3600"];
    // Once over the keys, so that every round finds them as a running system would.
    redis_benchmark(ours, 32, &throttle);
    redis_benchmark(peer, 32, &["INCR", "key:__rand_int__"]);
    for (pipeline, command, target) in [(32, "INCR", 1.0), (1, "GET", 0.85)] {
        let case = format!("resp-P{pipeline}");
        let name = format!("redis-{}", command.to_ascii_lowercase());
        duel(
            &case,
            target,
            &name,
            || redis_benchmark(ours, pipeline, &throttle),
            || redis_benchmark(peer, pipeline, &[command, "key:__rand_int__"]),
        );
    }
}

fn http(case: &str, store: &[&str], target: f64) {
    let (rules, script) = (TempFile::new("rules.yaml", RULES), TempFile::new("users.lua", USERS));
    let server = Program::tollgate(&[&["--rules", rules.path()], store].concat());
    let ours = server.at("http");
    let bare = Program::bare(&["bare-http", &answer_length(ours).to_string()]);
    let peer = bare.at("bare");
    duel(case, target, "bare-hyper", || wrk(ours, script.path()), || wrk(peer, script.path()));
    exact(&server, "http");
}

fn grpc(case: &str, store: &[&str], target: f64) {
    let (rules, message) = (TempFile::new("envoy.yaml", ENVOY), TempFile::new("call.bin", call()));
    let server = Program::tollgate(&[&["--envoy-rules", rules.path()], store].concat());
    let bare = Program::bare(&["bare-grpc"]);
    let (ours, peer) = (server.at("grpc"), bare.at("bare"));
    duel(
        case,
        target,
        "bare-tonic",
        || h2load(ours, message.path()),
        || h2load(peer, message.path()),
    );
    exact(&server, "grpc");
}

/// A framed request of two descriptors.
fn call() -> Vec<u8> {
    use envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    use envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
    let descriptor = |key: &str, value: &str| RateLimitDescriptor {
        entries: vec![Entry { key: key.to_owned(), value: value.to_owned() }],
        ..RateLimitDescriptor::default()
    };
    let request = envoy::service::ratelimit::v3::RateLimitRequest {
        domain: "shop".to_owned(),
        descriptors: vec![descriptor("path", "/api/orders"), descriptor("user", "00000001")],
        hits_addend: 0,
    };
    let message = request.encode_to_vec();
    let mut framed = vec![0];
    framed.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend_from_slice(&message);
    framed
}

/// The length of the answer to one of the requests.
fn answer_length(at: SocketAddr) -> usize {
    use std::io::{Read as _, Write as _};
    let body = r#"{"domain":"shop","attributes":{"user":"00000001"}}"#;
    let mut stream = std::net::TcpStream::connect(at).unwrap();
    write!(
        stream,
        "POST /v1/check HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("\"allowed\":true"), "{answer}");
    answer.split_once("\r\n\r\n").unwrap().1.len()
}

/// Says how many were allowed, and that none was anything else.
fn exact(server: &Program, protocol: &str) {
    let count = |outcome: &str| {
        server.metric(&format!(
            "tollgate_requests_total{{protocol=\"{protocol}\",outcome=\"{outcome}\"}}"
        ))
    };
    let [allowed, refused, degraded, errors] =
        ["allowed", "refused", "degraded", "error"].map(count);
    println!("  allowed={allowed} refused={refused} degraded={degraded} errors={errors}");
    assert_eq!((refused, degraded), (0, 0), "every request is decided by the store, and passes");
}

/// Rounds of both in turn, and the line about them.
fn duel(case: &str, target: f64, name: &str, ours: impl Fn() -> f64, peer: impl Fn() -> f64) {
    let (mut mine, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (a, b) = (ours(), peer());
        mine.push(a);
        theirs.push(b);
        ratios.push(a / b);
    }
    let target = if target > 0.0 { format!(" target={target}") } else { String::new() };
    println!(
        "case={case} ours={:.0} peer={name}:{:.0} ratio={:.2}{target} rounds={:.2}..{:.2} \
         spread={:.0}..{:.0} peer-spread={:.0}..{:.0}",
        median(&mut mine),
        median(&mut theirs),
        median(&mut ratios),
        ratios[0],
        ratios[ROUNDS - 1],
        mine[0],
        mine[ROUNDS - 1],
        theirs[0],
        theirs[ROUNDS - 1],
    );
}

/// The one in the middle; sorts them.
fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
