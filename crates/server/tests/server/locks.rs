//! `tollgate locks`: who holds what, and taking it from them.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;
use tollgate_harness::{RedisServer, Reply};

use super::lock::{Holding, run, text, tollgate, until_waiting};

const JAVA: &str = "8743c9c0-0795-4907-87fd-6c719a6b4586:42";

fn listed(redis: &RedisServer, args: &[&str]) -> Vec<Value> {
    let output = run(redis, &[&["locks", "list", "--json"], args].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn names(redis: &RedisServer, args: &[&str]) -> Vec<String> {
    listed(redis, args).iter().map(|lock| lock["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn holders_are_listed_with_all_that_is_known_of_them() {
    let redis = RedisServer::start().unwrap();
    let held: Vec<Holding> = ["order:1", "order:2", "stock\u{1b}[2J"]
        .iter()
        .map(|name| Holding::start(&redis, &[name], "echo $TOLLGATE_FENCE $TOLLGATE_OWNER; read x"))
        .collect();
    let waiting = Holding::start(&redis, &["other"], "echo up; read x");
    let mut waiter = tollgate(&redis).args(["lock", "order:1", "true"]).spawn().unwrap();
    until_waiting(&redis, "order:1", 1);
    redis.command(&[b"HSET", b"java", JAVA.as_bytes(), b"2"]).unwrap();

    assert_eq!(names(&redis, &[]), ["order:1", "order:2", "other", "stock\u{1b}[2J"]);
    assert_eq!(names(&redis, &["order:?"]), ["order:1", "order:2"]);
    assert_eq!(names(&redis, &["nobody:*"]), Vec::<String>::new());
    let first = &listed(&redis, &["order:1"])[0];
    let (fence, owner) = held[0].said.split_once(' ').unwrap();
    assert_eq!(
        (first["fence"].to_string().as_str(), first["owner"].as_str()),
        (fence, Some(owner))
    );
    assert_eq!((&first["count"], &first["waiting_processes"]), (&1.into(), &1.into()));
    assert!(first["age_ms"].is_u64() && first["left_ms"].as_u64() <= Some(30_000), "{first}");
    let label = first["label"].as_str().unwrap();
    assert!(label.ends_with(&format!("pid {}", held[0].child.id())), "{label}");
    let java = &listed(&redis, &["java"])[0];
    assert_eq!((java["owner"].as_str(), &java["count"]), (Some(JAVA), &2.into()));
    assert!(java["fence"].is_null() && java["age_ms"].is_null(), "{java}");

    let table = text(&run(&redis, &["locks", "list"]).stdout);
    assert!(table.starts_with("NAME"), "{table}");
    assert_eq!(table.lines().count(), 5, "{table}");
    assert!(!table.contains('\u{1b}') && table.contains(r"stock\u{1b}[2J"), "{table}");
    let some = run(&redis, &["locks", "list", "--most", "2", "--json"]);
    assert_eq!(text(&some.stdout).lines().count(), 2);
    assert!(text(&some.stderr).contains("more than 2"), "{}", text(&some.stderr));

    for holding in held.into_iter().chain([waiting]) {
        assert_eq!(holding.finish().0, Some(0));
    }
    assert!(waiter.wait().unwrap().success());
    assert_eq!(names(&redis, &[]), Vec::<String>::new());
}

#[test]
fn a_lock_is_taken_by_force_only_when_it_was_meant_and_leaves_a_trace() {
    let redis = RedisServer::start().unwrap();
    let held = Holding::start(
        &redis,
        &["--lease", "6s", "a"],
        "echo $TOLLGATE_FENCE $TOLLGATE_OWNER; exec sleep 3600",
    );
    let (fence, owner) = held.said.split_once(' ').unwrap();
    let (fence, owner): (u64, _) = (fence.parse().unwrap(), owner.to_owned());
    let mut waiter = tollgate(&redis);
    waiter.args(["lock", "a", "--", "sh", "-c", "echo $TOLLGATE_FENCE"]);
    let waiter = waiter.stdout(Stdio::piped()).spawn().unwrap();
    until_waiting(&redis, "a", 1);

    let unasked = run(&redis, &["locks", "force-release", "a"]);
    assert_eq!(unasked.status.code(), Some(2));
    assert!(text(&unasked.stderr).contains("use --yes"), "{}", text(&unasked.stderr));
    assert_eq!(names(&redis, &["a"]), ["a"]);

    let force = ["locks", "force-release", "--yes", "--reason", "its node is gone", "a"];
    let forced = tollgate(&redis).args(force).env("USER", "eve\u{1b}").output().unwrap();

    assert_eq!(forced.status.code(), Some(0), "{}", text(&forced.stderr));
    assert!(text(&forced.stdout).starts_with(&format!("taken from {owner} [")));
    let audit: Value = serde_json::from_str(text(&forced.stderr).trim()).unwrap();
    assert_eq!(
        (&audit["audit"], &audit["lock"], &audit["owner"], &audit["fence"], &audit["reason"]),
        (
            &true.into(),
            &"a".into(),
            &owner.as_str().into(),
            &fence.into(),
            &"its node is gone".into()
        )
    );
    assert!(audit["timestamp"].is_string(), "{audit}");
    let by = audit["by"].as_str().unwrap();
    assert!(by.starts_with(r"eve\u{1b} (uid ") && by.contains(" at "), "{by}");

    let next = waiter.wait_with_output().unwrap();
    assert_eq!(next.status.code(), Some(0));
    assert!(text(&next.stdout).trim().parse::<u64>().unwrap() > fence, "the old one is behind");
    assert_eq!(held.end().0, Some(124), "and is told");
    let nobody = run(&redis, &["locks", "force-release", "--yes", "a"]);
    assert_eq!(nobody.status.code(), Some(1));
    assert_eq!(text(&nobody.stdout), "nobody holds \"a\"\n");
    redis.command(&[b"HSET", b"java", JAVA.as_bytes(), b"1"]).unwrap();
    assert_eq!(run(&redis, &["locks", "force-release", "--yes", "java"]).status.code(), Some(0));
    assert_eq!(redis.command(&[b"EXISTS", b"java"]).unwrap(), Reply::Integer(0));
}

/// A terminal: whoever sits at it, and what programs have.
fn terminal() -> (File, File) {
    const NOCTTY: i32 = 0o400;
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let mut open = OpenOptions::new();
    let slave = open.read(true).write(true).custom_flags(NOCTTY).open(name.to_str().unwrap());
    (File::from(master), slave.unwrap())
}

/// Runs the program at a terminal where this is typed; its status, and what is to be read there.
fn typed(redis: &RedisServer, args: &[&str], line: &str) -> (Option<i32>, String) {
    let (mut here, there) = terminal();
    let mut command = tollgate(redis);
    command.args(args).stdin(there.try_clone().unwrap()).stderr(there);
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    // With it goes the last copy of the terminal's other end in this process.
    drop(command);
    here.write_all(line.as_bytes()).unwrap();
    let (mut read, mut buffer) = (Vec::new(), [0; 4_096]);
    // Once nobody has the other end any more, reading fails.
    while let Ok(length @ 1..) = here.read(&mut buffer) {
        read.extend_from_slice(&buffer[..length]);
    }
    (child.wait().unwrap().code(), text(&read))
}

#[test]
fn at_a_terminal_it_asks_first() {
    let redis = RedisServer::start().unwrap();
    redis.command(&[b"HSET", b"a", JAVA.as_bytes(), b"1"]).unwrap();
    let force = ["locks", "force-release", "a"];

    let (code, read) = typed(&redis, &force, "n\n");
    assert_eq!(code, Some(1), "{read}");
    assert!(read.contains(&format!("\"a\" is held by {JAVA}")), "{read}");
    assert_eq!(redis.command(&[b"EXISTS", b"a"]).unwrap(), Reply::Integer(1));

    let (code, read) = typed(&redis, &force, "yes\n");
    assert_eq!(code, Some(0), "{read}");
    assert!(read.contains("a lock was taken from its holder audit=true"), "{read}");
    assert!(!read.contains('\u{1b}'), "{read}");
    assert_eq!(redis.command(&[b"EXISTS", b"a"]).unwrap(), Reply::Integer(0));

    // A command may use the terminal.
    let (code, read) = typed(&redis, &["lock", "a", "sh", "-c", "read x; exit $x"], "7\n");
    assert_eq!(code, Some(7), "{read}");
}

/// Foreign keys are neither listed nor released.
#[test]
fn what_is_no_lock_stays() {
    let redis = RedisServer::start().unwrap();
    redis.command(&[b"RPUSH", b"list", b"x"]).unwrap();
    for args in [&["locks", "list", "list"][..], &["locks", "force-release", "--yes", "list"]] {
        let output = run(&redis, args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains("no lock"), "{}", text(&output.stderr));
    }
    assert_eq!(redis.command(&[b"EXISTS", b"list"]).unwrap(), Reply::Integer(1));
    let embedded = run(&redis, &["locks", "list", "--store", "embedded"]);
    assert_eq!(embedded.status.code(), Some(2));
}

#[test]
fn the_manual_and_the_completions_know_locks_and_not_what_is_hidden() {
    let redis = RedisServer::start().unwrap();
    let man = text(&run(&redis, &["man"]).stdout);
    assert!(man.contains("TOLLGATE_LOCK_LEASE") && man.contains("force\\-release"), "{man}");
    assert!(!man.contains("ends with its parent"), "{man}");
    let help = text(&run(&redis, &["lock", "--help"]).stdout);
    for word in ["TOLLGATE_STORE", "TOLLGATE_LOCK_WAIT", "TOLLGATE_LOCK_SIGNAL", "default: 30s"] {
        assert!(help.contains(word), "{word}: {help}");
    }
    assert!(!help.contains(&redis.url()), "a URL may hold a password: {help}");
}
