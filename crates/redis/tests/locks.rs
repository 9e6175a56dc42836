//! The suite of locks on Redis, and the layout that is shared with Redisson: driven by the commands
//! that Redisson sends, both ways.

#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    reason = "a test stops there"
)]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::common::*;
use tokio::runtime::Runtime;
use tollgate_core::testing::locks::{self, LockStoreUnderTest, end, granted, longer, plain};
use tollgate_harness::{Client, RedisServer, Reply, ServerClock};
use tollgate_redis::core::lock::{
    Acquire, AcquireOutcome, Attempt, Durability, Fence, HoldId, Lease, LockKind, LockName,
    LockStore, Owner, Release, ReleaseNotifier, ReleaseOutcome, Renew, RenewOutcome, Replicas,
};
use tollgate_redis::core::{StoreErrorKind, Timestamp};
use tollgate_redis::{FencedWrite, RedisStore};

/// A store of locks under the suite, on a server whose clock stands still.
pub(crate) struct Redis {
    store: RedisStore,
    runtime: Runtime,
    clock: ServerClock,
    pub(crate) server: RedisServer,
}

impl Redis {
    pub(crate) fn start() -> Self {
        let (server, clock) = clockwork();
        let runtime = Runtime::new().unwrap();
        let store = runtime.block_on(connect(without_timeout(&server.url())));
        Self { store, runtime, clock, server }
    }
}

impl LockStoreUnderTest for Redis {
    fn acquire(&self, ask: &Acquire<'_>) -> AcquireOutcome {
        self.runtime.block_on(self.store.acquire(ask)).unwrap()
    }

    fn renew(&self, batch: &[Renew<'_>]) -> Vec<RenewOutcome> {
        self.runtime.block_on(self.store.renew(batch)).unwrap()
    }

    fn release(&self, ask: &Release<'_>) -> ReleaseOutcome {
        self.runtime.block_on(self.store.release(ask)).unwrap()
    }

    fn force_release(&self, name: &LockName) -> Option<(String, u32)> {
        let holder = self.runtime.block_on(self.store.force_release(name)).unwrap()?;
        Some((holder.owner, holder.depth))
    }

    fn holder(&self, name: &LockName) -> Option<(String, u32)> {
        let holder = self.runtime.block_on(self.store.inspect(name)).unwrap()?;
        Some((holder.owner, holder.depth))
    }

    fn set_time(&self, now: Timestamp) {
        self.clock.set(now.as_micros()).unwrap();
    }
}

/// E42, E43, E45
#[test]
fn redis_keeps_locks_as_a_map_of_records_would() {
    let subject = Redis::start();
    for seed in 0..4 {
        locks::all(&subject, seed, 2_500);
        run(&subject.server, &[b"FLUSHALL"]);
    }
}

/// A client that sends the commands of Redisson (`semantics.md` §5).
struct Redisson<'s> {
    server: &'s RedisServer,
    owner: &'static str,
}

/// Its acquisition: nil if it has the lock, else the milliseconds that are left.
const THEIR_LOCK: &str = "if (redis.call('exists', KEYS[1]) == 0) \
    or (redis.call('hexists', KEYS[1], ARGV[2]) == 1) then \
    redis.call('hincrby', KEYS[1], ARGV[2], 1); redis.call('pexpire', KEYS[1], ARGV[1]); \
    return nil; end; return redis.call('pttl', KEYS[1]);";

/// Its release.
const THEIR_UNLOCK: &str = "local val = redis.call('get', KEYS[3]); \
    if val ~= false then return tonumber(val); end; \
    if (redis.call('hexists', KEYS[1], ARGV[3]) == 0) then return nil; end; \
    local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1); \
    if (counter > 0) then redis.call('pexpire', KEYS[1], ARGV[2]); \
    redis.call('set', KEYS[3], 0, 'px', ARGV[5]); return 0; \
    else redis.call('del', KEYS[1]); redis.call(ARGV[4], KEYS[2], ARGV[1]); \
    redis.call('set', KEYS[3], 1, 'px', ARGV[5]); return 1; end;";

impl Redisson<'_> {
    fn lock(&self, name: &str) -> Reply {
        let parts: [&[u8]; 6] = [
            b"EVAL",
            THEIR_LOCK.as_bytes(),
            b"1",
            name.as_bytes(),
            b"30000",
            self.owner.as_bytes(),
        ];
        run(self.server, &parts)
    }

    fn unlock(&self, name: &str, request: &str) -> Reply {
        let channel = format!("redisson_lock__channel:{{{name}}}");
        let record = format!("redisson_unlock_latch:{{{name}}}:{request}");
        let parts: [&[u8]; 11] = [
            b"EVAL",
            THEIR_UNLOCK.as_bytes(),
            b"3",
            name.as_bytes(),
            channel.as_bytes(),
            record.as_bytes(),
            b"0",
            b"30000",
            self.owner.as_bytes(),
            b"PUBLISH",
            b"20000",
        ];
        run(self.server, &parts)
    }
}

const JAVA: &str = "8743c9c0-0795-4907-87fd-6c719a6b4586:42";

fn hash(server: &RedisServer, name: &str) -> Reply {
    run(server, &[b"HGETALL", name.as_bytes()])
}

fn bulk(text: &str) -> Reply {
    Reply::Bulk(text.into())
}

#[test]
fn ours_is_a_hash_that_redisson_takes_for_its_own() {
    let subject = Redis::start();
    let (name, me) = (LockName::new("order").unwrap(), Owner::new(1, 9));
    let java = Redisson { server: &subject.server, owner: JAVA };
    let (outer, inner) =
        (plain(&name, LockKind::Reentrant, &me, 1), plain(&name, LockKind::Reentrant, &me, 2));

    granted(subject.acquire(&outer));
    granted(subject.acquire(&inner));

    assert_eq!(hash(&subject.server, "order"), Reply::Array(vec![bulk(me.as_str()), bulk("2")]));
    assert_eq!(pttl(&subject.server, b"order"), 30_000);
    assert_eq!(java.lock("order"), Reply::Integer(30_000), "theirs waits");
    assert_eq!(java.unlock("order", "1"), Reply::Nil, "and cannot release ours");
    subject.release(&end(&inner));
    assert_eq!(java.lock("order"), Reply::Integer(30_000));
    subject.release(&end(&outer));
    assert_eq!(java.lock("order"), Reply::Nil, "granted");
}

#[test]
fn theirs_keeps_ours_out_and_our_fence_rises_over_it() {
    let subject = Redis::start();
    let (name, me) = (LockName::new("order").unwrap(), Owner::new(1, 9));
    let java = Redisson { server: &subject.server, owner: JAVA };
    let first = plain(&name, LockKind::Reentrant, &me, 1);
    let before = granted(subject.acquire(&first));
    subject.release(&end(&first));

    assert_eq!((java.lock("order"), java.lock("order")), (Reply::Nil, Reply::Nil));

    let ask = plain(&name, LockKind::Reentrant, &me, 2);
    let busy = AcquireOutcome::Busy { left: Some(Duration::from_secs(30)) };
    assert_eq!(subject.acquire(&ask), busy);
    assert_eq!(subject.release(&end(&first)), ReleaseOutcome::Freed, "what it was answered before");
    let stale = plain(&name, LockKind::Reentrant, &me, 3);
    assert_eq!(subject.release(&end(&stale)), ReleaseOutcome::AlreadyLost);
    assert_eq!(subject.renew(&[longer(&ask, before)]), [RenewOutcome::Lost]);
    assert_eq!(pttl(&subject.server, b"order"), 30_000);
    let holder = subject.runtime.block_on(subject.store.inspect(&name)).unwrap().unwrap();
    assert_eq!((holder.owner.as_str(), holder.depth, holder.fence), (JAVA, 2, None));
    assert_eq!(
        (java.unlock("order", "a"), java.unlock("order", "b")),
        (Reply::Integer(0), Reply::Integer(1))
    );
    assert!(granted(subject.acquire(&ask)) > before);
}

struct ChannelNotifier(Sender<LockName>);

impl ReleaseNotifier for ChannelNotifier {
    fn notify(&self, name: &LockName) {
        let _ = self.0.send(name.clone());
    }
}

fn listen(
    subject: &Redis,
    name: &LockName,
) -> (tollgate_redis::RedisReleaseSubscription, Receiver<LockName>) {
    let (tell, told) = channel();
    let subscription = subject
        .runtime
        .block_on(subject.store.subscribe(name, Arc::new(ChannelNotifier(tell))))
        .unwrap();
    // The listener is notified once when the connection is made; whoever listens asks again anyway.
    while told.recv_timeout(Duration::from_millis(50)).is_ok() {}
    (subscription, told)
}

const SOON: Duration = Duration::from_secs(30);

#[test]
fn their_release_wakes_ours() {
    let subject = Redis::start();
    let name = LockName::new("order").unwrap();
    let java = Redisson { server: &subject.server, owner: JAVA };
    assert_eq!(java.lock("order"), Reply::Nil);
    let (_subscription, told) = listen(&subject, &name);

    assert_eq!(java.unlock("order", "a"), Reply::Integer(1));

    assert_eq!(told.recv_timeout(SOON).unwrap(), name);
}

#[test]
fn our_release_wakes_theirs_with_their_message() {
    let subject = Redis::start();
    for (name, channel) in
        [("order", "redisson_lock__channel:{order}"), ("a b{c}d", "redisson_lock__channel:a b{c}d")]
    {
        let (lock, me) = (LockName::new(name).unwrap(), Owner::new(1, 9));
        let mut java = Client::tcp(subject.server.address()).unwrap();
        java.command(&[b"SUBSCRIBE", channel.as_bytes()]).unwrap();
        let ask = plain(&lock, LockKind::Reentrant, &me, name.len() as u128);
        granted(subject.acquire(&ask));

        subject.release(&end(&ask));

        let message = Reply::Array(vec![bulk("message"), bulk(channel), bulk("0")]);
        assert_eq!(java.receive().unwrap(), message);
    }
}

#[test]
fn a_release_leaves_their_release_record_until_it_is_answered() {
    let subject = Redis::start();
    let (name, me) = (LockName::new("order").unwrap(), Owner::new(1, 9));
    let record = format!("redisson_unlock_latch:{{order}}:{}", HoldId::new(1));
    let get = || run(&subject.server, &[b"GET", record.as_bytes()]);
    let ask = plain(&name, LockKind::Reentrant, &me, 1);
    granted(subject.acquire(&ask));
    granted(subject.acquire(&plain(&name, LockKind::Reentrant, &me, 2)));

    subject.release(&end(&ask));
    assert_eq!(get(), bulk("0"), "still held");
    assert_eq!(pttl(&subject.server, record.as_bytes()), 20_000);

    let sole =
        Release { attempt: Attempt::Sole, ..end(&plain(&name, LockKind::Reentrant, &me, 2)) };
    assert_eq!(subject.release(&sole), ReleaseOutcome::Freed);
    let second = format!("redisson_unlock_latch:{{order}}:{}", HoldId::new(2));
    subject.runtime.block_on(until("the record is removed", || {
        run(&subject.server, &[b"EXISTS", second.as_bytes()]) == Reply::Integer(0)
    }));
}

#[test]
fn a_simple_lock_is_what_set_nx_makes() {
    let subject = Redis::start();
    let (name, me) = (LockName::new("job").unwrap(), Owner::new(1, 9));
    let ask = plain(&name, LockKind::Simple, &me, 1);

    granted(subject.acquire(&ask));
    assert_eq!(run(&subject.server, &[b"GET", b"job"]), bulk(me.as_str()));
    assert_eq!(pttl(&subject.server, b"job"), 30_000);
    assert_eq!(run(&subject.server, &[b"SET", b"job", b"x", b"NX", b"PX", b"9"]), Reply::Nil);
    subject.release(&end(&ask));

    run(&subject.server, &[b"SET", b"job", b"another", b"NX", b"PX", b"9000"]);
    let ask = plain(&name, LockKind::Simple, &me, 2);
    assert_eq!(subject.acquire(&ask), AcquireOutcome::Busy { left: Some(Duration::from_secs(9)) });
    assert_eq!(subject.release(&end(&ask)), ReleaseOutcome::AlreadyLost);
    assert_eq!(run(&subject.server, &[b"GET", b"job"]), bulk("another"));
}

#[test]
fn what_is_no_lock_is_left_alone_and_said_to_be_foreign() {
    let subject = Redis::start();
    let me = Owner::new(1, 9);
    run(&subject.server, &[b"RPUSH", b"list", b"x"]);
    run(&subject.server, &[b"HSET", b"hash", me.as_str().as_bytes(), b"many"]);
    run(&subject.server, &[b"SET", b"string", b"x"]);
    let kinds = [LockKind::Reentrant, LockKind::Simple];
    for (i, (key, kind)) in [
        ("list", kinds[0]),
        ("list", kinds[1]),
        ("hash", kinds[0]),
        ("hash", kinds[1]),
        ("string", kinds[0]),
    ]
    .into_iter()
    .enumerate()
    {
        let name = LockName::new(key).unwrap();
        let before = run(&subject.server, &[b"DUMP", key.as_bytes()]);

        let ask = plain(&name, kind, &me, i as u128);

        assert_eq!(subject.acquire(&ask), AcquireOutcome::Foreign, "{key} {kind:?}");
        assert_eq!(subject.release(&end(&ask)), ReleaseOutcome::AlreadyLost);
        assert_eq!(subject.renew(&[longer(&ask, Fence::MAX)]), [RenewOutcome::Lost]);
        assert_eq!(run(&subject.server, &[b"DUMP", key.as_bytes()]), before);
    }
    let list = LockName::new("list").unwrap();
    let error = subject.runtime.block_on(subject.store.inspect(&list)).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    let error = subject.runtime.block_on(subject.store.force_release(&list)).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
}

/// A sidecar that somebody overwrote is absent, whatever is in it.
#[test]
fn a_poisoned_sidecar_costs_no_lock() {
    let subject = Redis::start();
    let (name, me) = (LockName::new("order").unwrap(), Owner::new(1, 9));
    let sidecar = b"tg:lock:w:{order}";
    let start = locks::START.as_micros();
    for (i, poison) in [
        "",
        "1",
        "1 99999999999999999999 1 0 0 a:b c d",
        "2 1 1 0 0 a:b c d",
        "1 9007199254740992 1 0 0 a:b c d",
    ]
    .into_iter()
    .enumerate()
    {
        run(&subject.server, &[b"SET", sidecar, poison.as_bytes()]);
        let ask = plain(&name, LockKind::Reentrant, &me, i as u128);
        assert_eq!(granted(subject.acquire(&ask)).get(), start, "{poison}");
        assert_eq!(subject.release(&end(&ask)), ReleaseOutcome::Freed);
    }
    run(&subject.server, &[b"DEL", sidecar]);
    run(&subject.server, &[b"RPUSH", sidecar, b"x"]);
    granted(subject.acquire(&plain(&name, LockKind::Reentrant, &me, 10)));
    // And one that vanished while the lock is held: the holder is told that it is lost.
    run(&subject.server, &[b"DEL", sidecar]);
    let ask = plain(&name, LockKind::Reentrant, &me, 10);
    assert_eq!(subject.renew(&[longer(&ask, Fence::new(start).unwrap())]), [RenewOutcome::Lost]);
    assert_eq!(subject.release(&end(&ask)), ReleaseOutcome::AlreadyLost);
}

/// E32: the lock ends with its lease, the sidecar a day later.
#[test]
fn everything_has_an_end() {
    let subject = Redis::start();
    let me = Owner::new(1, 9);
    let day = 86_400_000;
    for (kind, name) in [(LockKind::Reentrant, "a"), (LockKind::Simple, "b")] {
        let lock = LockName::new(name).unwrap();
        let lease = Lease::new(Duration::from_secs(7)).unwrap();
        let ask = Acquire { lease, ..plain(&lock, kind, &me, name.len() as u128 + kind as u128) };

        let fence = granted(subject.acquire(&ask));

        let sidecar = format!("tg:lock:w:{{{name}}}");
        assert_eq!(pttl(&subject.server, name.as_bytes()), 7_000);
        assert_eq!(pttl(&subject.server, sidecar.as_bytes()), 7_000 + day);
        subject.set_time(Timestamp::from_micros(locks::START.as_micros() + 5_000_000));
        assert_eq!(subject.renew(&[longer(&ask, fence)]), [RenewOutcome::Held]);
        assert_eq!(pttl(&subject.server, name.as_bytes()), 7_000);
        assert_eq!(pttl(&subject.server, sidecar.as_bytes()), 7_000 + day);
        subject.set_time(locks::START);
    }
}

#[test]
fn holders_are_listed_with_what_they_say_of_themselves() {
    let subject = Redis::start();
    let me = Owner::new(1, 9);
    let long = "é".repeat(100);
    for i in 0..1_200_u32 {
        let name = LockName::new(&format!("list {{{i}}}")).unwrap();
        granted(subject.acquire(&Acquire {
            label: &long,
            ..plain(&name, LockKind::Reentrant, &me, i.into())
        }));
    }
    subject.set_time(Timestamp::from_micros(locks::START.as_micros() + 3_000_000));

    let (mut cursor, mut found) = (Some(0), Vec::new());
    while let Some(from) = cursor {
        let page = subject.runtime.block_on(subject.store.list(from)).unwrap();
        found.extend(page.holders);
        cursor = page.next;
    }

    found.sort_by(|a, b| a.name.cmp(&b.name));
    found.dedup();
    assert_eq!(found.len(), 1_200);
    let first = &found[0];
    assert_eq!(first.age, Some(Duration::from_secs(3)));
    assert_eq!(first.left, Some(Duration::from_secs(27)));
    assert_eq!(first.label, "é".repeat(64), "cut at 128 bytes, between characters");
    assert_eq!(first.fence.map(Fence::get), Some(locks::START.as_micros()));
}

#[test]
fn the_number_of_listening_processes_is_told() {
    let subject = Redis::start();
    let (name, me) = (LockName::new("order").unwrap(), Owner::new(1, 9));
    let (subscription, told) = listen(&subject, &name);
    let (second, _) = listen(&subject, &name);
    granted(subject.acquire(&plain(&name, LockKind::Reentrant, &me, 1)));
    let waiting =
        || subject.runtime.block_on(subject.store.inspect(&name)).unwrap().unwrap().waiting;

    assert_eq!(waiting(), 1, "one connection, however many listen");
    assert!(subject.force_release(&name).is_some());
    assert_eq!(told.recv_timeout(SOON).unwrap(), name, "a forced release wakes as well");

    granted(subject.acquire(&plain(&name, LockKind::Reentrant, &me, 2)));
    drop((subscription, second));
    subject.runtime.block_on(until("nobody listens", || waiting_now(&subject.server) == 0));
}

fn waiting_now(server: &RedisServer) -> i64 {
    match run(server, &[b"PUBSUB", b"NUMSUB", b"redisson_lock__channel:{order}"]) {
        Reply::Array(parts) => match parts.as_slice() {
            [_, Reply::Integer(count)] => *count,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// B19: the subscription is cut, and made again; whoever listens is told that it may have missed
/// something.
#[test]
fn a_cut_subscription_is_made_again_and_every_notifier_is_called() {
    let subject = Redis::start();
    let name = LockName::new("order").unwrap();
    let (_subscription, told) = listen(&subject, &name);

    run(&subject.server, &[b"CLIENT", b"KILL", b"TYPE", b"pubsub"]);

    assert_eq!(told.recv_timeout(SOON).unwrap(), name);
    assert_eq!(waiting_now(&subject.server), 1);
}

/// A user that may not hear of one lock hears of the others: one refusal is no reason to hang up.
#[test]
fn a_channel_that_may_not_be_heard_silences_no_other() {
    let subject = Redis::start();
    let heard = b"&redisson_lock__channel:{order}";
    run(&subject.server, &[b"ACL", b"SETUSER", b"default", b"resetchannels", heard]);
    let (forbidden, name) = (LockName::new("stock").unwrap(), LockName::new("order").unwrap());
    let (tell, told) = channel();
    let notifier = Arc::new(ChannelNotifier(tell));
    let _subscription = subject.runtime.block_on(async {
        tokio::select! {
            biased;
            refused = subject.store.subscribe(&forbidden, Arc::<ChannelNotifier>::clone(&notifier)) => {
                panic!("answered before the one that is heard: {refused:?}")
            }
            subscription = subject.store.subscribe(&name, Arc::<ChannelNotifier>::clone(&notifier)) => {
                subscription.unwrap()
            }
        }
    });

    let told_to = run(&subject.server, &[b"PUBLISH", b"redisson_lock__channel:{order}", b"0"]);

    assert_eq!(told_to, Reply::Integer(1));
    assert_eq!(told.recv_timeout(SOON).unwrap(), name);
}

#[test]
fn a_guarded_value_is_set_by_the_newest_fence_only() {
    let subject = Redis::start();
    let fence = |number| Fence::new(number).unwrap();
    let set = |number, value: &str| {
        let set = subject.store.set_fenced("stock", value.as_bytes(), fence(number), None);
        subject.runtime.block_on(set).unwrap()
    };

    assert_eq!(set(9, "nine"), FencedWrite::Set);
    assert_eq!(set(9, "again"), FencedWrite::Set, "the same holder may set it twice");
    assert_eq!(set(10, "ten"), FencedWrite::Set);
    assert_eq!(set(9, "stale"), FencedWrite::Stale { newest: fence(10) });
    assert_eq!(run(&subject.server, &[b"HGET", b"stock", b"value"]), bulk("ten"));
    assert_eq!(set(Fence::MAX.get(), "last"), FencedWrite::Set);
    assert_eq!(set(Fence::MAX.get() - 1, "stale"), FencedWrite::Stale { newest: Fence::MAX });

    run(&subject.server, &[b"SET", b"foreign", b"x"]);
    let foreign = subject.store.set_fenced("foreign", b"x", fence(1), None);
    let error = subject.runtime.block_on(foreign).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
}

/// A grant that must be copied waits for the replica; without it there is only the grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_waits_for_a_majority_of_replicas() {
    let server = RedisServer::builder().config("repl-diskless-sync-delay 0").start().unwrap();
    let replica = RedisServer::builder()
        .config(format!("replicaof 127.0.0.1 {}", server.port()))
        .start()
        .unwrap();
    until("the replica is up", || {
        let Reply::Bulk(info) = run(&replica, &[b"INFO", b"replication"]) else { return false };
        String::from_utf8(info).unwrap().contains("master_link_status:up")
    })
    .await;
    let store = connect(without_timeout(&server.url())).await;
    let (name, me) = (LockName::new("a").unwrap(), Owner::new(1, 1));
    let replicas = Replicas { count: 1.try_into().unwrap(), patience: LONG_DEADLINE };
    let ask = |hold, replicas| {
        let durability = Durability::Required(replicas);
        Acquire { durability, ..plain(&name, LockKind::Reentrant, &me, hold) }
    };

    let copied = store.acquire(&ask(1, replicas)).await.unwrap();

    assert!(matches!(copied, AcquireOutcome::Granted { copies: 1, depth: 1, .. }), "{copied:?}");
    let held = run(&replica, &[b"HGETALL", b"a"]);
    assert_eq!(held, Reply::Array(vec![bulk(me.as_str()), bulk("1")]), "it is there already");
    replica.kill().unwrap();
    let patience = Duration::from_millis(20);
    let alone = store.acquire(&ask(2, Replicas { patience, ..replicas })).await.unwrap();
    assert!(matches!(alone, AcquireOutcome::Granted { copies: 0, depth: 2, .. }), "{alone:?}");
}

/// E42: fences rise over a clock that steps back, over a flush, and over one that jumps ahead.
#[test]
fn fences_rise_over_steps_of_the_clock_and_over_a_flush() {
    let subject = Redis::start();
    let me = Owner::new(1, 9);
    let start = locks::START.as_micros();
    let hour = 3_600_000_000;
    for (kind, name) in [(LockKind::Reentrant, "a"), (LockKind::Simple, "b")] {
        let lock = LockName::new(name).unwrap();
        let grant = |hold: u128, micros: u64| {
            subject.set_time(Timestamp::from_micros(micros));
            let ask = plain(&lock, kind, &me, hold + 100 * kind as u128);
            let fence = granted(subject.acquire(&ask));
            subject.release(&end(&ask));
            fence.get()
        };

        assert_eq!(grant(1, start), start);
        assert_eq!(grant(2, start - hour), start + 1, "back by an hour");
        assert_eq!(grant(3, start - hour), start + 2);
        assert_eq!(grant(4, start + hour), start + hour, "ahead by an hour");
        run(&subject.server, &[b"FLUSHALL"]);
        assert_eq!(grant(5, start + hour + 1), start + hour + 1);
    }
}
