//! `tollgate lock`: the program itself, on a real Redis, with real commands.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use tollgate_harness::{RedisServer, Reply};

use super::support::TempDir;

/// The program on this Redis. A busy machine is no outage. Whoever runs the tests in the background has
/// signals ignored, which the program would leave so.
pub(crate) fn tollgate(redis: &RedisServer) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", env!("CARGO_BIN_EXE_tollgate")]);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command.env("TOLLGATE_STORE", redis.url()).env("TOLLGATE_STORE_DEADLINE", "60s");
    command.stdin(Stdio::null());
    command
}

pub(crate) fn run(redis: &RedisServer, args: &[&str]) -> Output {
    tollgate(redis).args(args).output().unwrap()
}

fn status(redis: &RedisServer, args: &[&str]) -> Option<i32> {
    run(redis, args).status.code()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A program that runs, and whose command has said a line: so it has the lock.
pub(crate) struct Holding {
    pub(crate) child: Child,
    pub(crate) said: String,
    out: BufReader<ChildStdout>,
}

impl Holding {
    /// Starts `tollgate lock`; the script must say a line.
    pub(crate) fn start(redis: &RedisServer, args: &[&str], script: &str) -> Self {
        let mut command = tollgate(redis);
        command.arg("lock").args(args).args(["--", "sh", "-c", script]);
        Self::of(command)
    }

    fn of(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut holding = Self { child, said: String::new(), out };
        holding.said = holding.line();
        holding
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    /// Lets a script that reads a line go on; then as `end`.
    pub(crate) fn finish(mut self) -> (Option<i32>, String, String) {
        writeln!(self.child.stdin.take().unwrap()).unwrap();
        self.end()
    }

    /// Its status, what its command said last, and what it complained about.
    pub(crate) fn end(mut self) -> (Option<i32>, String, String) {
        let (mut rest, mut complaints) = (String::new(), String::new());
        self.out.read_to_string(&mut rest).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut complaints).unwrap();
        (self.child.wait().unwrap().code(), rest.trim_end().to_owned(), complaints)
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn until(what: &str, mut happened: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if happened() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("not within a minute: {what}");
}

/// Waits until so many processes wait for a lock.
pub(crate) fn until_waiting(redis: &RedisServer, name: &str, count: i64) {
    let channel = format!("redisson_lock__channel:{{{name}}}");
    until("they wait", || {
        let reply = redis.command(&[b"PUBSUB", b"NUMSUB", channel.as_bytes()]).unwrap();
        matches!(reply, Reply::Array(parts) if parts[1] == Reply::Integer(count))
    });
}

/// True if a process exists and is no zombie.
pub(crate) fn lives(id: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.starts_with(" Z"))
}

#[test]
fn one_command_runs_at_a_time_and_fences_rise() {
    let redis = RedisServer::start().unwrap();
    let dir = TempDir::new();
    let (sum, fences) = (dir.path().join("sum"), dir.path().join("fences"));
    std::fs::write(&sum, "0").unwrap();
    let script = r#"n=$(cat "$1"); sleep 0.01; echo $((n+1)) >"$1"; echo $TOLLGATE_FENCE >>"$2"
                    test "$TOLLGATE_LOCK" = "sum 1""#;
    let all: Vec<Child> = (0..8)
        .map(|_| {
            let mut command = tollgate(&redis);
            command.args(["lock", "sum 1", "--", "sh", "-c", script, "sh"]);
            command.args([&sum, &fences]).spawn().unwrap()
        })
        .collect();

    for mut child in all {
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }

    assert_eq!(std::fs::read_to_string(sum).unwrap().trim(), "8");
    let fences = std::fs::read_to_string(fences).unwrap();
    let fences: Vec<u64> = fences.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(fences.len(), 8);
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    assert_eq!(redis.command(&[b"EXISTS", b"sum 1"]).unwrap(), Reply::Integer(0));
}

#[test]
fn the_exit_status_is_the_commands_own() {
    let redis = RedisServer::start().unwrap();
    let sh = |script: &str| status(&redis, &["lock", "a", "--", "sh", "-c", script]);

    assert_eq!([sh("exit 0"), sh("exit 7"), sh("exit 255")], [Some(0), Some(7), Some(255)]);
    assert_eq!(sh("kill -TERM $$"), Some(143));
    assert_eq!(sh("kill -KILL $$"), Some(137));
    assert_eq!(status(&redis, &["lock", "a", "no-such-command-at-all"]), Some(127));
    assert_eq!(status(&redis, &["lock", "a", "/"]), Some(126));
    let echo = run(&redis, &["lock", "a", "echo", "-n", "--wait", "b"]);
    assert_eq!(text(&echo.stdout), "--wait b", "what follows the command is its own");
    assert_eq!(redis.command(&[b"EXISTS", b"a"]).unwrap(), Reply::Integer(0));
}

#[test]
fn what_cannot_be_locked_is_told_and_does_not_run() {
    let redis = RedisServer::start().unwrap();
    let gone = RedisServer::start().unwrap();
    gone.kill().unwrap();
    let gone = gone.url();
    let long = "x".repeat(1_025);
    for (args, why) in [
        (&["lock", "--store", "embedded", "a", "echo"][..], "need Redis"),
        (&["lock", "--store", "http://x", "a", "echo"], "redis"),
        (&["lock", "--lease", "1ms", "a", "echo"], "below 10 ms"),
        (&["lock", "--owner", "me", "a", "echo"], "visible ASCII with a colon"),
        (&["lock", &long, "echo"], "above 1024"),
        (&["lock", "", "echo"], "at least one byte"),
        (&["lock", "-n", "--durability", "required", "a", "echo"], "only 0 replicas"),
        (&["lock", "-n", "--store", &gone, "a", "echo"], "did not answer"),
    ] {
        let output = run(&redis, args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{args:?}: {said}");
        assert!(said.contains(why), "{args:?}: {said}");
        assert!(output.stdout.is_empty(), "it ran: {args:?}");
    }
    assert_eq!(status(&redis, &["lock", "a"]), Some(2), "a command is missing");
    assert_eq!(status(&redis, &["lock", "--signal", "SOON", "a", "true"]), Some(2));
}

#[test]
fn who_does_not_wait_for_ever_is_told_that_it_is_held() {
    let redis = RedisServer::start().unwrap();
    let holding = Holding::start(&redis, &["a"], "echo up; read line");
    let of = |args: &[&str], script: &str| {
        status(&redis, &[&["lock"], args, &["a", "--", "sh", "-c", script]].concat())
    };

    assert_eq!(of(&["-n"], "exit 3"), Some(1));
    assert_eq!(of(&["--no-wait", "-E", "75"], "exit 3"), Some(75));
    assert_eq!(of(&["--wait", "30ms", "--conflict-exit-code", "9"], "exit 3"), Some(9));
    assert_eq!(of(&["-w", "1h", "-n"], "exit 3"), Some(1), "the last word counts");
    assert_eq!(status(&redis, &["lock", "-n", "b", "true"]), Some(0), "another lock");
    assert_eq!(status(&redis, &["lock", "a", "-n", "true"]), Some(1), "flags may follow the name");
    assert_eq!(status(&redis, &["lock", "b", "--", "-n", "true"]), Some(127), "it is the command");

    assert_eq!(holding.finish().0, Some(0));
    assert_eq!(of(&["-n"], "exit 3"), Some(3));
    redis.command(&[b"HSET", b"a", b"8743c9c0-0795-4907-87fd-6c719a6b4586:42", b"1"]).unwrap();
    assert_eq!(of(&["-n"], "exit 3"), Some(1), "a holder in Java");
}

/// Nobody is known to have it, so nobody is told that somebody has.
#[test]
fn without_redis_no_wait_ends_as_if_it_were_held() {
    let redis = RedisServer::start().unwrap();
    for wait in ["-n", "--wait=300ms"] {
        let mut command = tollgate(&redis);
        // Nobody listens at the first of all ports.
        command.env("TOLLGATE_STORE", "redis://127.0.0.1:1").args(["lock", wait, "a", "true"]);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{wait}");
        assert!(!output.stderr.is_empty(), "{wait}");
    }
}

#[test]
fn a_lock_that_is_waited_for_comes_with_its_release() {
    let redis = RedisServer::start().unwrap();
    let first = Holding::start(&redis, &["a"], "echo $TOLLGATE_FENCE; read line");
    let mut second = tollgate(&redis);
    second.args(["lock", "--wait", "1h", "a", "--", "sh", "-c", "echo $TOLLGATE_FENCE"]);
    let second = second.stdout(Stdio::piped()).spawn().unwrap();
    until_waiting(&redis, "a", 1);
    let before: u64 = first.said.parse().unwrap();

    assert_eq!(first.finish().0, Some(0));

    let second = second.wait_with_output().unwrap();
    assert_eq!(second.status.code(), Some(0));
    assert!(text(&second.stdout).trim().parse::<u64>().unwrap() > before);
}

/// B30: the lock is gone, and the command is told soon.
#[test]
fn on_a_loss_the_command_is_told_and_its_status_does_not_count() {
    let redis = RedisServer::start().unwrap();
    let script = "trap 'echo told; exit 0' USR1; echo up; while :; do sleep 0.05; done";
    let args = ["--lease", "1500ms", "--signal", "USR1", "--kill-after", "1h", "a"];
    let holding = Holding::start(&redis, &args, script);
    assert_eq!(holding.said, "up");

    redis.command(&[b"DEL", b"a"]).unwrap();

    let (code, said, complaints) = holding.end();
    assert_eq!((code, said.as_str()), (Some(124), "told"), "{complaints}");
    assert!(complaints.contains("\"a\" was lost: the command is sent USR1"), "{complaints}");
}

/// A signal during the grace period still reaches the command.
#[test]
fn signals_are_passed_on_after_a_loss() {
    let redis = RedisServer::start().unwrap();
    let script = "trap 'echo told' USR1; trap 'echo ends; exit 3' TERM; echo up
                  while :; do sleep 0.05; done";
    let args = ["--lease", "1500ms", "--signal", "USR1", "--kill-after", "1h", "a"];
    let mut holding = Holding::start(&redis, &args, script);
    redis.command(&[b"DEL", b"a"]).unwrap();
    assert_eq!(holding.line(), "told");

    holding.signal("TERM");

    let (code, said, complaints) = holding.end();
    assert_eq!((code, said.as_str()), (Some(124), "ends"), "{complaints}");
}

#[test]
fn whoever_does_not_listen_is_killed_with_all_it_has_started() {
    let redis = RedisServer::start().unwrap();
    let script = "trap '' TERM; sleep 3600 & echo $!; exec sleep 3600";
    let args = ["--lease", "1500ms", "--kill-after", "10ms", "a"];
    let holding = Holding::start(&redis, &args, script);
    let grandchild = holding.said.clone();
    assert!(lives(&grandchild));

    redis.command(&[b"DEL", b"a"]).unwrap();

    // Its output stays open for as long as a grandchild lives.
    let (code, _, complaints) = holding.end();
    assert_eq!(code, Some(124), "{complaints}");
    until("its child is gone", || !lives(&grandchild));
}

/// It ended before the watchdog could know.
#[test]
fn a_loss_that_is_found_out_at_the_end_is_told() {
    let redis = RedisServer::start().unwrap();
    let holding = Holding::start(&redis, &["a"], "echo up; read line");
    redis.command(&[b"DEL", b"a"]).unwrap();

    let (code, _, complaints) = holding.finish();

    assert_eq!(code, Some(124));
    assert!(complaints.contains("was lost before the command ended"), "{complaints}");
}

#[test]
fn signals_are_passed_on() {
    let redis = RedisServer::start().unwrap();
    for signal in ["INT", "TERM", "HUP", "USR1"] {
        let script =
            format!("trap 'echo {signal}; exit 5' {signal}; echo up; while :; do sleep 0.05; done");
        let holding = Holding::start(&redis, &["a"], &script);
        holding.signal(signal);
        let (code, said, complaints) = holding.end();
        assert_eq!((code, said.as_str()), (Some(5), signal), "{complaints}");
    }
    let holding = Holding::start(&redis, &["a"], "echo up; exec sleep 3600");
    holding.signal("TERM");
    assert_eq!(holding.end().0, Some(143));
    assert_eq!(redis.command(&[b"EXISTS", b"a"]).unwrap(), Reply::Integer(0));
}

#[test]
fn what_nohup_ignores_stays_ignored() {
    let redis = RedisServer::start().unwrap();
    let script = format!(
        "trap '' HUP; exec {} lock a -- sh -c 'echo up; read line; kill -HUP $$; echo alive'",
        env!("CARGO_BIN_EXE_tollgate")
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command.env("TOLLGATE_STORE", redis.url()).env("TOLLGATE_STORE_DEADLINE", "60s");
    let holding = Holding::of(command);
    holding.signal("HUP");

    let (code, said, complaints) = holding.finish();

    assert_eq!((code, said.as_str()), (Some(0), "alive"), "{complaints}");
}

#[test]
fn a_wait_ends_with_a_signal_and_leaves_nothing() {
    let redis = RedisServer::start().unwrap();
    let holding = Holding::start(&redis, &["a"], "echo up; read line");
    let mut waiting = tollgate(&redis);
    let waiting = waiting.args(["lock", "a", "true"]).spawn().unwrap();
    until_waiting(&redis, "a", 1);

    let id = waiting.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &id]).status().unwrap().success());

    assert_eq!(waiting.wait_with_output().unwrap().status.code(), Some(143));
    until_waiting(&redis, "a", 0);
    assert_eq!(holding.finish().0, Some(0));
    assert_eq!(redis.command(&[b"EXISTS", b"a"]).unwrap(), Reply::Integer(0));
}

#[cfg(target_os = "linux")]
#[test]
fn no_command_outlives_whoever_holds_its_lock() {
    let redis = RedisServer::start().unwrap();
    let holding = Holding::start(&redis, &["a"], "echo $$; exec sleep 3600");
    assert!(lives(&holding.said));

    holding.signal("KILL");

    until("the command is gone", || !lives(&holding.said));
    assert_eq!(redis.command(&[b"EXISTS", b"a"]).unwrap(), Reply::Integer(1), "until its lease");
}

#[test]
fn a_command_enters_its_own_lock_only_as_its_owner() {
    let redis = RedisServer::start().unwrap();
    let inner = format!("{} lock -n", env!("CARGO_BIN_EXE_tollgate"));
    let nested = |owner: &str| {
        let script =
            format!("echo $TOLLGATE_FENCE; {inner} {owner} a sh -c 'echo $TOLLGATE_FENCE'");
        run(&redis, &["lock", "a", "--", "sh", "-c", &script])
    };

    let same = nested("--owner \"$TOLLGATE_OWNER\"");
    assert_eq!(same.status.code(), Some(0), "{}", text(&same.stderr));
    let fences = text(&same.stdout);
    let fences: Vec<&str> = fences.lines().collect();
    assert!(fences.len() == 2 && fences[0] == fences[1], "{fences:?}");
    assert_eq!(nested("").status.code(), Some(1), "a command is not its owner by itself");
}

#[test]
fn missing_rights_are_told_with_the_line_that_gives_them() {
    let redis = RedisServer::start().unwrap();
    let user = "ACL SETUSER alice on >hush ~tg:* ~a ~redisson_* resetchannels +@all";
    redis.command(&user.split(' ').map(str::as_bytes).collect::<Vec<_>>()).unwrap();
    let url = redis.url().replace("redis://", "redis://alice:hush@");

    let output = run(&redis, &["lock", "--store", &url, "a", "sh", "-c", "exit 4"]);

    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "locks work without channels: {said}");
    assert!(said.contains("may not use the channels of locks"), "{said}");
    assert!(said.contains("ACL SETUSER alice on ><password> resetkeys"), "{said}");
    assert!(!said.contains("hush"), "{said}");
}
