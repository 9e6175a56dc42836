//! Servers start, stop, die and come back as the harness promises.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::path::Path;
use std::thread;
use std::time::Duration;

use tollgate_harness::{Client, RedisServer, Reply};

fn status(text: &str) -> Reply {
    Reply::Status(text.into())
}

fn bulk(text: &str) -> Reply {
    Reply::Bulk(text.into())
}

/// The letter of /proc: `T` for stopped, `Z` for dead but not reaped, none for gone.
fn state(pid: &str) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

#[test]
fn one_server_answers_on_tcp_and_on_its_socket() {
    let server = RedisServer::start().unwrap();
    let path = server.unix_url().strip_prefix("unix://").unwrap().to_owned();
    let mut tcp = Client::tcp(server.address()).unwrap();
    let mut unix = Client::unix(Path::new(&path)).unwrap();

    assert_eq!(tcp.command(&[b"SET", b"key", b"a\r\nb"]).unwrap(), status("OK"));

    assert_eq!(unix.command(&[b"GET", b"key"]).unwrap(), bulk("a\r\nb"));
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
}

#[test]
fn every_kind_of_reply_is_understood() {
    let server = RedisServer::start().unwrap();
    let script = b"return {1, 'two', false, {redis.status_reply('three'), {}}}";

    let nested = Reply::Array(vec![status("three"), Reply::Array(vec![])]);
    let all = vec![Reply::Integer(1), bulk("two"), Reply::Nil, nested];
    assert_eq!(server.command(&[b"EVAL", script, b"0"]).unwrap(), Reply::Array(all));
    let Reply::Error(error) = server.command(&[b"NONSENSE"]).unwrap() else { panic!("no error") };
    assert!(error.starts_with("ERR unknown command"), "{error}");
}

#[test]
fn a_missing_program_names_the_package() {
    let error = RedisServer::builder().binary("no-such-redis-server").start().unwrap_err();

    assert!(error.to_string().contains("apt-get install redis-server"), "{error}");
}

#[test]
fn a_server_that_ends_shows_its_log() {
    let error = RedisServer::builder().config("maxmemory much").start().unwrap_err();

    assert!(format!("{error:?}").contains("\n>>> 'maxmemory much'\n"), "{error}");
}

#[test]
fn no_password_locks_the_harness_out() {
    let server = RedisServer::builder()
        .config("maxmemory 2mb")
        .config("requirepass secret")
        .config("user alice on >pw ~a:* +get")
        .start()
        .unwrap();
    let mut stranger = Client::tcp(server.address()).unwrap();
    let mut alice = Client::tcp(server.address()).unwrap();

    let maxmemory = server.command(&[b"CONFIG", b"GET", b"maxmemory"]).unwrap();

    assert_eq!(maxmemory, Reply::Array(vec![bulk("maxmemory"), bulk("2097152")]));
    assert!(matches!(stranger.command(&[b"PING"]).unwrap(), Reply::Error(_)));
    assert_eq!(alice.command(&[b"AUTH", b"alice", b"pw"]).unwrap(), status("OK"));
    assert_eq!(alice.command(&[b"GET", b"a:1"]).unwrap(), Reply::Nil);
}

#[test]
fn a_stopped_server_is_silent_and_answers_afterwards() {
    let server = RedisServer::start().unwrap();
    let mut client = Client::tcp(server.address()).unwrap();

    server.stop().unwrap();
    assert_eq!(state(&server.pid().to_string()), Some('T'));
    client.send(&[b"PING"]).unwrap();
    client.stream().set_nonblocking(true).unwrap();
    let silence = client.stream().peek(&mut [0]).unwrap_err();
    assert_eq!(silence.kind(), std::io::ErrorKind::WouldBlock);

    server.resume().unwrap();
    client.stream().set_nonblocking(false).unwrap();
    assert_eq!(client.receive().unwrap(), status("PONG"));
}

#[test]
fn a_killed_server_comes_back_empty_on_its_port() {
    let server = RedisServer::start().unwrap();
    let (port, pid) = (server.port(), server.pid());
    server.command(&[b"SET", b"key", b"1"]).unwrap();

    server.kill().unwrap();
    assert!(Client::tcp(server.address()).is_err(), "nobody listens");
    assert!(server.command(&[b"PING"]).is_err());
    assert!(server.stop().is_err(), "a reaped process is not signalled");
    server.restart().unwrap();

    assert_eq!(server.command(&[b"DBSIZE"]).unwrap(), Reply::Integer(0));
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
}

#[test]
fn a_dropped_server_leaves_nothing_behind() {
    let server = RedisServer::start().unwrap();
    let (pid, port) = (server.pid().to_string(), server.port());
    let socket = server.unix_url().strip_prefix("unix://").unwrap().to_owned();
    server.stop().unwrap();

    drop(server);

    assert_eq!(state(&pid), None);
    assert!(!Path::new(&socket).parent().unwrap().exists());
    assert_eq!(RedisServer::builder().fixed_port(port).start().unwrap().port(), port);
}

#[test]
fn servers_started_at_once_share_no_port() {
    let starting: Vec<_> = (0..12).map(|_| thread::spawn(RedisServer::start)).collect();
    let servers: Vec<_> = starting.into_iter().map(|each| each.join().unwrap().unwrap()).collect();

    for server in &servers {
        assert_eq!(server.command(&[b"INCR", b"count"]).unwrap(), Reply::Integer(1));
    }
    let taken = RedisServer::builder().fixed_port(servers[0].port()).start().unwrap_err();
    assert!(taken.to_string().contains("already in use"), "{taken}");
}

/// The parent-death signal comes when the starting *thread* ends, and would have killed it here.
#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let server = thread::spawn(RedisServer::start).join().unwrap().unwrap();

    assert_eq!(server.command(&[b"PING"]).unwrap(), status("PONG"));
}

#[test]
fn a_server_dies_with_its_process() {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "server::aborts_when_told_to", "--nocapture"])
        .env("TOLLGATE_ABORT", "1")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = output.lines().find_map(|line| line.split_once("started ")).unwrap().1;
    let (pid, socket) = line.split_once(' ').unwrap();

    // The process that adopts the orphan need not reap it.
    while !matches!(state(pid), None | Some('Z')) {
        thread::sleep(Duration::from_millis(1));
    }
    std::fs::remove_dir_all(Path::new(socket).parent().unwrap()).unwrap();
}

/// The other half of `a_server_dies_with_its_process`; alone it does nothing.
#[test]
fn aborts_when_told_to() {
    if std::env::var_os("TOLLGATE_ABORT").is_some() {
        let server = RedisServer::start().unwrap();
        println!("started {} {}", server.pid(), server.unix_url().trim_start_matches("unix://"));
        std::process::abort();
    }
}
