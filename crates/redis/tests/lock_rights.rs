//! Permissions of a user of locks: those it needs and those it must not have, on a real server.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "a test stops there"
)]

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use tollgate_harness::RedisServer;
use tollgate_redis::core::lock::{
    Acquire, AcquireOutcome, Attempt, Durability, HoldId, Lease, LockKind, LockName, LockStore,
    Owner, Release, ReleaseNotifier, ReleaseOutcome, Renew, RenewOutcome, Replicas,
};
use tollgate_redis::{Config, FencedWrite, RedisStore, Warning};

struct AwaitableNotifier(tokio::sync::Notify);

impl ReleaseNotifier for AwaitableNotifier {
    fn notify(&self, _: &LockName) {
        self.0.notify_one();
    }
}

fn lacks(store: &RedisStore) -> Option<(Vec<String>, bool, bool)> {
    store.warnings().iter().find_map(|warning| match warning {
        Warning::MissingLockPermissions { commands, keys, channels, .. } => {
            Some((commands.clone(), *keys, *channels))
        }
        _ => None,
    })
}

fn as_alice(server: &RedisServer, rights: &str) -> Config {
    let line = format!("ACL SETUSER alice on >hush {rights}");
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    server.command(&words).unwrap();
    without_timeout(&server.url()).user("alice").password("hush")
}

/// Everything that can be done with a lock.
async fn use_a_lock(store: &RedisStore, name: &str) {
    let (name, owner) = (LockName::new(name).unwrap(), Owner::new(1, 1));
    let lease = Lease::DEFAULT;
    let replicas = Replicas { count: 1.try_into().unwrap(), patience: Duration::from_millis(1) };
    for (kind, id) in [(LockKind::Simple, 1), (LockKind::Reentrant, 3)] {
        let hold = HoldId::new(id);
        let released = Arc::new(AwaitableNotifier(tokio::sync::Notify::new()));
        let notifier: Arc<dyn ReleaseNotifier> = released.clone();
        let _subscription = store.subscribe(&name, notifier).await.unwrap();
        let ask = Acquire {
            name: &name,
            kind,
            owner: &owner,
            hold,
            lease,
            delay: Duration::ZERO,
            label: "",
            durability: Durability::Majority(replicas),
        };
        let AcquireOutcome::Granted { fence, .. } = store.acquire(&ask).await.unwrap() else {
            panic!("it is free");
        };
        let renew = Renew { name: &name, kind, owner: &owner, fence, lease };
        assert_eq!(store.renew(&[renew]).await.unwrap(), [RenewOutcome::Held]);
        assert_eq!(store.list(0).await.unwrap().holders.len(), 1);
        assert!(store.inspect(&name).await.unwrap().is_some());
        let attempt = Attempt::Sole;
        let release = Release { name: &name, kind, owner: &owner, hold, lease, attempt };
        assert_eq!(store.release(&release).await.unwrap(), ReleaseOutcome::Freed);
        released.0.notified().await;
        let again = Acquire { hold: HoldId::new(id + 1), durability: Durability::Primary, ..ask };
        assert!(matches!(store.acquire(&again).await.unwrap(), AcquireOutcome::Granted { .. }));
        assert!(store.force_release(&name).await.unwrap().is_some());
        let resource = format!("{name}:resource");
        for ttl in [None, Some(Duration::from_secs(9))] {
            let set = store.set_fenced(&resource, b"value", fence, ttl).await;
            assert_eq!(set.unwrap(), FencedWrite::Set);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_recommended_user_can_do_all_that_locks_do() {
    let server = RedisServer::start().unwrap();
    // A user without permissions gets the list of those to ask for.
    let config = as_alice(&server, "+ping").locks("order:*");
    let powerless = connect(config.clone()).await;
    let acl = powerless.warnings().iter().find_map(|warning| match warning {
        Warning::MissingLockPermissions { acl, .. } => Some(acl.replace("<password>", "hush")),
        _ => None,
    });
    let acl = acl.unwrap();
    server.command(&acl.split(' ').map(str::as_bytes).collect::<Vec<_>>()).unwrap();

    let store = connect(config).await;

    assert_eq!(lacks(&store), None, "{:?}", store.warnings());
    use_a_lock(&store, "order:1").await;
    let foreign = LockName::new("stock:1").unwrap();
    assert!(store.inspect(&foreign).await.is_err(), "other keys are not its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_rights_for_locks_are_named_where_locks_are_used() {
    let server = RedisServer::start().unwrap();
    let keys = "~tg:* ~order:* ~redisson_unlock_latch:* ~redisson_lock__channel:*";
    let all = format!("{keys} &redisson_lock__channel:* +@all");
    let of = async |config: Config| lacks(&connect(config).await);

    let config = as_alice(&server, &format!("resetkeys resetchannels {all}")).locks("order:*");
    assert_eq!(of(config).await, None);
    let config = as_alice(&server, "-hincrby -publish -wait");
    assert_eq!(of(config.clone()).await, None, "nobody said that there are locks");
    let names = ["hincrby", "publish", "wait"].map(str::to_owned).to_vec();
    assert_eq!(of(config.clone().locks("order:*")).await, Some((names.clone(), false, false)));
    assert_eq!(of(config.clone().locks("order:7")).await, Some((names.clone(), false, false)));
    assert_eq!(of(config.locks("stock:7")).await, Some((names, true, false)));
    let config = as_alice(&server, "resetchannels +@all").locks("order:*");
    let (commands, keys, channels) = of(config).await.unwrap();
    assert_eq!((commands, keys, channels), (vec![], false, true));
}

/// Without it, nobody can see whether a release has gone before, and nobody may take it for a no.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_right_to_read_release_records_nothing_is_granted() {
    let server = RedisServer::start().unwrap();
    let store = connect(as_alice(&server, "~* &* +@all -get")).await;
    let (name, owner) = (LockName::new("order:1").unwrap(), Owner::new(1, 1));
    for (kind, id) in [(LockKind::Simple, 1), (LockKind::Reentrant, 2)] {
        let ask = Acquire {
            name: &name,
            kind,
            owner: &owner,
            hold: HoldId::new(id),
            lease: Lease::DEFAULT,
            delay: Duration::ZERO,
            label: "",
            durability: Durability::Primary,
        };
        let told = store.acquire(&ask).await;
        assert!(told.is_err(), "{told:?}");
    }
    assert_eq!(run(&server, &[b"DBSIZE"]), tollgate_harness::Reply::Integer(0));
}

/// Looking at a lock that is held, by its whole name, must not touch it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_check_leaves_locks_alone_and_nothing_behind() {
    let server = RedisServer::start().unwrap();
    run(&server, &[b"HSET", b"order:7", b"somebody:1", b"1"]);
    for names in ["order:7", "order:*", "*"] {
        let store = connect(without_timeout(&server.url()).locks(names)).await;
        assert_eq!(lacks(&store), None, "{:?}", store.warnings());
    }
    assert_eq!(run(&server, &[b"DBSIZE"]), tollgate_harness::Reply::Integer(1));
    assert_eq!(run(&server, &[b"EXISTS", b"order:7"]), tollgate_harness::Reply::Integer(1));
}
