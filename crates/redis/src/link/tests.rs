//! The link against real servers, through a proxy that does to it what networks do.
//!
//! Nothing here depends on speed: deadlines are long where time is not the point, and whatever
//! happens in the background is waited for. What has a latency bound is in `latency.rs` and runs
//! with `make faults`.

mod caller_written;
mod calls;
mod connect;
mod faults;
mod impostor;
#[cfg(faults)]
mod latency;
mod secrets;

use std::error::Error;
use std::time::Duration;

use tollgate_core::{StoreError, StoreErrorKind};
use tollgate_harness::{FaultProxy, RedisServer, Reply as Raw};

use super::*;
use crate::config::BreakerSettings;

/// A deadline that no test reaches.
const LONG_DEADLINE: Duration = Duration::from_secs(60);
/// A deadline that a test means to miss.
const SHORT_DEADLINE: Duration = Duration::from_millis(30);
const KEY: &str = "tg:{test}:count";

/// Counts how often it was executed, and honours the time and the id it is given.
const COUNT: &str = "
    local t = redis.call('TIME')
    local now = string.format('%.0f', t[1] * 1000000 + t[2])
    if ARGV[2] ~= '' then
      local known = redis.call('GET', '{test}' .. ARGV[2])
      if known then return {now, known, 'again'} end
    end
    if ARGV[1] ~= '0' and tonumber(now) > tonumber(ARGV[1]) then
      return {redis.status_reply('late')}
    end
    local count = (redis.call('GET', KEYS[1]) or 0) + 1
    if ARGV[3] == 'fail' then error('told to') end
    redis.call('SET', KEYS[1], count)
    if ARGV[2] ~= '' then redis.call('SET', '{test}' .. ARGV[2], count, 'PX', 60000) end
    return {now, tostring(count), false}
";

fn without_timeout(url: &str) -> Config {
    Config::new(url).unwrap().deadline(LONG_DEADLINE).connect_timeout(LONG_DEADLINE)
}

/// Times out soon; the breaker opens at the first failure, and closes soon.
fn breaker_opens_early(url: &str) -> Config {
    let breaker = BreakerSettings::default().failures(1).span(Duration::ZERO);
    let breaker = breaker.probe(Duration::from_millis(1), Duration::from_millis(5));
    Config::new(url).unwrap().deadline(SHORT_DEADLINE).breaker(breaker)
}

/// Times out soon; the breaker never opens.
fn breaker_stays_closed(url: &str) -> Config {
    let breaker = BreakerSettings::default().failures(u32::MAX).span(Duration::MAX);
    breaker_opens_early(url).breaker(breaker)
}

async fn link(config: Config) -> Link {
    Link::connect(&config, COUNT).await.unwrap()
}

/// A server and a link to it.
async fn linked(config: impl FnOnce(&str) -> Config) -> (RedisServer, Link) {
    let server = RedisServer::start().unwrap();
    let link = link(config(&server.url())).await;
    (server, link)
}

/// A server, a proxy in front of it, and a link through the proxy.
async fn proxied(config: impl FnOnce(&str) -> Config) -> (RedisServer, FaultProxy, Link) {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.address()).unwrap();
    let link = link(config(&proxy.url())).await;
    (server, proxy, link)
}

fn call() -> Call<'static> {
    Call { keys: std::iter::once(KEY.as_bytes()).collect(), ..Call::default() }
}

async fn run(link: &Link) -> Result<Reply, StoreError> {
    link.run(call(), clock::now() + link.shared.config.deadline).await
}

/// The count of a call that must succeed.
async fn count(link: &Link) -> u64 {
    number(&run(link).await.unwrap())
}

fn number(reply: &Reply) -> u64 {
    let bytes = reply.values[0].as_deref().unwrap();
    std::str::from_utf8(bytes).unwrap().parse().unwrap()
}

/// The stored count.
fn stored(server: &RedisServer) -> u64 {
    match server.command(&[b"GET", KEY.as_bytes()]).unwrap() {
        Raw::Bulk(bytes) => String::from_utf8(bytes).unwrap().parse().unwrap(),
        Raw::Nil => 0,
        other => panic!("{other:?}"),
    }
}

/// Waits for what happens in the background.
async fn until(what: &str, mut happened: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if happened() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within half a minute: {what}");
}

/// Waits until the link works again.
async fn recovered(link: &Link) -> u64 {
    for _ in 0..6_000 {
        if let Ok(reply) = run(link).await {
            return number(&reply);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not recovered within half a minute: {:?}", link.health());
}

fn cause(error: &StoreError) -> Cause {
    error.source().unwrap().downcast_ref::<Cause>().unwrap().clone()
}

fn code(error: &StoreError) -> String {
    match cause(error) {
        Cause::Answer { code, .. } => code,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_failed(error: &StoreError, kind: StoreErrorKind, why: &Cause) {
    assert_eq!((error.kind(), cause(error)), (kind, why.clone()));
}
