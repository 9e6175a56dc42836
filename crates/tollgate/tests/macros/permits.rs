//! Permits of concurrency limits last as long as the function, however it ends.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::sync::oneshot;
use tollgate::{Limiter, Refused, limit, scope};

use crate::common::{StoreConnection, backend};
use crate::functions::still;
use crate::wire::until;

#[limit("1 concurrent")]
async fn hang(entered: oneshot::Sender<()>, end: oneshot::Receiver<()>) -> Result<(), Refused> {
    entered.send(()).unwrap();
    let _ = end.await;
    Ok(())
}

#[limit("1 concurrent lease 5m")]
fn nested(depth: u8) -> Result<u8, Refused> {
    if depth == 0 {
        panic!("as ordered");
    }
    Ok(match nested(depth - 1) {
        Ok(inner) => inner,
        Err(_) => depth,
    })
}

/// Runs `hang` until it has begun; ends it when the sender is dropped.
async fn begin<S: tollgate::Store + 'static>(
    limiter: &Limiter<S>,
) -> (tokio::task::JoinHandle<Result<(), Refused>>, oneshot::Sender<()>) {
    let (entered, has_entered) = oneshot::channel();
    let (end, ended) = oneshot::channel();
    let task = tokio::spawn(scope::with(limiter, hang(entered, ended)));
    has_entered.await.unwrap();
    (task, end)
}

/// Returns true if `hang` would begin now.
async fn is_free<S: tollgate::Store + 'static>(limiter: &Limiter<S>) -> bool {
    let (entered, _entered) = oneshot::channel();
    let (_, ended) = oneshot::channel();
    scope::with(limiter, hang(entered, ended)).await.is_ok()
}

#[tokio::test]
async fn a_permit_is_held_until_the_function_ends_or_is_cancelled() {
    let limiter = still();
    let (task, end) = begin(&limiter).await;
    assert!(!is_free(&limiter).await);
    drop(end);
    task.await.unwrap().unwrap();
    assert!(is_free(&limiter).await);

    let (task, _end) = begin(&limiter).await;
    assert!(!is_free(&limiter).await);
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert!(is_free(&limiter).await);
}

#[test]
fn a_panic_gives_the_permit_back() {
    let limiter = still();
    let call = |depth| scope::call(&limiter, || nested(depth));
    assert_eq!(call(2).unwrap(), 2, "who calls itself finds its own permit taken");
    assert!(catch_unwind(AssertUnwindSafe(|| call(0))).is_err());
    assert_eq!(call(1).unwrap(), 1);
}

#[tokio::test]
async fn a_store_that_takes_a_trip_gets_it_back_too() {
    let limiter = Limiter::new(StoreConnection::to(&backend()));
    let (task, _end) = begin(&limiter).await;
    assert!(!is_free(&limiter).await);

    task.abort();

    until(|| is_free(&limiter)).await;
}
