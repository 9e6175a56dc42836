//! `make bench-redis`: the Redis store beside its peers, on one server that the bench starts.
//!
//! Client and server share the machine's processors. Every figure is the median of several rounds,
//! ours and the peers' taking turns. `--only PREFIX` runs the cases that begin so.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    clippy::float_arithmetic,
    clippy::disallowed_methods,
    reason = "a bench that cannot go on shall stop, and it reads the clock to time"
)]

mod cases;
mod load;
mod peers;

use tollgate_harness::RedisServer;

fn main() {
    let mut args = std::env::args().skip(1);
    let only = match (args.next().as_deref(), args.next()) {
        (None, _) => String::new(),
        (Some("--only"), Some(prefix)) => prefix,
        _ => panic!("usage: bench-redis [--only PREFIX]"),
    };
    let server = RedisServer::start().expect("a server to measure against");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(cases::run(&server, &only));
}
