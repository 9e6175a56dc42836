//! One direction of one connection.
//!
//! Bytes that arrive pass through the fault of their direction into a queue of pieces, each with
//! its due time, and from there to the other side.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{DirectionState, Fault, TICK};
use crate::lock;

/// The pause between the pieces of [`Fault::Slice`], so that a reader sees each one alone.
const SLICE_PAUSE: Duration = Duration::from_micros(200);
/// The most queued bytes. With more, the proxy stops reading, and the sender has to wait.
const MAX_LINE: usize = 1 << 20;
/// A delay that is longer than any test, and still a representable moment.
const MAX_DELAY: Duration = Duration::from_secs(86_400);

/// The end of a direction.
pub(super) enum PumpEnd {
    /// The sender has finished; the other direction may go on.
    Eof,
    Close,
    Reset,
}

pub(super) struct Pump<'a> {
    over: &'a AtomicBool,
    from: &'a TcpStream,
    to: &'a TcpStream,
    direction_state: &'a DirectionState,
    line: VecDeque<(Instant, Vec<u8>)>,
    in_line: usize,
    /// The number of the last fault, and the bytes that arrived under it.
    counted: (u64, usize),
}

impl<'a> Pump<'a> {
    pub(super) fn new(
        from: &'a TcpStream,
        to: &'a TcpStream,
        direction_state: &'a DirectionState,
        over: &'a AtomicBool,
    ) -> Self {
        Self { over, from, to, direction_state, line: VecDeque::new(), in_line: 0, counted: (0, 0) }
    }

    pub(super) fn run(mut self) -> io::Result<PumpEnd> {
        let mut buffer = vec![0; 16 << 10];
        let mut from = self.from;
        loop {
            if self.wait()? {
                let count = from.read(&mut buffer)?;
                let end = if count == 0 { Some(PumpEnd::Eof) } else { self.take(&buffer[..count]) };
                // Counted after the fault was asked for: another may be set once they are seen.
                self.direction_state.received.fetch_add(count, SeqCst);
                if let Some(end) = end {
                    return self.finish(end);
                }
            }
            while self.line.front().is_some_and(|(due, _)| *due <= now()) {
                self.deliver_next()?;
            }
        }
    }

    /// Waits until there is something to read (`true`), or a piece is due.
    fn wait(&self) -> io::Result<bool> {
        let Some((due, _)) = self.line.front() else { return Ok(true) };
        let left = due.saturating_duration_since(now());
        if self.in_line >= MAX_LINE && !self.over.load(SeqCst) {
            thread::sleep(left.min(TICK));
            return Ok(false);
        }
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(self.from, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => Ok(false),
            ready => Ok(ready? > 0),
        }
    }

    /// Queues bytes that arrived, changed by the fault.
    fn take(&mut self, bytes: &[u8]) -> Option<PumpEnd> {
        let (number, fault) = *lock(&self.direction_state.fault);
        if self.counted.0 != number {
            self.counted = (number, 0);
        }
        let before = self.counted.1;
        self.counted.1 = before + bytes.len();
        match fault {
            Fault::Pass => self.put(Duration::ZERO, bytes.to_vec()),
            Fault::Latency(delay) => self.put(delay, bytes.to_vec()),
            Fault::BlackHole => {}
            Fault::Reset => return Some(PumpEnd::Reset),
            Fault::CutAfter(limit) => {
                let rest = limit.saturating_sub(before);
                self.put(Duration::ZERO, bytes[..rest.min(bytes.len())].to_vec());
                return (rest <= bytes.len()).then_some(PumpEnd::Close);
            }
            Fault::Slice(size) => {
                let mut delay = Duration::ZERO;
                for piece in bytes.chunks(size.max(1)) {
                    self.put(delay, piece.to_vec());
                    delay += SLICE_PAUSE;
                }
            }
            Fault::Corrupt => self.put(Duration::ZERO, bytes.iter().map(|byte| !byte).collect()),
        }
        None
    }

    fn put(&mut self, delay: Duration, bytes: Vec<u8>) {
        let due = now() + delay.min(MAX_DELAY);
        if !bytes.is_empty() {
            self.in_line += bytes.len();
            self.line.push_back((due, bytes));
        }
    }

    /// Ends the direction. After an orderly end the queued bytes still arrive; after a reset, from
    /// here or elsewhere, they do not.
    fn finish(&mut self, end: PumpEnd) -> io::Result<PumpEnd> {
        while let (Some((due, _)), PumpEnd::Eof | PumpEnd::Close) = (self.line.front(), &end) {
            let left = due.saturating_duration_since(now());
            if self.over.load(SeqCst) {
                break;
            } else if left.is_zero() {
                self.deliver_next()?;
            } else {
                thread::sleep(left.min(TICK));
            }
        }
        Ok(end)
    }

    fn deliver_next(&mut self) -> io::Result<()> {
        let Some((_, bytes)) = self.line.pop_front() else { return Ok(()) };
        self.in_line -= bytes.len();
        // Counted first: a reader that has the bytes must find them counted.
        self.direction_state.delivered.fetch_add(bytes.len(), SeqCst);
        self.direction_state.pieces.fetch_add(1, SeqCst);
        let (mut to, mut rest) = (self.to, bytes.as_slice());
        while !rest.is_empty() {
            match to.write(rest) {
                Ok(count) => rest = &rest[count..],
                // The peer does not read; writes come back from time to time to look around.
                Err(e) if e.kind() == ErrorKind::WouldBlock && !self.over.load(SeqCst) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[expect(clippy::disallowed_methods, reason = "a delay on a real network is real time")]
fn now() -> Instant {
    Instant::now()
}
