//! B28, B29, B30 with real processes and real time: `make faults`.
//!
//! The children are this very executable, told by the environment to hold a lock instead of to test.
//! A child writes by its fence on every line it prints, and says when it is told of the loss.
//!
//! Not faster than a machine allows: bounds are wide, and none of this runs in `make test`.

#![cfg(faults)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tollgate::Lease;
use tollgate::redis::RedisStore;
use tollgate::{LockState, Locks, ReleaseResult};
use tollgate_harness::{RedisServer, Reply, ServerClock};

use crate::stage::without_timeout;

const URL: &str = "TOLLGATE_LOCK_CHILD_OF";
const LEASE: Duration = Duration::from_secs(2);

fn lease() -> Lease {
    Lease::new(LEASE).unwrap()
}

async fn locks(url: &str) -> Locks<RedisStore> {
    let store = RedisStore::connect(without_timeout(url).deadline(Duration::from_millis(100)));
    Locks::builder(store.await.unwrap()).lease(lease()).build()
}

/// Not a test of its own: what a child does, until it loses the lock or is killed.
#[test]
fn child() {
    let Ok(url) = std::env::var(URL) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let guard = locks(&url).await.lock("a").await.unwrap();
        let say = |word: &str| {
            let line = format!("\nchild {word} {}\n", guard.fence());
            std::io::stdout().write_all(line.as_bytes()).unwrap();
        };
        say("holds");
        let mut day = wall();
        while guard.state() != LockState::Lost {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let before = std::mem::replace(&mut day, wall());
            if day.abs_diff(before) > Duration::from_secs(3_600) {
                say("stepped");
            }
        }
        say("lost");
        // A holder that does not check would write now.
        say("writes");
        assert_eq!(guard.release().await.unwrap(), ReleaseResult::AlreadyLost);
    });
}

struct Holder {
    process: Child,
    said: Receiver<String>,
}

impl Holder {
    /// Starts a child and waits until it holds the lock; its fence.
    fn start(url: &str) -> (Self, u64) {
        Self::start_under(url, |_| {})
    }

    /// The same, with something done to how it is started.
    fn start_under(url: &str, change: impl FnOnce(&mut Command)) -> (Self, u64) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "processes::child", "--nocapture"]).env(URL, url);
        change(&mut command);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        let (tell, said) = channel();
        std::thread::spawn(move || read(lines, |line| tell.send(line).is_ok()));
        let holder = Self { process, said };
        let fence = holder.hears("holds");
        (holder, fence)
    }

    /// Waits for a word; the fence it was said with.
    fn hears(&self, word: &str) -> u64 {
        let line = self.said.recv_timeout(Duration::from_secs(30)).unwrap();
        let (said, fence) = line.split_once(' ').unwrap();
        assert_eq!(said, word);
        fence.parse().unwrap()
    }

    fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn read(lines: BufReader<ChildStdout>, mut tell: impl FnMut(String) -> bool) {
    for line in lines.lines().map_while(Result::ok) {
        if let Some(said) = line.strip_prefix("child ")
            && !tell(said.to_owned())
        {
            return;
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "these tests are about real time")]
fn clock() -> std::time::Instant {
    std::time::Instant::now()
}

/// The time of day, since the epoch.
#[expect(clippy::disallowed_methods, reason = "a test steps it")]
fn wall() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap()
}

/// B28: stopped beyond its lease, a holder learns of the loss first thing, and its fence is stale.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_was_stopped_beyond_its_lease_is_told_first_thing() {
    let server = RedisServer::start().unwrap();
    let here = locks(&server.url()).await;
    for _ in 0..5 {
        let (holder, fence) = Holder::start(&server.url());

        holder.signal("-STOP");
        let guard = here.lock("a").await.unwrap();
        holder.signal("-CONT");

        assert_eq!(holder.hears("lost"), fence);
        assert!(guard.fence().get() > holder.hears("writes"), "what it writes now is refused");
        assert_eq!(guard.release().await.unwrap(), ReleaseResult::Released);
    }
}

/// B29: after kill -9 the lock is free within its lease and a poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_holders_lock_is_free_within_its_lease() {
    let server = RedisServer::start().unwrap();
    let here = locks(&server.url()).await;
    for _ in 0..5 {
        let (holder, fence) = Holder::start(&server.url());
        holder.signal("-KILL");
        let killed = clock();

        let guard = here.lock("a").await.unwrap();

        let took = clock().duration_since(killed);
        println!("free after {took:?} of a lease of {LEASE:?}");
        assert!(took <= LEASE + Duration::from_millis(100), "{took:?}");
        assert!(guard.fence().get() > fence);
        drop(guard);
    }
}

/// B30: Redis dies while the lock is held, and comes back empty: the holder is told, by its deadline at
/// the latest, and renews nobody else's lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_is_told_when_redis_came_back_empty() {
    let server = RedisServer::start().unwrap();
    let here = locks(&server.url()).await;
    let guard = here.lock("a").await.unwrap();
    server.restart().unwrap();
    let there = locks(&server.url()).await;

    let next = there.lock("a").await.unwrap();
    guard.lost().await;

    assert!(next.fence() > guard.fence());
    assert_eq!(guard.release().await.unwrap(), ReleaseResult::AlreadyLost);
    let owner = server.command(&[b"HKEYS", b"a"]).unwrap();
    let next_owner = Reply::Bulk(next.owner().as_str().as_bytes().to_vec());
    assert_eq!(owner, Reply::Array(vec![next_owner]));
    assert_eq!(next.release().await.unwrap(), ReleaseResult::Released);
}

/// B30: Redis dies and stays away: the loss is told before the lease could have ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_is_told_before_the_lease_can_end() {
    let server = RedisServer::start().unwrap();
    let here = locks(&server.url()).await;
    let mut guards = Vec::new();
    for i in 0..1_000 {
        guards.push(here.lock(&format!("lock {i}")).await.unwrap());
    }
    server.stop().unwrap();
    let stopped = clock();

    let mut told = Vec::new();
    for guard in &guards {
        let loss = guard.loss();
        told.push(tokio::spawn(async move {
            loss.lost().await;
            clock()
        }));
    }
    for told in told {
        let took = told.await.unwrap().duration_since(stopped);
        // The last renewal of each lease was before the server stopped.
        assert!(took < LEASE, "{took:?}");
    }
    server.resume().unwrap();
}

/// B30: the wall clock of a holder steps by years, to and fro. It keeps its lock, which is renewed as
/// before, and when Redis dies it is told in time all the same: leases are measured by the boot-time
/// clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holders_wall_clock_may_step() {
    const YEAR: u64 = 365 * 24 * 3_600 * 1_000_000;
    let server = RedisServer::start().unwrap();
    let here = locks(&server.url()).await;
    let clock_of_child = ServerClock::new().unwrap();
    let (holder, fence) =
        Holder::start_under(&server.url(), |command| clock_of_child.govern(command));
    for day in [30 * YEAR, 90 * YEAR, YEAR, 0] {
        clock_of_child.set(day).unwrap();
        assert_eq!(holder.hears("stepped"), fence);
        let stepped = clock();
        while clock().duration_since(stepped) < LEASE {
            assert!(here.try_lock("a").await.unwrap().is_none(), "it is held");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    clock_of_child.set(90 * YEAR).unwrap();
    assert_eq!(holder.hears("stepped"), fence);
    server.stop().unwrap();
    let stopped = clock();

    assert_eq!(holder.hears("lost"), fence);

    let took = clock().duration_since(stopped);
    assert!(took < LEASE, "{took:?}");
    server.resume().unwrap();
}

/// A runtime that does nothing else for three leases loses no lock: the watchdog has its own thread.
#[test]
fn a_blocked_runtime_keeps_its_locks() {
    let server = RedisServer::start().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let guard = locks(&server.url()).await.lock("a").await.unwrap();

        std::thread::sleep(3 * LEASE);

        assert_eq!(guard.state(), LockState::Sure);
        assert_eq!(guard.release().await.unwrap(), ReleaseResult::Released);
    });
}
