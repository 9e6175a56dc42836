//! A Redisson client in a Java process of its own, which does what it is told.
//!
//! `redisson/` is its Maven project and says what the lines between the two look like; `make interop`
//! builds it before it runs the tests. Not here: what is tested (`tests/redisson.rs`).

#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "for tests: what cannot go on shall stop"
)]

use std::collections::HashMap;
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use tollgate_harness::RedisServer;

/// The longest that an answer may take: nothing in these tests waits for as long as this on purpose.
const PATIENCE: Duration = Duration::from_secs(60);

/// The client's answer: a value, or the class of the exception and its message.
pub type Answer = Result<String, String>;

type PendingAnswers = Arc<Mutex<HashMap<u64, oneshot::Sender<Answer>>>>;

/// A Redisson client; killed when dropped.
#[derive(Debug)]
pub struct Redisson {
    process: Child,
    input: Mutex<(u64, ChildStdin)>,
    pending: PendingAnswers,
}

impl Redisson {
    /// Starts one whose watchdog renews leases of so long, and waits until it is connected.
    ///
    /// # Panics
    ///
    /// When there is no `java`, or `make interop` has not built the client.
    pub async fn start(server: &RedisServer, watchdog: Duration) -> Self {
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("redisson/target");
        assert!(
            built.join("client.jar").exists(),
            "the client is not built: run `make interop`, or `mvn package` in interop/redisson"
        );
        let path = format!("{0}/client.jar:{0}/lib/*", built.display());
        let mut process = Command::new("java")
            .args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", &path])
            .args(["tollgate.interop.Client", &server.port().to_string()])
            .arg(watchdog.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a Java 17 to run the client (Debian and Ubuntu: apt install openjdk-17-jdk)");
        let (tell, ready) = oneshot::channel();
        let pending = PendingAnswers::new(Mutex::new(HashMap::from([(0, tell)])));
        let output = BufReader::new(process.stdout.take().unwrap());
        let read = Arc::clone(&pending);
        std::thread::spawn(move || hear(output, &read));
        let input = Mutex::new((1, process.stdin.take().unwrap()));
        let client = Self { process, input, pending };
        assert_eq!(answer(ready, "start").await, Ok("ready".to_owned()));
        client
    }

    /// Has an actor, which is a thread of it, do something to an `RLock`. It is told at once; the
    /// future waits for the answer.
    pub fn tell(
        &self,
        actor: &str,
        command: &str,
        name: &str,
        args: &[&str],
    ) -> impl Future<Output = Answer> + use<> {
        self.tell_of("lock", actor, command, name, args)
    }

    /// The same of a lock of this kind: `lock` or `fenced`.
    pub fn tell_of(
        &self,
        kind: &str,
        actor: &str,
        command: &str,
        name: &str,
        args: &[&str],
    ) -> impl Future<Output = Answer> + use<> {
        let (tell, told) = oneshot::channel();
        let what = format!("{actor} {command} {name}");
        let mut input = self.input.lock().unwrap();
        let number = input.0;
        input.0 = number + 1;
        self.pending.lock().unwrap().insert(number, tell);
        let mut line = format!("{number}\t{actor}\t{command}\t{kind}\t{name}");
        args.iter().for_each(|arg| line.push_str(&format!("\t{arg}")));
        line.push('\n');
        input.1.write_all(line.as_bytes()).expect("the client runs");
        async move { answer(told, &what).await }
    }
}

impl Drop for Redisson {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn answer(told: oneshot::Receiver<Answer>, what: &str) -> Answer {
    let Ok(answer) = tokio::time::timeout(PATIENCE, told).await else {
        panic!("the client did not answer within {PATIENCE:?}: {what}");
    };
    answer.unwrap_or_else(|_| panic!("the client ended before it answered: {what}"))
}

fn hear(output: BufReader<ChildStdout>, pending: &PendingAnswers) {
    for line in output.lines().map_while(Result::ok) {
        let mut words = line.splitn(3, '\t');
        let number = words.next().and_then(|number| number.parse().ok());
        let Some(number) = number else { panic!("not an answer: {line}") };
        let (word, rest) = (words.next(), words.next().unwrap_or_default().to_owned());
        let answer = if word == Some("ok") { Ok(rest) } else { Err(rest) };
        if let Some(tell) = pending.lock().unwrap().remove(&number) {
            // A caller that does not wait any more need not know.
            let _ = tell.send(answer);
        }
    }
    // Nobody will be answered any more.
    pending.lock().unwrap().clear();
}
