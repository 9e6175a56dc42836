//! Calls that their caller writes itself: answered as others are, or not run at all.

use std::task::{Context, Waker};

use tollgate_harness::{Direction, Fault};

use super::*;

/// The deadline of a lock step.
const USUAL: Duration = Duration::from_millis(250);

async fn here(link: &Link, patience: Duration) -> Option<Result<Reply, StoreError>> {
    link.run_on_caller(&call(), clock::now() + patience).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_run_here_over_tcp_and_a_unix_socket_once_the_script_is_known() {
    let server = RedisServer::start().unwrap();
    for url in [server.url(), server.unix_url()] {
        server.command(&[b"SCRIPT", b"FLUSH"]).unwrap();
        let link = link(without_timeout(&url)).await;
        let before = stored(&server);
        assert!(here(&link, LONG_DEADLINE).await.is_none(), "Redis does not know the script");
        assert_eq!(stored(&server), before, "so nothing was run");
        assert_eq!(count(&link).await, before + 1);

        for more in 2..10 {
            let reply = here(&link, LONG_DEADLINE).await.expect("it is known now").unwrap();
            assert_eq!(number(&reply), before + more);
        }
    }
}

/// The deadline of a step is above what it takes to be posted, whatever that of decisions is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_run_here_under_the_usual_deadline_and_not_under_a_shorter() {
    let (server, link) = linked(|url| Config::new(url).unwrap()).await;
    recovered(&link).await;
    let before = stored(&server);

    assert!(here(&link, SHORT_DEADLINE).await.is_none());
    assert_eq!(stored(&server), before);
    // A machine may be too busy for any deadline, but not all the time.
    let mut done = false;
    for _ in 0..1_000 {
        done |= matches!(here(&link, USUAL).await, Some(Ok(_)));
        if done {
            break;
        }
    }
    assert!(done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_are_each_told_their_own() {
    let (_server, link) = linked(without_timeout).await;
    let link = Arc::new(link);
    let first = recovered(&link).await;
    let mut all = JoinSet::new();
    for _ in 0..100 {
        let link = Arc::clone(&link);
        all.spawn(async move {
            number(&here(&link, LONG_DEADLINE).await.expect("there is room").unwrap())
        });
    }

    let mut told = all.join_all().await;

    told.sort_unstable();
    assert_eq!(told, (first + 1..=first + 100).collect::<Vec<_>>());
}

/// The caller may be busy when the reply comes, and must not take it for news.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_of_the_server_is_that_when_its_answer_came() {
    let (server, link) = linked(without_timeout).await;
    recovered(&link).await;
    server.stop().unwrap();
    let mut step = std::pin::pin!(here(&link, LONG_DEADLINE));
    let written = step.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(written.is_pending(), "nobody answers it yet");
    server.resume().unwrap();
    // Answers come in order: the one to the step is there before this one.
    count(&link).await;
    let later = clock::now();

    let reply = step.await.expect("it was sent").unwrap();

    assert!(link.shared.time.ahead(later, Duration::ZERO) > reply.now);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_is_told_by_the_deadline_and_the_link_goes_on() {
    let (_server, proxy, link) = proxied(breaker_stays_closed).await;
    recovered(&link).await;

    proxy.set(Direction::ToClient, Fault::BlackHole);
    let told = tokio::time::timeout(LONG_DEADLINE, here(&link, USUAL)).await.expect("it hangs");
    let error = told.expect("it was sent").unwrap_err();

    // The connection may have been given up meanwhile.
    assert!(matches!(cause(&error), Cause::NoReply | Cause::Lost), "{error:?}");
    assert_eq!(error.kind(), StoreErrorKind::Timeout, "it may have been executed");
    proxy.set(Direction::ToClient, Fault::Pass);
    proxy.reset_open();
    recovered(&link).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_ends_fails_who_wrote_on_it() {
    let (_server, proxy, link) = proxied(without_timeout).await;
    recovered(&link).await;

    proxy.set(Direction::ToServer, Fault::CutAfter(9));
    let told =
        tokio::time::timeout(LONG_DEADLINE, here(&link, LONG_DEADLINE)).await.expect("it hangs");
    let error = told.expect("it was sent").unwrap_err();

    assert_eq!((cause(&error), error.kind()), (Cause::Lost, StoreErrorKind::Timeout));
    assert_eq!(link.health().lost, 1);
    proxy.set(Direction::ToServer, Fault::Pass);
    recovered(&link).await;
    assert!(
        matches!(here(&link, LONG_DEADLINE).await, Some(Ok(_))),
        "the next connection is written on too"
    );
}
