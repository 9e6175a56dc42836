//! `make bench-server`: the server's listeners beside their peers, on processes that the bench starts.
//!
//! The program `tollgate` is the one built beside this one. Load tools, servers and Redis share the
//! machine's processors. Every ratio is the median of several rounds, ours and the peer's taking
//! turns. `--only PREFIX` runs the cases that begin so.
//!
//! `bare` is what this program is when it starts itself as a peer: a handler that answers the same
//! bytes whatever it is asked.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    clippy::float_arithmetic,
    clippy::disallowed_methods,
    reason = "a bench that cannot go on shall stop, and it reads the clock to time"
)]

mod bare;
mod cases;
mod memory;
mod program;
mod tools;

use std::net::SocketAddr;

/// Prints where a child listens, which its parent reads.
fn announce(address: SocketAddr) {
    println!("  bare http://{address}");
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["bare-http", length] => bare::http(length.parse().unwrap()),
        ["bare-grpc"] => bare::grpc(),
        [] => cases::run(""),
        ["--only", prefix] => cases::run(prefix),
        _ => panic!("usage: bench-server [--only PREFIX]"),
    }
}
