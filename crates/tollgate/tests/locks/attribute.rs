//! Functions under `#[lock]`, on the embedded store and on a real Redis.

use std::error::Error;
use std::fmt::Display;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use tollgate::locks::LockStore;
use tollgate::scope::{self, LockScope};
use tollgate::{
    EmbeddedStore, Limiter, LockError, LockState, Locks, NotLocked, NotLockedKind, Refused, limit,
    lock,
};
use tollgate::{Fence, Owner};

use crate::stage::{Stage, brisk, on_both_stores, until};

on_both_stores! {
    a_sum_in_a_locked_function_is_exact,
    it_is_held_inside_and_released_before_it_returns,
    whoever_holds_it_keeps_the_function_out,
    a_loss_stops_the_body_where_it_is,
    a_loss_that_is_found_out_at_the_end_is_told,
    cancelled_or_panicked_it_gives_the_lock_back,
    the_owner_of_a_guard_enters_again,
    what_was_dropped_is_given_back_when_settled,
}

/// Would lose additions if two were inside.
#[lock("sum", wait = forever, locks = locks)]
async fn add<S: LockStore>(locks: &Locks<S>, sum: &AtomicU64) -> Result<(), NotLocked> {
    let before = sum.load(SeqCst);
    tokio::task::yield_now().await;
    sum.store(before + 1, SeqCst);
    Ok(())
}

async fn a_sum_in_a_locked_function_is_exact(stage: impl Stage) {
    let sum = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let locks = stage.process().await;
        for _ in 0..6 {
            let (locks, sum) = (locks.clone(), Arc::clone(&sum));
            tasks.push(tokio::spawn(async move {
                for _ in 0..20 {
                    add(&locks, &sum).await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }

    assert_eq!(sum.load(SeqCst), 2 * 6 * 20);
}

struct Order {
    id: u64,
    place: (u8, &'static str),
}

impl Order {
    const fn number(&self) -> u64 {
        self.id
    }
}

/// Holds several locks one after another, and looks at them from inside.
struct Shop<S: LockStore> {
    locks: Locks<S>,
}

impl<S: LockStore> Shop<S> {
    /// Returns the fence and the name of the lock that it holds meanwhile.
    #[lock("order:{order.number()}:{order.place.1}", lease = "60s", locks = self.locks, fence = fence, guard = held)]
    pub async fn pay(&self, order: &Order) -> Result<(Fence, String), NotLocked> {
        assert_eq!((held.fence(), held.state()), (fence, LockState::Sure));
        let holder = self.locks.inspect(held.name().as_str()).await;
        let holder = holder.ok().flatten().unwrap();
        assert_eq!((holder.fence, holder.owner.as_str()), (Some(fence), held.owner().as_str()));
        assert!(holder.left > Some(std::time::Duration::from_secs(30)), "its own lease");
        Ok((fence, held.name().to_string()))
    }

    #[lock("{{stock}}", by = (self.prefix(), item), wait = "0s", locks = self.locks, guard = held)]
    async fn take(&mut self, item: impl Display + Send) -> Result<String, NotLocked> {
        Ok(held.name().to_string())
    }

    const fn prefix(&self) -> &'static str {
        "eu"
    }
}

async fn it_is_held_inside_and_released_before_it_returns(stage: impl Stage) {
    let mut shop = Shop { locks: stage.process().await };
    let order = Order { id: 42, place: (0, "pa:ris") };

    let (first, name) = shop.pay(&order).await.unwrap();

    assert_eq!(name, "order:42:pa:ris");
    assert!(shop.locks.inspect(&name).await.unwrap().is_none(), "released by then");
    let (second, _) = shop.pay(&order).await.unwrap();
    assert!(second > first);
    assert_eq!(shop.take("red:shoe").await.unwrap(), "{stock}:2:eu:8:red:shoe");
}

#[lock("job:{id}", wait = "20ms")]
async fn job(id: u32) -> Result<u32, NotLocked> {
    Ok(id)
}

async fn whoever_holds_it_keeps_the_function_out(stage: impl Stage) {
    let (here, there) = (stage.process().await, stage.process().await);
    let guard = there.lock("job:7").await.unwrap();

    let busy = scope::with_locks(&here, job(7)).await.unwrap_err();
    assert_eq!((busy.kind(), busy.finished()), (NotLockedKind::Busy, false));
    assert_eq!(busy.function(), "locks::attribute::job");
    assert_eq!(
        busy.to_string(),
        "`locks::attribute::job` did not run: another owner held the lock \"job:7\" for 20ms"
    );
    assert_eq!(scope::with_locks(&here, job(8)).await.unwrap(), 8, "another lock");
    guard.release().await.unwrap();
    assert_eq!(scope::with_locks(&here, job(7)).await.unwrap(), 7);
}

/// Sets a flag when it is dropped.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Forgets its own lock, as an operator or a failover would, and goes on for ever.
#[lock("lost", locks = locks)]
async fn loses<S: LockStore>(locks: &Locks<S>, gone: &AtomicBool) -> Result<(), NotLocked> {
    let _on_drop = SetOnDrop(gone);
    locks.force_release("lost", "test").await.unwrap();
    pending::<()>().await;
    Ok(())
}

/// E44
async fn a_loss_stops_the_body_where_it_is(stage: impl Stage) {
    let locks = stage.builder().await.lease(brisk()).build();
    let gone = AtomicBool::new(false);

    let lost = loses(&locks, &gone).await.unwrap_err();

    assert_eq!((lost.kind(), lost.finished()), (NotLockedKind::Lost, false));
    assert!(gone.load(SeqCst), "what it had was dropped");
    assert!(lost.to_string().ends_with("was stopped: its lock \"lost\" was lost"), "{lost}");
}

#[derive(Debug, PartialEq)]
enum Failure {
    Own(u8),
    Lock(NotLockedKind, bool),
}

impl From<NotLocked> for Failure {
    fn from(not: NotLocked) -> Self {
        Self::Lock(not.kind(), not.finished())
    }
}

impl From<LockError> for Failure {
    fn from(_: LockError) -> Self {
        Self::Own(0)
    }
}

type Answer<T> = Result<T, Failure>;

/// Ends before the watchdog can know.
#[lock("lost", locks = locks)]
#[must_use]
async fn ends<S: LockStore>(locks: &Locks<S>, own: Option<u8>) -> Answer<u8> {
    locks.force_release("lost", "test").await?;
    if let Some(own) = own {
        return Err(Failure::Own(own));
    }
    Ok(7)
}

async fn a_loss_that_is_found_out_at_the_end_is_told(stage: impl Stage) {
    let locks = stage.process().await;

    assert_eq!(ends(&locks, None).await, Err(Failure::Lock(NotLockedKind::Lost, true)));
    assert_eq!(ends(&locks, Some(3)).await, Err(Failure::Own(3)), "its own error says more");
}

#[lock("slow", locks = locks)]
async fn slow<S: LockStore>(locks: &Locks<S>, panics: bool) -> Result<(), NotLocked> {
    assert!(!panics, "on purpose");
    pending::<()>().await;
    Ok(())
}

async fn cancelled_or_panicked_it_gives_the_lock_back(stage: impl Stage) {
    let locks = stage.process().await;
    let free = async || locks.inspect("slow").await.unwrap().is_none();
    let call = |panics| {
        let locks = locks.clone();
        tokio::spawn(async move { slow(&locks, panics).await })
    };

    let running = call(false);
    until("it runs", async || !free().await).await;
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    until("it is free again", free).await;
    assert!(call(true).await.unwrap_err().is_panic());
    until("it is free again", free).await;
}

#[lock("tree", locks = locks, owner = owner, wait = "0s", fence = fence)]
async fn climb<S: LockStore>(
    locks: &Locks<S>,
    owner: &Owner,
    left: u8,
) -> Result<Vec<Fence>, NotLocked> {
    let mut fences = match left.checked_sub(1) {
        Some(left) => Box::pin(climb(locks, owner, left)).await?,
        None => Vec::new(),
    };
    fences.push(fence);
    Ok(fences)
}

/// E47
async fn the_owner_of_a_guard_enters_again(stage: impl Stage) {
    let locks = stage.process().await;
    let fences = climb(&locks, &locks.owner(), 3).await.unwrap();
    assert_eq!(fences, [fences[0]; 4]);
    assert!(locks.inspect("tree").await.unwrap().is_none());
}

/// A process that ends waits for this, or leaves locks that only their lease ends.
async fn what_was_dropped_is_given_back_when_settled(stage: impl Stage) {
    let (here, there) = (stage.process().await, stage.process().await);
    here.settled().await;
    for i in 0..20 {
        drop(here.lock(&format!("dropped {i}")).await.unwrap());
    }
    here.settled().await;
    for i in 0..20 {
        assert!(there.inspect(&format!("dropped {i}")).await.unwrap().is_none(), "{i}");
    }
}

struct Path<T>(T);

/// Patterns, generics, `mut`, `impl Trait` in and out, a constant, and a raw name.
#[lock("{REALM}:{id}:{name}", error = |not: NotLocked| not.function().len())]
async fn r#match<'a, T: Display + Send>(
    Path(id): Path<u64>,
    name: T,
    mut list: Vec<u8>,
    then: impl Fn(&'a Order) -> u64 + Send,
    order: &'a Order,
) -> Result<(u64, impl std::fmt::Debug), usize> {
    list.push(1);
    Ok((then(order) + id, list))
}

const REALM: &str = "shop";

#[tokio::test]
async fn functions_keep_their_signature() {
    let locks = Locks::new(EmbeddedStore::new());
    let order = Order { id: 40, place: (0, "") };
    let call = || r#match(Path(2), "x", vec![0], |order| order.id, &order);

    let (sum, list) = scope::with_locks(&locks, call()).await.unwrap();
    assert_eq!((sum, format!("{list:?}")), (42, "[0, 1]".to_owned()));
    assert_eq!(call().await.map(|_| ()), Err("locks::attribute::match".len()));
    let _held = locks.lock("shop:2:x").await.unwrap();
    // Waiting ends with whoever waits.
    let waits = scope::with_locks(&locks, call());
    assert!(tokio::time::timeout(std::time::Duration::from_millis(20), waits).await.is_err());
}

trait Mail {
    async fn send(&self) -> Result<u8, NotLocked>;
}

struct Post;

impl Mail for Post {
    #[lock("mail")]
    async fn send(&self) -> Result<u8, NotLocked> {
        Ok(1)
    }
}

#[lock("{name}", locks = locks)]
async fn named(locks: &Locks<EmbeddedStore>, name: &str) -> Result<(), NotLocked> {
    Ok(())
}

#[tokio::test]
async fn what_is_wrong_is_told() {
    let locks = Locks::new(EmbeddedStore::new());

    let nowhere = Post.send().await.unwrap_err();
    assert_eq!(nowhere.kind(), NotLockedKind::Misconfigured);
    assert!(nowhere.to_string().contains("no locks are in scope"), "{nowhere}");
    assert_eq!(scope::with_locks(&locks, Post.send()).await.unwrap(), 1);
    for name in [String::new(), "x".repeat(1025)] {
        let failed = named(&locks, &name).await.unwrap_err();
        assert_eq!((failed.kind(), failed.name()), (NotLockedKind::Failed, None));
        assert!(matches!(failed.error(), Some(LockError::Name(_))), "{failed:?}");
        assert!(failed.source().is_some());
    }
    assert!(named(&locks, &"x".repeat(1024)).await.is_ok());
}

#[tokio::test]
async fn a_scope_is_given_to_what_is_spawned() {
    let locks = Locks::new(EmbeddedStore::new());
    assert!(LockScope::current().is_none());
    scope::with_locks(&locks, async {
        let alone = tokio::spawn(job(1)).await.unwrap();
        assert_eq!(alone.unwrap_err().kind(), NotLockedKind::Misconfigured);
        let scope = LockScope::current().unwrap();
        assert_eq!(tokio::spawn(scope.run(job(1))).await.unwrap().unwrap(), 1);
    })
    .await;
}

#[derive(Debug, PartialEq)]
enum Both {
    Limit,
    Lock,
}

impl From<Refused> for Both {
    fn from(_: Refused) -> Self {
        Self::Limit
    }
}

impl From<NotLocked> for Both {
    fn from(_: NotLocked) -> Self {
        Self::Lock
    }
}

#[limit("1 per 1h")]
#[lock("both", wait = "0s")]
#[limit("5 per 1h", by = id)]
async fn limit_first(id: u8) -> Result<u8, Both> {
    Ok(id)
}

#[lock("both", wait = "0s")]
#[limit("1 per 1h", "50 concurrent")]
async fn lock_first(id: u8) -> Result<u8, Both> {
    Ok(id)
}

/// In whichever order the attributes are written, a caller over a limit does not wait for a lock.
#[tokio::test]
async fn limits_are_asked_before_the_lock() {
    let locks = Locks::new(EmbeddedStore::new());
    let limiter = Limiter::new(EmbeddedStore::new());
    let _held = locks.lock("both").await.unwrap();
    scope::with(
        &limiter,
        scope::with_locks(&locks, async {
            assert_eq!(limit_first(1).await, Err(Both::Lock));
            assert_eq!(limit_first(1).await, Err(Both::Limit));
            assert_eq!(lock_first(1).await, Err(Both::Lock));
            assert_eq!(lock_first(1).await, Err(Both::Limit));
        }),
    )
    .await;
}
