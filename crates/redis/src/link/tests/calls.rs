//! Calls: answered, refused, dropped, repeated.

use tollgate_harness::{Client, Direction, Fault, RedisServer, ServerClock};

use super::*;

const SECOND: u64 = 1_000_000;
const EPOCH: u64 = 1_700_000_000 * SECOND;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_arguments_arrive_as_they_are() {
    const ECHO: &str = "
        local t = redis.call('TIME')
        local now = string.format('%.0f', t[1] * 1000000 + t[2])
        return {now, KEYS[1], ARGV[2], ARGV[3], false, ARGV[4]}
    ";
    let server = RedisServer::start().unwrap();
    let link = Link::connect(&without_timeout(&server.url()), ECHO).await.unwrap();
    let bytes: Vec<u8> = (0..=255).collect();
    let keys = std::iter::once(bytes.as_slice()).collect();
    let call = Call { keys, args: vec![vec![], bytes.clone()], ..Call::default() };

    let reply = link.run(call, clock::now() + LONG_DEADLINE).await.unwrap();

    let values = vec![Some(bytes.clone()), Some(vec![]), Some(vec![]), None, Some(bytes)];
    assert_eq!(reply.values, values);
    assert!(reply.now > EPOCH);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_is_flushed_again_and_again_runs_every_time() {
    let (server, link) = linked(without_timeout).await;

    for expected in 1..=200 {
        if expected % 2 == 0 {
            server.command(&[b"SCRIPT", b"FLUSH", b"SYNC"]).unwrap();
        }
        assert_eq!(count(&link).await, expected);
    }

    assert_eq!(link.health().noscript, 101, "once for the first, and once per flush");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_too_many_in_flight_is_refused_at_once() {
    let (server, link) = linked(|url| without_timeout(url).max_in_flight(2)).await;
    let link = Arc::new(link);
    server.stop().unwrap();
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let link = Arc::clone(&link);
            tokio::spawn(async move { run(&link).await })
        })
        .collect();
    until("two calls in flight", || link.shared.in_flight.available_permits() == 0).await;

    let error = run(&link).await.unwrap_err();

    server.resume().unwrap();
    assert_failed(&error, StoreErrorKind::Unavailable, &Cause::TooManyInFlight);
    for call in waiting {
        call.await.unwrap().unwrap();
    }
    assert_eq!(count(&link).await, 3, "there is room again");
    assert_eq!(link.health().rejected, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_in_the_past_sends_nothing() {
    let (_server, link) = linked(without_timeout).await;

    let error = link.run(call(), clock::now()).await.unwrap_err();

    assert_failed(&error, StoreErrorKind::Unavailable, &Cause::DeadlinePassed);
    assert_eq!(count(&link).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_arrives_late_is_dropped() {
    let clock = ServerClock::new().unwrap();
    clock.set(EPOCH).unwrap();
    let server = RedisServer::builder().clock(&clock).start().unwrap();
    let link = link(breaker_stays_closed(&server.url())).await;
    assert_eq!(recovered(&link).await, 1);

    server.stop().unwrap();
    let error = run(&link).await.unwrap_err();
    clock.set(EPOCH + SECOND).unwrap();
    server.resume().unwrap();

    assert_failed(&error, StoreErrorKind::Timeout, &Cause::NoReply);
    assert_eq!(recovered(&link).await, 2, "the caller was answered otherwise, so it did not count");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_clock_is_set_is_followed() {
    const HOUR: u64 = 3_600 * SECOND;
    let clock = ServerClock::new().unwrap();
    clock.set(EPOCH).unwrap();
    let server = RedisServer::builder().clock(&clock).start().unwrap();
    let config = without_timeout(&server.url()).deadline(Duration::from_secs(20));
    let link = link(config).await;
    assert_eq!(count(&link).await, 1);

    clock.set(EPOCH + HOUR).unwrap();
    let ahead = run(&link).await.unwrap();
    assert_eq!((number(&ahead), ahead.now), (2, EPOCH + HOUR));
    assert_eq!(link.health().dropped_late, 1, "asked for the time, and sent again");

    clock.set(EPOCH - HOUR).unwrap();
    let back = run(&link).await.unwrap();
    assert_eq!((number(&back), back.now), (3, EPOCH - HOUR));
    let slack = link.shared.not_after(2 * link.shared.config.deadline) - (EPOCH - HOUR);
    assert!(slack < 60 * SECOND, "the next call would be dropped in time again: {slack}");
    assert_eq!(link.health().dropped_late, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_that_redis_answers_with_charge_nothing() {
    let (server, link) = linked(|url| breaker_opens_early(url).deadline(LONG_DEADLINE)).await;
    let set = |name: &str, value: &str| {
        server.command(&[b"CONFIG", b"SET", name.as_bytes(), value.as_bytes()]).unwrap();
    };
    let unavailable = |code: &str| (StoreErrorKind::Unavailable, code.to_owned());
    assert_eq!(count(&link).await, 1);

    set("maxmemory", "1");
    let error = run(&link).await.unwrap_err();
    set("maxmemory", "0");
    assert_eq!((error.kind(), code(&error)), unavailable("OOM"));

    server.command(&[b"REPLICAOF", b"127.0.0.1", b"1"]).unwrap();
    let error = run(&link).await.unwrap_err();
    server.command(&[b"REPLICAOF", b"NO", b"ONE"]).unwrap();
    assert_eq!((error.kind(), code(&error)), unavailable("READONLY"));

    let told = Call { args: vec![b"fail".into()], ..call() };
    let error = link.run(told, clock::now() + LONG_DEADLINE).await.unwrap_err();
    // Ours fails before it writes; that another did so cannot be known here.
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    assert_eq!(count(&link).await, 2, "no failed call has counted");

    server.command(&[b"DEL", KEY.as_bytes()]).unwrap();
    server.command(&[b"RPUSH", KEY.as_bytes(), b"x"]).unwrap();
    let error = run(&link).await.unwrap_err();
    assert_eq!((error.kind(), code(&error)), (StoreErrorKind::Corrupt, "WRONGTYPE".to_owned()));

    let health = link.health();
    assert_eq!((health.breaker_opens, health.reconnects), (0, 0), "it answers: {health:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_server_is_left_alone_until_it_is_done() {
    let server = RedisServer::builder().config("lua-time-limit 1").start().unwrap();
    let link = link(breaker_opens_early(&server.url()).deadline(LONG_DEADLINE)).await;
    let mut other = Client::tcp(server.address()).unwrap();
    let endless = std::thread::spawn(move || other.command(&[b"EVAL", b"while true do end", b"0"]));
    let busy = |reply: Raw| matches!(reply, Raw::Error(text) if text.starts_with("BUSY"));
    until("a busy server", || busy(server.command(&[b"PING"]).unwrap())).await;

    let error = run(&link).await.unwrap_err();
    assert_eq!((error.kind(), code(&error)), (StoreErrorKind::Unavailable, "BUSY".to_owned()));
    let error = run(&link).await.unwrap_err();
    assert_failed(&error, StoreErrorKind::Unavailable, &Cause::BreakerOpen);

    server.command(&[b"SCRIPT", b"KILL"]).unwrap();
    endless.join().unwrap().unwrap();
    assert_eq!(recovered(&link).await, 1);
    assert_eq!(link.health().breaker_opens, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_opens_the_breaker_until_it_answers_a_ping() {
    let (server, link) = linked(breaker_opens_early).await;
    assert_eq!(recovered(&link).await, 1);
    server.stop().unwrap();

    // Unless a hiccup of this machine has opened it already.
    let _ = run(&link).await.unwrap_err();
    assert!(link.health().breaker_open);
    let error = run(&link).await.unwrap_err();
    assert_failed(&error, StoreErrorKind::Unavailable, &Cause::BreakerOpen);

    server.resume().unwrap();
    recovered(&link).await;
    assert!(!link.health().breaker_open);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_caller_who_waits_in_vain_is_enough_to_look() {
    let server = RedisServer::start().unwrap();
    let breaker = BreakerSettings::default().failures(u32::MAX).span(SHORT_DEADLINE);
    let link = link(breaker_opens_early(&server.url()).breaker(breaker)).await;
    recovered(&link).await;
    server.stop().unwrap();

    let error = run(&link).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout);

    until("an open breaker", || link.health().breaker_open).await;
    server.resume().unwrap();
    recovered(&link).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_answers_pings_too_slowly_is_not_asked() {
    let (_server, proxy, link) = proxied(breaker_opens_early).await;
    recovered(&link).await;

    proxy.set(Direction::ToClient, Fault::Latency(4 * SHORT_DEADLINE));
    let _ = run(&link).await.unwrap_err();
    until("an open breaker", || link.health().breaker_open).await;
    let before = proxy.traffic(Direction::ToClient).delivered;
    until("three late answers to PING", || {
        proxy.traffic(Direction::ToClient).delivered >= before + 3 * "+PONG\r\n".len()
    })
    .await;
    assert!(link.health().breaker_open);

    proxy.set(Direction::ToClient, Fault::Pass);
    recovered(&link).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_stays_silent_is_replaced() {
    let (_server, proxy, link) = proxied(breaker_opens_early).await;
    recovered(&link).await;

    proxy.set(Direction::ToClient, Fault::BlackHole);
    let error = loop {
        // It may have been open already, for a hiccup of this machine.
        let error = run(&link).await.unwrap_err();
        if error.kind() == StoreErrorKind::Timeout {
            break error;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(cause(&error), Cause::NoReply);
    until("it is given up", || link.health().connected == 0).await;
    proxy.set(Direction::ToClient, Fault::Pass);

    recovered(&link).await;
    assert!(link.health().reconnects > 0);
}

/// The reply is lost after the execution, and then the connection.
async fn lose_the_reply(retry: RetryPolicy) -> (RedisServer, Arc<Link>, Result<Reply, StoreError>) {
    let (server, proxy, link) = proxied(|url| without_timeout(url).retry(retry)).await;
    let link = Arc::new(link);
    assert_eq!(count(&link).await, 1);

    proxy.set(Direction::ToClient, Fault::BlackHole);
    let waiting = Arc::clone(&link);
    let waiting = tokio::spawn(async move { run(&waiting).await });
    until("the reply has vanished", || {
        let traffic = proxy.traffic(Direction::ToClient);
        traffic.received > traffic.delivered
    })
    .await;
    proxy.set(Direction::ToClient, Fault::Pass);
    proxy.reset_open();

    let result = waiting.await.unwrap();
    recovered(&link).await;
    (server, link, result)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_is_fetched_again_and_charged_once() {
    let (server, link, result) = lose_the_reply(RetryPolicy::Once).await;

    let reply = result.unwrap();
    assert_eq!(reply.values, [Some(b"2".to_vec()), Some(b"again".to_vec())]);
    assert_eq!(stored(&server), 3, "one before, the lost one, and one after");
    let health = link.health();
    assert_eq!((health.retried, health.lost, health.reconnects), (1, 1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_retry_a_lost_reply_may_have_happened() {
    let (server, link, result) = lose_the_reply(RetryPolicy::Never).await;

    let error = result.unwrap_err();
    assert_failed(&error, StoreErrorKind::Timeout, &Cause::Lost);
    assert_eq!(stored(&server), 3);
    let health = link.health();
    assert_eq!((health.retried, health.lost, health.reconnects), (0, 1, 1));
}
