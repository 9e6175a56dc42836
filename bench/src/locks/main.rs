//! `make bench-locks`: our locks beside their peers, on one server that the bench starts.
//!
//! Every contender runs in processes of its own: this program started again, or Python. They take
//! turns, and every figure is the median of several rounds. Client and server share the machine's
//! processors. `--only PREFIX` runs the cases that begin so.
//!
//! | Part | Is |
//! |---|---|
//! | `cases` | what is measured, and the lines that say so |
//! | `process_group` | the processes of a contender, and what they are told |
//! | `child` | what such a process does |
//! | `contender` | the locks it does it with; `redis_py.py` is the same for redis-py |
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
mod child;
mod contender;
mod process_group;

use tollgate_harness::RedisServer;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["--child", contender, port] => child::live(contender, port),
        [] => run(""),
        ["--only", prefix] => run(prefix),
        _ => panic!("usage: bench-locks [--only PREFIX]"),
    }
}

fn run(only: &str) {
    let server = RedisServer::start().expect("a server to measure against");
    cases::run(&server, only);
}
