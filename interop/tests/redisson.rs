//! A real Redisson client and ours, holding each other's locks: `make interop`.
//!
//! Real time passes here, and a Java virtual machine starts for every test. Not in `make test`, where
//! raw commands stand for Redisson (`crates/redis/src/lock`).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::disallowed_methods,
    reason = "tests of real time"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate::Lease;
use tollgate::redis::{Config, RedisStore};
use tollgate::{LockState, Locks, ReleaseResult};
use tollgate_harness::{RedisServer, Reply};
use tollgate_interop::Redisson;

/// Redisson's own default, and ours.
const LONG: Duration = Duration::from_secs(30);
/// A lease that has ended a few times before a test does.
const SHORT: Duration = Duration::from_millis(1_500);
/// The longest wait that only a message ends. Leases are far longer.
const SOON: Duration = Duration::from_secs(10);

async fn ours(server: &RedisServer, lease: Duration) -> Locks<RedisStore> {
    let config = Config::new(&server.url()).unwrap().deadline(Duration::from_secs(5));
    let store = RedisStore::connect(config).await.unwrap();
    Locks::builder(store).lease(Lease::new(lease).unwrap()).build()
}

async fn both(lease: Duration) -> (RedisServer, Locks<RedisStore>, Redisson) {
    let server = RedisServer::start().unwrap();
    let (locks, java) = (ours(&server, lease).await, Redisson::start(&server, lease).await);
    (server, locks, java)
}

fn yes() -> Result<String, String> {
    Ok("true".to_owned())
}

fn no() -> Result<String, String> {
    Ok("false".to_owned())
}

fn done() -> Result<String, String> {
    Ok(String::new())
}

/// Redisson's answer to whoever unlocks what it does not hold.
fn not_held(answer: &Result<String, String>) -> bool {
    matches!(answer, Err(thrown) if thrown.starts_with("IllegalMonitorStateException"))
}

/// Names that Redisson puts into its own keys with braces, and such as have some already.
const NAMES: [&str; 6] = ["order", "{order}:1", "or{der", "with spaces: 42", "größe·鎖", "a}b{c}"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_keeps_the_other_out_whatever_the_name() {
    let (_server, locks, java) = both(LONG).await;
    for name in NAMES {
        for kind in ["lock", "fenced"] {
            let guard = locks.lock(name).await.unwrap();
            assert_eq!(java.tell_of(kind, "a", "try-lock", name, &["0", "-1"]).await, no());
            assert_eq!(java.tell_of(kind, "a", "is-locked", name, &[]).await, yes());
            assert!(not_held(&java.tell_of(kind, "a", "unlock", name, &[]).await), "not its own");
            assert_eq!(guard.release().await.unwrap(), ReleaseResult::Released);

            assert_eq!(java.tell_of(kind, "a", "try-lock", name, &["0", "-1"]).await, yes());
            assert!(locks.try_lock(name).await.unwrap().is_none(), "{name}");
            let holder = locks.inspect(name).await.unwrap().unwrap();
            assert_eq!((holder.depth, holder.fence), (1, None), "no fence of ours");
            assert!(holder.left.unwrap() > LONG / 2);
            assert_eq!(java.tell_of(kind, "a", "unlock", name, &[]).await, done());
            assert_eq!(java.tell_of(kind, "a", "is-locked", name, &[]).await, no());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_counts_its_own_entries_and_leaves_with_the_last() {
    let (_server, locks, java) = both(LONG).await;
    for held in ["1", "2", "3"] {
        assert_eq!(java.tell("a", "try-lock", "order", &["0", "-1"]).await, yes());
        assert_eq!(java.tell("a", "hold-count", "order", &[]).await, Ok(held.to_owned()));
    }
    assert_eq!(java.tell("b", "try-lock", "order", &["0", "-1"]).await, no());
    assert_eq!(locks.inspect("order").await.unwrap().unwrap().depth, 3);
    for _ in 0..3 {
        assert!(locks.try_lock("order").await.unwrap().is_none());
        assert_eq!(java.tell("a", "unlock", "order", &[]).await, done());
    }

    let me = locks.owner();
    let lock = locks.named("order").unwrap().by(&me);
    let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    assert_eq!(inner.fence(), outer.fence());
    assert_eq!(inner.release().await.unwrap(), ReleaseResult::Released);
    assert_eq!(java.tell("a", "try-lock", "order", &["0", "-1"]).await, no());
    assert_eq!(outer.release().await.unwrap(), ReleaseResult::Released);
    assert_eq!(java.tell("a", "try-lock", "order", &["0", "-1"]).await, yes());
}

/// Redisson waits for a message or for the end of the lease it saw, which is far away; and so that it
/// is the subscription that is tested, it waits already when the lock is released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_release_wakes_redisson() {
    let (server, locks, java) = both(LONG).await;
    for name in NAMES {
        for way in ["released", "dropped"] {
            let guard = locks.lock(name).await.unwrap();
            let waiting = java.tell("a", "lock", name, &["-1"]);
            listened_to(&server, &locks, name).await;
            let start = Instant::now();
            if way == "dropped" {
                drop(guard);
            } else {
                assert_eq!(guard.release().await.unwrap(), ReleaseResult::Released);
            }

            assert_eq!(waiting.await, done());

            assert!(start.elapsed() < SOON, "{name} {way}: {:?}", start.elapsed());
            assert_eq!(java.tell("a", "unlock", name, &[]).await, done());
        }
    }
}

/// Ours polls besides. So the same is done without a message, which is then what a poll takes; a
/// message must be much faster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redissons_unlock_wakes_ours_long_before_a_poll() {
    let (server, locks, java) = both(LONG).await;
    let (mut rung, mut polled) = (Vec::new(), Vec::new());
    for round in 0..21 {
        for (command, took) in [("unlock", &mut rung), ("", &mut polled)] {
            assert_eq!(java.tell("a", "lock", "order", &["-1"]).await, done());
            let waiting = tokio::spawn({
                let locks = locks.clone();
                async move {
                    let guard = locks.lock("order").await.unwrap();
                    (Instant::now(), guard)
                }
            });
            listened_to(&server, &locks, "order").await;
            // Not always as long after the last poll.
            tokio::time::sleep(Duration::from_millis(7 * round)).await;
            let start = Instant::now();
            if command == "unlock" {
                assert_eq!(java.tell("a", "unlock", "order", &[]).await, done());
            } else {
                server.command(&[b"DEL", b"order"]).unwrap();
            }
            let (granted, guard) = waiting.await.unwrap();
            took.push(granted.saturating_duration_since(start));
            assert_eq!(guard.release().await.unwrap(), ReleaseResult::Released);
        }
    }
    rung.sort_unstable();
    polled.sort_unstable();
    println!("woken by a message after {:?}, by a poll after {:?}", rung[10], polled[10]);
    assert!(rung[10] * 2 < polled[10]);
}

/// Somebody has subscribed to the releases of a lock that is held.
async fn listened_to(server: &RedisServer, locks: &Locks<RedisStore>, name: &str) {
    let start = Instant::now();
    while locks.inspect(name).await.unwrap().is_none_or(|holder| holder.waiting == 0) {
        assert!(start.elapsed() < SOON, "nobody subscribed: {}", channels(server));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn channels(server: &RedisServer) -> String {
    format!("{:?}", server.command(&[b"PUBSUB", b"CHANNELS"]).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_taken_by_force_by_either_is_free_and_its_holder_is_told() {
    let (server, locks, java) = both(SHORT).await;
    let guard = locks.lock("order").await.unwrap();
    let waiting = java.tell("b", "lock", "order", &["-1"]);
    listened_to(&server, &locks, "order").await;
    assert_eq!(java.tell("a", "force-unlock", "order", &[]).await, yes());
    assert_eq!(waiting.await, done(), "whoever waits gets it");
    guard.lost().await;
    assert_eq!(guard.state(), LockState::Lost);
    assert_eq!(guard.release().await.unwrap(), ReleaseResult::AlreadyLost);
    assert!(locks.try_lock("order").await.unwrap().is_none(), "our late release freed nothing");

    let holder = locks.force_release("order", "the test says so").await.unwrap().unwrap();
    assert_eq!((holder.depth, holder.fence), (1, None));
    assert!(not_held(&java.tell("b", "unlock", "order", &[]).await));
    assert_eq!(java.tell("a", "force-unlock", "order", &[]).await, no(), "there is nothing left");

    // Redisson's waiters hear of ours too.
    let guard = locks.lock("order").await.unwrap();
    let waiting = java.tell("b", "lock", "order", &["-1"]);
    listened_to(&server, &locks, "order").await;
    assert!(locks.force_release("order", "and again").await.unwrap().is_some());
    assert_eq!(waiting.await, done());
    drop(guard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_watchdog_of_each_keeps_the_other_out() {
    let (_server, locks, java) = both(SHORT).await;
    let guard = locks.lock("ours").await.unwrap();
    assert_eq!(java.tell("a", "lock", "theirs", &["-1"]).await, done());
    let start = Instant::now();
    while start.elapsed() < 4 * SHORT {
        assert_eq!(java.tell("b", "try-lock", "ours", &["0", "-1"]).await, no());
        assert!(locks.try_lock("theirs").await.unwrap().is_none());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(guard.state(), LockState::Sure);
    assert_eq!(guard.release().await.unwrap(), ReleaseResult::Released);
    assert_eq!(java.tell("a", "unlock", "theirs", &[]).await, done());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_nobody_renews_ends_for_both() {
    let (_server, locks, java) = both(LONG).await;
    let lease = Duration::from_millis(700);
    // A waiter of Redisson's, who looks at the rest of the lease.
    let start = Instant::now();
    let guard = locks.lock_timeout("order", Duration::ZERO, lease).await.unwrap().unwrap();
    let fence = guard.fence();
    assert_eq!(java.tell("a", "try-lock", "order", &["20000", "700"]).await, yes());
    let took = start.elapsed();
    assert!(took >= lease && took < SOON, "{took:?}");
    assert_eq!(guard.release().await.unwrap(), ReleaseResult::AlreadyLost);

    // And one of ours, whom Redisson's lease keeps waiting. Nobody publishes when it ends.
    let start = Instant::now();
    let next = locks.lock("order").await.unwrap();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert!(not_held(&java.tell("a", "unlock", "order", &[]).await));
    assert!(next.fence() > fence);
    assert_eq!(next.state(), LockState::Sure, "Redisson's late unlock freed nothing");
    assert_eq!(next.release().await.unwrap(), ReleaseResult::Released);
}

/// A Redisson that is killed leaves its lock to whoever waits, after its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redisson_that_was_killed_is_outlived() {
    let (_server, locks, java) = both(SHORT).await;
    assert_eq!(java.tell("a", "lock", "order", &["-1"]).await, done());
    let start = Instant::now();
    drop(java);

    let guard = locks.lock("order").await.unwrap();

    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!(guard.release().await.unwrap(), ReleaseResult::Released);
}

/// The tokens of `RFencedLock` are its own: they rise by one a grant, whatever ours does between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_lock_keeps_its_own_tokens() {
    let (_server, locks, java) = both(LONG).await;
    let mut last = None;
    for token in ["1", "2", "3"] {
        let told = java.tell_of("fenced", "a", "token", "order", &["-1"]).await;
        assert_eq!(told, Ok(token.to_owned()));
        assert_eq!(java.tell_of("fenced", "a", "unlock", "order", &[]).await, done());
        let guard = locks.lock("order").await.unwrap();
        assert!(last < Some(guard.fence()), "ours rise as well");
        last = Some(guard.fence());
        assert_eq!(guard.release().await.unwrap(), ReleaseResult::Released);
    }
}

/// E48 with both: a number that is read, and then written one larger, loses nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_update_is_lost_between_redisson_and_ours() {
    const SECTIONS: u64 = 500;
    let (server, locks, java) = both(LONG).await;
    server.command(&[b"SET", b"counter", b"0"]).unwrap();
    let theirs: Vec<_> = ["a", "b", "c", "d"]
        .map(|actor| java.tell(actor, "storm", "order", &["counter", &SECTIONS.to_string()]))
        .into();
    let server = Arc::new(server);
    let more = [locks.clone(), locks.clone(), ours(&server, LONG).await, ours(&server, LONG).await];
    let mine = more.map(|locks| tokio::spawn(storm(locks, Arc::clone(&server), SECTIONS)));
    for mine in mine {
        mine.await.unwrap();
    }
    for theirs in theirs {
        assert_eq!(theirs.await, Ok(SECTIONS.to_string()));
    }

    let all = (8 * SECTIONS).to_string().into_bytes();
    assert_eq!(server.command(&[b"GET", b"counter"]).unwrap(), Reply::Bulk(all));
    assert!(locks.inspect("order").await.unwrap().is_none());
}

async fn storm(locks: Locks<RedisStore>, server: Arc<RedisServer>, sections: u64) {
    for _ in 0..sections {
        let guard = locks.lock("order").await.unwrap();
        let Reply::Bulk(text) = server.command(&[b"GET", b"counter"]).unwrap() else { panic!() };
        let number: u64 = String::from_utf8(text).unwrap().parse().unwrap();
        server.command(&[b"SET", b"counter", (number + 1).to_string().as_bytes()]).unwrap();
        assert_eq!(guard.release().await.unwrap(), ReleaseResult::Released);
    }
}
