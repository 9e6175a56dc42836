//! The same histories through the core and through the shipped script on a real server whose clock
//! the test moves: who passed, every field of every answer, and what is stored.

use std::cell::RefCell;
use std::net::TcpStream;

use tollgate_core::algorithm::sliding_log::Log;
use tollgate_core::testing::suite::{self, Subject};
use tollgate_core::{Answer, Counter, Key, Plan, Request, State, Timestamp};
use tollgate_harness::{Client, RedisServer, Reply as Raw, ServerClock};

use crate::batch::{Batch, Owned, Tally};
use crate::link::{Call, Reply};
use crate::{keys, layout, script::SCRIPT};

/// The script behind a blocking connection.
struct Scripted {
    server: RedisServer,
    clock: ServerClock,
    client: RefCell<Client<TcpStream>>,
    sha: Vec<u8>,
    tally: RefCell<Tally>,
}

impl Scripted {
    fn start() -> Self {
        let clock = ServerClock::new().unwrap();
        // Keys that nobody touches would be expired by a timer in real time: a clock that jumps
        // ahead and back again would find them or not as it happens.
        let builder = RedisServer::builder().config("enable-debug-command yes");
        let server = builder.clock(&clock).start().unwrap();
        clock.set(1_700_000_000_000_000).unwrap();
        server.command(&[b"DEBUG", b"SET-ACTIVE-EXPIRE", b"0"]).unwrap();
        let mut client = Client::tcp(server.address()).unwrap();
        let loaded = client.command(&[b"SCRIPT", b"LOAD", SCRIPT.as_bytes()]).unwrap();
        let Raw::Bulk(sha) = loaded else { panic!("{loaded:?}") };
        Self {
            server,
            clock,
            client: RefCell::new(client),
            sha,
            tally: RefCell::new(Tally::default()),
        }
    }

    fn run(&self, call: &Call) -> Reply {
        let count = call.keys.len().to_string();
        let mut parts: Vec<&[u8]> = vec![b"EVALSHA", &self.sha, count.as_bytes()];
        parts.extend(call.keys.iter().map(Vec::as_slice));
        parts.extend([&b"0"[..], b""]);
        parts.extend(call.args.iter().map(Vec::as_slice));
        let raw = self.client.borrow_mut().command(&parts).unwrap();
        let Raw::Array(parts) = raw else { panic!("{raw:?}") };
        let mut values = parts.into_iter().map(|part| match part {
            Raw::Bulk(bytes) => Some(bytes),
            Raw::Nil => None,
            other => panic!("{other:?}"),
        });
        let now = values.next().flatten().unwrap();
        Reply { now: String::from_utf8(now).unwrap().parse().unwrap(), values: values.collect() }
    }
}

impl Subject for Scripted {
    fn charge(&self, batch: &[Request<'_>]) -> Vec<Answer> {
        let mut answers: Vec<Option<Answer>> = vec![None; batch.len()];
        let mut buffer = Vec::new();
        let mut batch = Batch::new(batch.iter().map(|request| Owned::new(request, &mut buffer)));
        for round in 0.. {
            assert!(round < 10, "never decided: {batch:?}");
            let reply = self.run(&batch.call());
            let tally = batch.answer(&reply, |i, answer| answers[i] = Some(answer)).unwrap();
            assert_eq!(tally.mismatches, 0, "Lua and Rust disagree");
            self.tally.borrow_mut().converted += tally.converted;
            self.tally.borrow_mut().poisoned += tally.poisoned;
            if batch.is_done() {
                break;
            }
        }
        answers.into_iter().map(Option::unwrap).collect()
    }

    fn set_time(&self, now: Timestamp) {
        self.clock.set(now.as_micros()).unwrap();
    }

    fn holds(&self, key: Key<'_>, counter: &Counter, now: Timestamp) {
        let mut name = Vec::new();
        keys::name(None, key, counter.under(), &mut name);
        let ttl = self.server.command(&[b"PTTL", &name]).unwrap();
        if matches!(counter.state(), State::Absent) {
            assert_eq!(ttl, Raw::Integer(-2), "{key:?} is absent");
            return;
        }
        let Raw::Integer(ttl) = ttl else { panic!("{ttl:?}") };
        let idle = counter.under().idle_at(counter.state()).unwrap();
        let millis = i64::try_from(idle.since(now).as_micros() / 1_000).unwrap() + 1;
        assert!(
            ttl >= 0 && (ttl - millis).abs() <= 1,
            "{key:?} lives {ttl} ms, not {millis}: {counter:?} at {now}"
        );
        let mut expected = Vec::new();
        layout::write_tag(counter.under(), &mut expected);
        if let (State::SlidingLog(log), Plan::SlidingLog(plan)) =
            (counter.state(), counter.under().plan())
        {
            let (tag, stored) = self.log(&name);
            assert_eq!(tag, expected);
            let live = |log: &Log| log.live(plan.window_us, now).collect::<Vec<_>>();
            assert_eq!(live(&stored), live(log), "{key:?}");
        } else {
            layout::encode(counter.state(), &mut expected);
            let stored = self.server.command(&[b"GET", &name]).unwrap();
            assert_eq!(stored, Raw::Bulk(expected), "{key:?} {counter:?}");
        }
    }
}

impl Scripted {
    fn log(&self, name: &[u8]) -> (Vec<u8>, Log) {
        let all = self.server.command(&[b"ZRANGE", name, b"0", b"-1", b"WITHSCORES"]).unwrap();
        let Raw::Array(all) = all else { panic!("{all:?}") };
        let all: Vec<Vec<u8>> = all
            .into_iter()
            .map(|part| match part {
                Raw::Bulk(bytes) => bytes,
                other => panic!("{other:?}"),
            })
            .collect();
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        let base = number(&all[2][..8]) - number(&all[2][8..]);
        let mut dump = base.to_le_bytes().to_vec();
        for pair in all[2..].chunks(2) {
            let at: f64 = String::from_utf8(pair[1].clone()).unwrap().parse().unwrap();
            dump.extend_from_slice(&(at as u64).to_le_bytes());
            dump.extend_from_slice(&pair[0][..8]);
        }
        (all[0].clone(), layout::read_dump(&dump).unwrap())
    }
}

#[test]
fn the_suite_of_every_store_holds() {
    let steps = std::env::var("TOLLGATE_STEPS").ok().and_then(|n| n.parse().ok()).unwrap_or(2_000);
    let seed = std::env::var("TOLLGATE_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let scripted = Scripted::start();

    suite::all(&scripted, seed, steps);

    assert!(scripted.tally.borrow().converted > 0);
}
