//! E44 in real time, a thousand times: a holder that Redis cannot be heard by, or cannot hear, is told
//! of the loss before Redis ends its lease. `make faults`.
//!
//! The process itself is not stopped, but a machine that gives it no processor for a tenth of a lease
//! does the same to it; the leases are long enough that this does not happen by chance.

#![cfg(faults)]

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::Lease;
use tollgate::redis::RedisStore;
use tollgate::{LockGuard, Locks, ReleaseResult};
use tollgate_core::testing::Rng;
use tollgate_harness::{Direction, Fault, FaultProxy, RedisServer, Reply};

use crate::stage::without_timeout;

const LEASE: Duration = Duration::from_secs(3);
const WAVES: u64 = 20;
const LOCKS: u64 = 50;

/// Milliseconds since the epoch: Redis's own clock, as both are on one machine.
#[expect(clippy::disallowed_methods, reason = "compared with the end of a lease, in real time")]
fn wall() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// When Redis ends the lease of a lock; `None` if it has.
fn ends(server: &RedisServer, name: &str) -> Option<i64> {
    match server.command(&[b"PEXPIRETIME", name.as_bytes()]).unwrap() {
        Reply::Integer(-2) => None,
        Reply::Integer(ends) => Some(ends),
        other => panic!("{other:?}"),
    }
}

/// The rest of the lease when its holder was told, in milliseconds.
async fn told(server: Arc<RedisServer>, guard: LockGuard, name: String, last: i64) -> i64 {
    guard.lost().await;
    let told = wall();
    // A renewal that nobody was told of may have made it longer meanwhile.
    let left = ends(&server, &name).unwrap_or(last).max(last) - told;
    assert!(matches!(guard.release().await, Ok(ReleaseResult::AlreadyLost) | Err(_)));
    left
}

/// Fifty locks, taken at moments of their own, and then the network fails at some moment.
async fn wave(server: &Arc<RedisServer>, wave: u64) -> Vec<i64> {
    let mut rng = Rng::new(wave);
    let proxy = FaultProxy::start(server.address()).unwrap();
    let config = without_timeout(&proxy.url()).deadline(Duration::from_millis(100));
    let locks = Locks::builder(RedisStore::connect(config).await.unwrap());
    let locks = locks.lease(Lease::new(LEASE).unwrap()).build();
    let mut held = Vec::new();
    for i in 0..LOCKS {
        let name = format!("{wave}:{i}");
        held.push((locks.lock(&name).await.unwrap(), name));
        tokio::time::sleep(Duration::from_millis(rng.below(40))).await;
    }
    // Long enough for every one to be renewed, and not to be.
    tokio::time::sleep(Duration::from_millis(rng.below(2_000))).await;
    let deaf = if wave.is_multiple_of(2) { Direction::ToServer } else { Direction::ToClient };
    proxy.set(deaf, Fault::BlackHole);
    // Messages in flight have arrived by then.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut waiting = JoinSet::new();
    for (guard, name) in held {
        let last = ends(server, &name).unwrap();
        waiting.spawn(told(Arc::clone(server), guard, name, last));
    }
    waiting.join_all().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_losses_are_told_before_the_lease_ends() {
    let server = Arc::new(RedisServer::start().unwrap());
    let mut left = Vec::new();
    for number in 0..WAVES {
        left.extend(wave(&server, number).await);
        println!(
            "{} told, the latest {} ms before the end",
            left.len(),
            left.iter().min().unwrap()
        );
    }

    assert_eq!(left.len(), 1_000);
    assert!(left.iter().all(|left| *left > 0), "told after the end: {left:?}");
}
