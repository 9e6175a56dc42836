//! A server lives at the time its clock was set to.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]
#![allow(clippy::arithmetic_side_effects, reason = "the moments are literals")]

use std::thread;
use std::time::Duration;

use tollgate_harness::{RedisServer, Reply, ServerClock};

/// Some moment of 2033, with microseconds that a float of seconds would lose.
const T: u64 = 2_000_000_000_123_457;
const MS: u64 = 1_000;
const HOUR: u64 = 3_600_000 * MS;

const TIME_IN_A_SCRIPT: &[&[u8]] = &[b"EVAL", b"return redis.call('TIME')", b"0"];

fn server_at(micros: u64) -> (RedisServer, ServerClock) {
    let clock = ServerClock::new().unwrap();
    clock.set(micros).unwrap();
    (RedisServer::builder().clock(&clock).start().unwrap(), clock)
}

/// The answer of TIME at this moment.
fn time(micros: u64) -> Reply {
    let [seconds, rest] = [micros / 1_000_000, micros % 1_000_000];
    Reply::Array([seconds, rest].map(|part| Reply::Bulk(part.to_string().into())).into())
}

#[test]
fn time_is_what_was_set_forwards_and_back() {
    let (server, clock) = server_at(T);

    for micros in [T, T + 1, T + HOUR, T - HOUR, 1, 999_999, T + 100 * 365 * 24 * HOUR, T] {
        clock.set(micros).unwrap();
        assert_eq!(server.command(&[b"TIME"]).unwrap(), time(micros));
        assert_eq!(server.command(TIME_IN_A_SCRIPT).unwrap(), time(micros));
        assert_eq!(clock.micros().unwrap(), micros);
    }
}

#[test]
fn the_first_command_after_a_step_sees_keys_expired() {
    let (server, clock) = server_at(T);
    let in_a_script = b"return {redis.call('EXISTS', KEYS[1]), redis.call('TIME')[2]}";
    let script: &[&[u8]] = &[b"EVAL", in_a_script, b"1", b"key"];
    let seen = |exists, micros: &str| {
        Reply::Array(vec![Reply::Integer(exists), Reply::Bulk(micros.into())])
    };

    for read in [&[b"GET".as_slice(), b"key"], script] {
        clock.set(T).unwrap();
        server.command(&[b"SET", b"key", b"1", b"PX", b"100"]).unwrap();
        clock.set(T + 99 * MS).unwrap();
        assert_eq!(server.command(&[b"PTTL", b"key"]).unwrap(), Reply::Integer(1));
        assert_eq!(server.command(script).unwrap(), seen(1, "222457"));

        // A key still lives in the millisecond it expires in.
        clock.set(T + 100 * MS).unwrap();
        assert_eq!(server.command(script).unwrap(), seen(1, "223457"));
        assert_eq!(server.command(&[b"PTTL", b"key"]).unwrap(), Reply::Integer(0));

        clock.set(T + 101 * MS).unwrap();
        let gone = server.command(read).unwrap();
        assert!([Reply::Nil, seen(0, "224457")].contains(&gone), "{gone:?}");
    }
}

#[test]
fn stepping_back_lengthens_what_is_left() {
    let (server, clock) = server_at(T);
    server.command(&[b"SET", b"key", b"1", b"PX", b"500"]).unwrap();

    clock.set(T - HOUR).unwrap();

    assert_eq!(server.command(&[b"PTTL", b"key"]).unwrap(), Reply::Integer(3_600_500));
}

#[test]
fn keys_nobody_touches_expire_by_the_server_s_cron() {
    let (server, clock) = server_at(T);
    server.command(&[b"SET", b"key", b"1", b"PX", b"500"]).unwrap();

    clock.set(T + HOUR).unwrap();

    while server.command(&[b"DBSIZE"]).unwrap() != Reply::Integer(0) {
        thread::sleep(Duration::from_millis(5));
    }
}

/// On Redis 7.0; later versions may freeze it. A script that asks once is right on both.
#[test]
fn time_goes_on_within_a_script() {
    let (server, clock) = server_at(T);
    let until_it_changes =
        b"local t = redis.call('TIME')[2] redis.call('SET', KEYS[1], t, 'PX', 1) \
        while redis.call('TIME')[2] == t do end return redis.call('GET', KEYS[1])";

    let script =
        thread::spawn(move || server.command(&[b"EVAL", until_it_changes, b"1", b"key"]).unwrap());
    while !script.is_finished() {
        thread::sleep(Duration::from_millis(5));
        clock.set(clock.micros().unwrap() + HOUR + 1).unwrap();
    }

    assert!(matches!(script.join().unwrap(), Reply::Bulk(_)), "expired within the script");
}

#[test]
fn servers_can_share_a_clock_and_keep_it_through_a_restart() {
    let (one, clock) = server_at(T);
    let two = RedisServer::builder().clock(&clock).start().unwrap();

    one.restart().unwrap();
    clock.set(T + 1).unwrap();

    assert_eq!(one.command(&[b"TIME"]).unwrap(), time(T + 1));
    assert_eq!(two.command(&[b"TIME"]).unwrap(), time(T + 1));
}

#[test]
fn zero_is_the_real_time() {
    let (server, clock) = server_at(1);

    clock.set(0).unwrap();

    let Reply::Array(now) = server.command(&[b"TIME"]).unwrap() else { panic!("no time") };
    let Reply::Bulk(seconds) = &now[0] else { panic!("no seconds") };
    let seconds: u64 = std::str::from_utf8(seconds).unwrap().parse().unwrap();
    assert!(seconds > 1_700_000_000, "{seconds} was in 2023");
}

#[test]
fn ten_thousand_steps_are_all_seen() {
    let (server, clock) = server_at(T);

    for step in 0..10_000 {
        // Every third one goes back.
        let micros = if step % 3 == 2 { T - step * 1_009 } else { T + step * 999_983 };
        clock.set(micros).unwrap();
        assert_eq!(server.command(TIME_IN_A_SCRIPT).unwrap(), time(micros));
    }
}
