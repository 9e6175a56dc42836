//! The processes of a contender, and what they are told.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use tollgate_harness::RedisServer;

/// Where Python with redis-py is, if it is anywhere; `make bench-locks` sees to it.
const PYTHON: &str = "TOLLGATE_BENCH_PYTHON";

/// After this every waiter waits: it has tried once, and those that listen are subscribed.
const SETTLED: Duration = Duration::from_millis(300);

pub struct Crew {
    hands: Vec<Hand>,
    rounds: u64,
}

struct Hand {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// What became of waiters that were served one after the other.
pub struct Drained {
    /// From when the first release was called until the last had the lock.
    pub took: Duration,
    /// Each from when a release was called until the next had the lock.
    pub gaps: Vec<Duration>,
}

/// Whether there is a Python to measure redis-py with.
pub fn has_python() -> bool {
    std::env::var_os(PYTHON).is_some_and(|python| !python.is_empty())
}

impl Crew {
    /// Starts so many processes of a contender, and waits until they are connected.
    pub fn start(contender: &str, server: &RedisServer, processes: usize) -> Self {
        let hands = (0..processes).map(|_| Hand::start(contender, server.port())).collect();
        let mut crew = Self { hands, rounds: 0 };
        for hand in &mut crew.hands {
            assert_eq!(hand.hears(), "ready");
        }
        crew
    }

    /// Locks taken and released by so many tasks of one process, each with a lock of its own: how many
    /// a second, and how many.
    pub fn alone(&mut self, tasks: u64, span: Duration) -> (f64, u64) {
        let hand = &mut self.hands[0];
        hand.tell(&format!("alone {tasks} {} alone", span.as_millis()));
        let told = hand.hears();
        let (count, nanos) = told.split_once(' ').expect("two numbers");
        let (count, nanos) = (count.parse::<u64>().unwrap(), nanos.parse::<f64>().unwrap());
        (count as f64 * 1e9 / nanos, count)
    }

    /// Has so many tasks wait for one lock, in all processes together, and lets go of it: each gets it
    /// once. `ready` is called when all of them wait.
    pub fn drain(&mut self, waiters: usize, ready: impl FnOnce()) -> Drained {
        self.rounds += 1;
        let name = format!("drained:{}", self.rounds);
        self.hands[0].tell(&format!("hold {name}"));
        assert_eq!(self.hands[0].hears(), "held");
        let each = waiters / self.hands.len();
        for hand in &mut self.hands {
            hand.tell(&format!("wait {each} {name}"));
            assert_eq!(hand.hears(), "waiting");
        }
        std::thread::sleep(SETTLED);
        ready();
        self.hands[0].tell("let-go");
        let mut times = Vec::new();
        let mut first = None;
        for hand in &mut self.hands {
            loop {
                let line = hand.hears();
                match line.split_once(' ') {
                    Some((granted, called)) => {
                        times.push((granted.parse().unwrap(), called.parse().unwrap()));
                    }
                    None if line == "done" => break,
                    None => first = Some(line.parse::<u64>().unwrap()),
                }
            }
        }
        // It says when it let go whenever that comes to its end.
        let first = first.unwrap_or_else(|| self.hands[0].hears().parse().unwrap());
        assert_eq!(times.len(), waiters, "each was served once");
        drained(first, times)
    }

    /// Processor time of one process that holds so many locks for so long.
    pub fn keep(&mut self, locks: u64, span: Duration) -> Duration {
        let hand = &mut self.hands[0];
        hand.tell(&format!("keep {locks} {} kept", span.as_millis()));
        Duration::from_millis(hand.hears().parse().unwrap())
    }
}

fn drained(first: u64, mut times: Vec<(u64, u64)>) -> Drained {
    times.sort_unstable();
    let mut gaps = Vec::with_capacity(times.len());
    let mut released = first;
    for (granted, called) in &times {
        gaps.push(Duration::from_nanos(granted.checked_sub(released).expect("one at a time")));
        released = *called;
    }
    let last = times.last().expect("somebody waited").0;
    Drained { took: Duration::from_nanos(last - first), gaps }
}

impl Hand {
    fn start(contender: &str, port: u16) -> Self {
        let mut command = if contender == "redis-py" {
            let mut command = Command::new(std::env::var_os(PYTHON).expect("asked before"));
            command.args(["-c", include_str!("redis_py.py")]);
            command
        } else {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--child", contender]);
            command
        };
        command.arg(port.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a process of the contender");
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, input, output }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the process runs");
    }

    fn hears(&mut self) -> String {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).expect("the process says something");
        assert!(read > 0, "a process of the contender ended");
        line.trim_end().to_owned()
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
