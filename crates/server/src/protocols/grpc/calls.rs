//! The calls of one connection, which all run in the task of that connection.
//!
//! hyper would make each call a task. Such tasks move between threads, contend for their connection's
//! lock, and are written one by one. A decision takes microseconds, so calls that arrive together are
//! decided in turn and answered in one write.
//!
//! A call must not block the thread, as elsewhere in a task.

use std::mem;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use hyper::rt::Executor;

use crate::sync::lock;

type CallFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Queue of the calls that hyper has read. At most as many as a connection may have streams.
#[derive(Clone, Default)]
pub(super) struct CallQueue(Arc<Mutex<Vec<CallFuture>>>);

impl CallQueue {
    fn take(&self) -> Vec<CallFuture> {
        mem::take(&mut *lock(&self.0))
    }
}

impl<F: Future + Send + 'static> Executor<F> for CallQueue {
    fn execute(&self, call: F) {
        // A call that panics ends without an answer; the others of its connection do not end with it.
        let call = AssertUnwindSafe(call).catch_unwind().map(drop);
        lock(&self.0).push(Box::pin(call));
    }
}

/// The calls in flight on one connection.
#[derive(Default)]
pub(super) struct ConnectionCalls {
    arrivals: CallQueue,
    in_flight: FuturesUnordered<CallFuture>,
}

impl ConnectionCalls {
    /// Queue for new calls.
    pub(super) fn arrivals(&self) -> CallQueue {
        self.arrivals.clone()
    }

    /// Polls the connection and its calls. Ready with the result of the connection when it has ended.
    pub(super) fn poll<C: Future>(
        &mut self,
        connection: Pin<&mut C>,
        context: &mut Context<'_>,
    ) -> Poll<C::Output> {
        // Before the connection, so that it writes what they answer.
        self.poll_calls(context);
        let ended = connection.poll(context);
        if ended.is_pending() {
            self.in_flight.extend(self.arrivals.take());
            self.poll_calls(context);
        }
        ended
    }

    fn poll_calls(&mut self, context: &mut Context<'_>) {
        while let Poll::Ready(Some(())) = self.in_flight.poll_next_unpin(context) {}
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::task::Waker;

    use tokio::sync::oneshot;

    use super::*;

    /// A connection that reads these calls when it is first polled, and ends when it is polled and so
    /// many are answered.
    async fn connection(
        arrivals: CallQueue,
        calls: Vec<CallFuture>,
        answered: &AtomicUsize,
        last: usize,
    ) {
        calls.into_iter().for_each(|call| arrivals.execute(call));
        let ends = || answered.load(Relaxed) == last;
        poll_fn(|_| if ends() { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    fn call(answered: &Arc<AtomicUsize>, work: impl Future + Send + 'static) -> CallFuture {
        let answered = Arc::clone(answered);
        Box::pin(async move {
            work.await;
            answered.fetch_add(1, Relaxed);
        })
    }

    #[test]
    fn calls_that_arrive_together_are_answered_before_the_connection_writes() {
        let (mut calls, answered) = (ConnectionCalls::default(), Arc::new(AtomicUsize::new(0)));
        let arrive = (0..16).map(|_| call(&answered, async {})).collect();
        let mut connection = pin!(connection(calls.arrivals(), arrive, &answered, 16));
        let mut context = Context::from_waker(Waker::noop());

        assert_eq!(calls.poll(connection.as_mut(), &mut context), Poll::Pending);
        assert_eq!(calls.poll(connection.as_mut(), &mut context), Poll::Ready(()));
    }

    #[test]
    fn a_call_that_panics_ends_alone() {
        let (mut calls, answered) = (ConnectionCalls::default(), Arc::new(AtomicUsize::new(0)));
        let broken = async { panic!("as a test wants it") };
        let arrive = vec![call(&answered, broken), call(&answered, async {})];
        let mut connection = pin!(connection(calls.arrivals(), arrive, &answered, 1));
        let mut context = Context::from_waker(Waker::noop());

        assert_eq!(calls.poll(connection.as_mut(), &mut context), Poll::Pending);
        assert_eq!(calls.poll(connection.as_mut(), &mut context), Poll::Ready(()));
        assert!(calls.in_flight.is_empty(), "nothing is kept of either");
    }

    #[tokio::test]
    async fn a_call_that_waits_wakes_its_connection_and_is_dropped_with_it() {
        let (mut calls, answered) = (ConnectionCalls::default(), Arc::new(AtomicUsize::new(0)));
        let ((tell, told), (held, holds)) = (oneshot::channel::<()>(), oneshot::channel::<()>());
        let arrive = vec![call(&answered, told), call(&answered, holds)];
        let arrivals = calls.arrivals();
        let running = tokio::spawn(async move {
            let mut connection = pin!(connection(arrivals, arrive, &answered, 1));
            poll_fn(|context| calls.poll(connection.as_mut(), context)).await
        });
        tokio::task::yield_now().await;

        tell.send(()).unwrap();

        running.await.unwrap();
        assert!(held.is_closed(), "nobody waits for it any more");
    }
}
