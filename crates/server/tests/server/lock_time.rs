//! Time until a command that ignores signals is killed: real time, so `make faults` runs it.
#![cfg(faults)]

use tollgate_harness::{Direction, Fault, FaultProxy, RedisServer, Reply};

use super::lock::{Holding, lives, until};

/// Redis is cut off, so nobody renews. The command must be gone while Redis still keeps the lock: then
/// nobody else can have begun.
#[test]
fn a_command_that_ignores_term_is_dead_before_the_lease_ends() {
    let redis = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(redis.address()).unwrap();
    let url = proxy.url();
    let args = ["--store", &url, "--store-deadline", "250ms", "--lease", "10s", "a"];
    let holding =
        Holding::start(&redis, &args, "trap '' TERM; echo $$; while :; do sleep 0.05; done");
    let command = holding.said.clone();
    assert!(lives(&command));

    for direction in [Direction::ToServer, Direction::ToClient] {
        proxy.set(direction, Fault::BlackHole);
    }
    until("the command is gone", || !lives(&command));

    let left = redis.command(&[b"PTTL", b"a"]).unwrap();
    assert!(matches!(left, Reply::Integer(1..)), "the lease ended before the command: {left:?}");
    let (code, _, complaints) = holding.end();
    assert_eq!(code, Some(124), "{complaints}");
}
