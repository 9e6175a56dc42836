//! Keys that an outage leaves in a real Redis once its debts are told.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{log, rule, rules, user};
use tollgate::redis::{Config, RedisStore};
use tollgate::store::{Answer, Key, Request};
use tollgate::{Limiter, Stats};
use tollgate::{Store, StoreError, StoreErrorKind};
use tollgate_harness::{RedisServer, Reply};

/// A store whose connection can be cut.
#[derive(Clone)]
struct Wire {
    store: Arc<RedisStore>,
    cut: Arc<AtomicBool>,
}

impl Wire {
    fn whole(&self) -> Result<(), StoreError> {
        let cut = self.cut.load(Ordering::SeqCst);
        if cut { Err(StoreError::new(StoreErrorKind::Unavailable)) } else { Ok(()) }
    }
}

impl Store for Wire {
    async fn charge(&self, batch: &[Request<'_>]) -> Result<Vec<Answer>, StoreError> {
        self.whole()?;
        self.store.charge(batch).await
    }

    async fn read(&self, name: Key<'_>) -> Result<Option<Vec<u8>>, StoreError> {
        self.whole()?;
        self.store.read(name).await
    }

    async fn compare_and_set(
        &self,
        name: Key<'_>,
        expected: Option<&[u8]>,
        new: &[u8],
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.whole()?;
        self.store.compare_and_set(name, expected, new).await
    }
}

fn names(server: &RedisServer) -> BTreeSet<Vec<u8>> {
    let Reply::Array(names) = server.command(&[b"KEYS", b"*"]).unwrap() else { panic!() };
    let name = |reply| if let Reply::Bulk(name) = reply { name } else { panic!("{reply:?}") };
    names.into_iter().map(name).collect()
}

fn number(server: &RedisServer, command: &[&[u8]]) -> i64 {
    match server.command(command).unwrap() {
        Reply::Integer(number) => number,
        other => panic!("{other:?}"),
    }
}

/// Waits for what the limiter does by itself, in real time as Redis does.
async fn until(limiter: &Limiter<Wire>, happened: impl Fn(Stats) -> bool) {
    for _ in 0..6_000 {
        if happened(limiter.stats()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within half a minute: {:?}", limiter.stats());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_telling_leaves_one_small_key_for_an_hour() {
    let server = RedisServer::start().unwrap();
    let config = Config::new(&server.url()).unwrap().deadline(Duration::from_secs(10));
    let store = Arc::new(RedisStore::connect(config).await.unwrap());
    let wire = Wire { store, cut: Arc::default() };
    let set = rules(1, [log(rule("r", &["user"], &["100 per 1h"]))]);
    let limiter = Limiter::builder(wire.clone()).rules(set).build();
    for who in ["alice", "bob"] {
        assert!(limiter.admit(&user(who)).await.passes());
    }
    let before = names(&server);

    wire.cut.store(true, Ordering::SeqCst);
    for _ in 0..20 {
        assert!(limiter.admit(&user("alice")).await.passes());
    }
    wire.cut.store(false, Ordering::SeqCst);
    until(&limiter, |stats| stats.counters_in_debt == 0).await;

    assert_eq!(crate::common::left(&limiter, "alice").await, 79, "all twenty were told");
    let marks: Vec<_> = names(&server).difference(&before).cloned().collect();
    let [mark] = &marks[..] else { panic!("{} keys for one telling", marks.len()) };
    let ttl = number(&server, &[b"PTTL", mark]);
    // A key ends at most a millisecond after its counter does.
    assert!((3_500_000..=3_600_001).contains(&ttl), "{ttl} ms");
    let bytes = number(&server, &[b"MEMORY", b"USAGE", mark]);
    assert!(bytes <= 200, "{bytes} bytes");
}
