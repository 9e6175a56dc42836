//! Every fault of the proxy, in both directions: at most one error per call, never a hang, and a
//! link that works again afterwards.

use tollgate_harness::{Direction, Fault, FaultProxy, RedisServer};

use super::*;

const CALLS: u64 = 8;

/// The outcomes of calls under a fault, and whether each count was paid for at most once.
async fn under(
    config: fn(&str) -> Config,
    direction: Direction,
    fault: Fault,
) -> (u64, Vec<Cause>) {
    let (_server, proxy, link) = proxied(config).await;
    let before = recovered(&link).await;

    proxy.set(direction, fault);
    let (mut answered, mut causes) = (0, Vec::new());
    for _ in 0..CALLS {
        // A hang would end here, not in the patience of the test's runner.
        match tokio::time::timeout(LONG_DEADLINE, run(&link)).await.expect("a call hangs") {
            Ok(_) => answered += 1,
            Err(error) => causes.push(cause(&error)),
        }
    }
    proxy.set(direction, Fault::Pass);

    let after = recovered(&link).await;
    assert!(after > before + answered, "{fault:?} {direction:?}: what was answered was charged");
    (answered, causes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_and_sliced_bytes_are_only_slow() {
    for direction in [Direction::ToServer, Direction::ToClient] {
        for fault in [Fault::Slice(1), Fault::Slice(7), Fault::Latency(Duration::from_millis(2))] {
            assert_eq!(
                under(without_timeout, direction, fault).await,
                (CALLS, vec![]),
                "{fault:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_end_fail_their_calls_once() {
    for direction in [Direction::ToServer, Direction::ToClient] {
        for fault in [Fault::Reset, Fault::CutAfter(0), Fault::CutAfter(1), Fault::CutAfter(9)] {
            let (answered, causes) = under(without_timeout, direction, fault).await;
            assert_eq!(answered, 0, "{fault:?} {direction:?}");
            let known = |cause: &Cause| matches!(cause, Cause::Lost | Cause::NotConnected);
            assert!(causes.iter().all(known), "{fault:?} {direction:?}: {causes:?}");
            assert_eq!(causes[0], Cause::Lost, "{fault:?} {direction:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_reply_is_none() {
    // A reply is some fifty bytes, so each of these cuts one of them somewhere else.
    let server = RedisServer::start().unwrap();
    // Loads the script: an answer that it is not known would be cut before anything is counted.
    count(&link(without_timeout(&server.url())).await).await;
    let proxy = FaultProxy::start(server.address()).unwrap();
    for bytes in 20..120 {
        proxy.set(Direction::ToClient, Fault::Pass);
        let link = link(without_timeout(&proxy.url())).await;
        proxy.set(Direction::ToClient, Fault::CutAfter(bytes));
        let before = stored(&server);

        let mut answered = 0;
        let error = loop {
            match run(&link).await {
                Ok(_) => answered += 1,
                Err(error) => break error,
            }
        };

        // A cut between two replies may be noticed before the next call or by it.
        let charged = stored(&server) - before - answered;
        match (error.kind(), cause(&error)) {
            (StoreErrorKind::Timeout, Cause::Lost) => assert!(charged <= 1, "cut after {bytes}"),
            (StoreErrorKind::Unavailable, Cause::NotConnected) => assert_eq!(charged, 0),
            other => panic!("cut after {bytes}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_ends_the_connection_and_nothing_else() {
    let (answered, causes) = under(without_timeout, Direction::ToClient, Fault::Corrupt).await;
    assert_eq!(answered, 0);
    assert_eq!(causes[0], Cause::Lost);

    // Redis says what it thinks of garbage, and hangs up.
    let (answered, causes) = under(breaker_stays_closed, Direction::ToServer, Fault::Corrupt).await;
    assert_eq!(answered, 0, "{causes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_vanish_are_timeouts() {
    for direction in [Direction::ToServer, Direction::ToClient] {
        let (answered, causes) = under(breaker_stays_closed, direction, Fault::BlackHole).await;
        assert_eq!(answered, 0);
        assert_eq!(causes[0], Cause::NoReply);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_comes_back_empty_is_used_again() {
    let (server, link) = linked(without_timeout).await;
    assert_eq!(count(&link).await, 1);

    for _ in 0..3 {
        server.kill().unwrap();
        until("the connection ended", || link.health().connected == 0).await;
        assert_eq!(cause(&run(&link).await.unwrap_err()), Cause::NotConnected);
        server.restart().unwrap();
        assert_eq!(recovered(&link).await, 1, "it is empty, and knows no script");
    }
}
