//! The processes of a contender, and what they are told.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use tollgate_harness::RedisServer;

/// Where Python with redis-py is, if it is anywhere; `make bench-locks` sees to it.
const PYTHON: &str = "TOLLGATE_BENCH_PYTHON";

/// After this every waiter waits: it has tried once, and those that listen are subscribed.
const SETTLED: Duration = Duration::from_millis(300);

pub struct ProcessGroup {
    workers: Vec<Worker>,
    rounds: u64,
}

struct Worker {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// The times at which waiters were served, one after the other.
pub struct HandOvers {
    /// From when the first release was called until the last had the lock.
    pub took: Duration,
    /// Each from when a release was called until the next had the lock.
    pub gaps: Vec<Duration>,
}

/// Returns true if there is a Python to measure redis-py with.
pub fn has_python() -> bool {
    std::env::var_os(PYTHON).is_some_and(|python| !python.is_empty())
}

impl ProcessGroup {
    /// Starts so many processes of a contender, and waits until they are connected.
    pub fn start(contender: &str, server: &RedisServer, processes: usize) -> Self {
        let workers = (0..processes).map(|_| Worker::start(contender, server.port())).collect();
        let mut group = Self { workers, rounds: 0 };
        for worker in &mut group.workers {
            assert_eq!(worker.read_line(), "ready");
        }
        group
    }

    /// Locks taken and released by so many tasks of one process, each with a lock of its own: how many
    /// a second, and how many.
    pub fn alone(&mut self, tasks: u64, span: Duration) -> (f64, u64) {
        let worker = &mut self.workers[0];
        worker.send(&format!("alone {tasks} {} alone", span.as_millis()));
        let told = worker.read_line();
        let (count, nanos) = told.split_once(' ').expect("two numbers");
        let (count, nanos) = (count.parse::<u64>().unwrap(), nanos.parse::<f64>().unwrap());
        (count as f64 * 1e9 / nanos, count)
    }

    /// Has so many tasks wait for one lock, in all processes together, and lets go of it: each gets it
    /// once. `ready` is called when all of them wait.
    pub fn drain(&mut self, waiters: usize, ready: impl FnOnce()) -> HandOvers {
        self.rounds += 1;
        let name = format!("drained:{}", self.rounds);
        self.workers[0].send(&format!("hold {name}"));
        assert_eq!(self.workers[0].read_line(), "held");
        let each = waiters / self.workers.len();
        for worker in &mut self.workers {
            worker.send(&format!("wait {each} {name}"));
            assert_eq!(worker.read_line(), "waiting");
        }
        std::thread::sleep(SETTLED);
        ready();
        self.workers[0].send("let-go");
        let mut times = Vec::new();
        let mut first = None;
        for worker in &mut self.workers {
            loop {
                let line = worker.read_line();
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
        let first = first.unwrap_or_else(|| self.workers[0].read_line().parse().unwrap());
        assert_eq!(times.len(), waiters, "each was served once");
        hand_overs(first, times)
    }

    /// Processor time of one process that holds so many locks for so long.
    pub fn keep(&mut self, locks: u64, span: Duration) -> Duration {
        let worker = &mut self.workers[0];
        worker.send(&format!("keep {locks} {} kept", span.as_millis()));
        Duration::from_millis(worker.read_line().parse().unwrap())
    }
}

fn hand_overs(first: u64, mut times: Vec<(u64, u64)>) -> HandOvers {
    times.sort_unstable();
    let mut gaps = Vec::with_capacity(times.len());
    let mut released = first;
    for (granted, called) in &times {
        gaps.push(Duration::from_nanos(granted.checked_sub(released).expect("one at a time")));
        released = *called;
    }
    let last = times.last().expect("somebody waited").0;
    HandOvers { took: Duration::from_nanos(last - first), gaps }
}

impl Worker {
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

    fn send(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the process runs");
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).expect("the process says something");
        assert!(read > 0, "a process of the contender ended");
        line.trim_end().to_owned()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
