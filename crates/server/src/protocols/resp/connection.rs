//! One connection: all commands of one read are answered in one write.
//!
//! On the embedded store all of it happens on the thread that reads, between two waits, in buffers
//! that belong to the thread: an idle connection has none. Incomplete input and output that the client
//! does not take are kept with the connection, both bounded. While there is output nothing more is read,
//! so that a client that does not read holds up only itself.
//!
//! `remote.rs` is the same for a remote store.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead as _, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::deadlines::{Activity, ConnectionActivity};
use super::parse::{Args, MAX_COMMAND, parse};
use super::reply;
use super::session::{AfterCommand, Session, ThreadScratch};
use crate::state::ServerState;

/// Input buffer: the longest command, and some.
pub(super) const INPUT: usize = MAX_COMMAND + 8 * 1024;

/// Beyond this replies are sent before the next command is answered. One more reply has at most
/// sixteen kilobytes, so a connection keeps less than 64 KiB.
pub(super) const OUTPUT: usize = 16 * 1024;

/// The buffers of a thread.
struct ThreadBuffers {
    input: Box<[u8]>,
    output: Vec<u8>,
    args: Args,
    scratch: ThreadScratch,
}

thread_local! {
    static BUFFERS: RefCell<ThreadBuffers> = RefCell::new(ThreadBuffers {
        input: vec![0; INPUT].into_boxed_slice(),
        output: Vec::with_capacity(OUTPUT * 2),
        args: Args::with_capacity(16),
        scratch: ThreadScratch::default(),
    });
}

/// Lets a command be answered with the scratch of this thread.
pub(super) fn with_scratch<R>(work: impl FnOnce(&mut ThreadScratch) -> R) -> R {
    BUFFERS.with_borrow_mut(|buffers| work(&mut buffers.scratch))
}

/// A connection on the embedded store.
pub(super) struct Connection {
    stream: TcpStream,
    session: Session,
    server: Arc<ServerState>,
    entry: Arc<ConnectionActivity>,
    /// Input that is not answered yet.
    rest: Vec<u8>,
    /// Set if commands in `rest` wait until output is sent.
    more: bool,
    /// Output that the client has not taken yet.
    unsent: Vec<u8>,
}

impl Connection {
    pub(super) const fn new(
        stream: TcpStream,
        session: Session,
        server: Arc<ServerState>,
        entry: Arc<ConnectionActivity>,
    ) -> Self {
        Self { stream, session, server, entry, rest: Vec::new(), more: false, unsent: Vec::new() }
    }

    /// Serves until the client leaves, quits or breaks the protocol.
    pub(super) async fn serve(mut self) -> std::io::Result<()> {
        loop {
            let step = poll_fn(|context| {
                BUFFERS.with_borrow_mut(|buffers| self.poll_pipelines(context, buffers))
            })
            .await?;
            self.entry.set(Activity::Writing);
            self.stream.write_all(&self.unsent).await?;
            self.unsent = Vec::new();
            if let PipelineEnd::Close = step {
                return self.stream.shutdown().await;
            }
        }
    }

    /// Reads and answers for as long as there is input and the client takes the output. Unsent output is
    /// sent before anything else.
    fn poll_pipelines(
        &mut self,
        context: &mut Context<'_>,
        buffers: &mut ThreadBuffers,
    ) -> Poll<std::io::Result<PipelineEnd>> {
        loop {
            let ThreadBuffers { input, output, args, scratch } = buffers;
            let kept = self.rest.len();
            if let Some(front) = input.get_mut(..kept) {
                front.copy_from_slice(&self.rest);
            }
            let mut length = kept;
            if !self.more {
                let mut buffer = ReadBuf::new(input.get_mut(kept..).unwrap_or_default());
                match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                    Poll::Pending => {
                        self.entry.set(if kept > 0 { Activity::Partial } else { Activity::Idle });
                        return Poll::Pending;
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Ready(Ok(())) if buffer.filled().is_empty() => {
                        return Poll::Ready(Ok(PipelineEnd::Close));
                    }
                    Poll::Ready(Ok(())) => length = length.saturating_add(buffer.filled().len()),
                }
            }
            output.clear();
            let began = Instant::now();
            let (used, end) =
                self.answer(input.get(..length).unwrap_or_default(), args, scratch, output);
            scratch.settle(&self.server, began);
            self.rest.clear();
            self.rest.extend_from_slice(input.get(used..length).unwrap_or_default());
            if self.rest.is_empty() {
                // An idle connection keeps nothing.
                self.rest = Vec::new();
            }
            let sent = if output.is_empty() { Ok(0) } else { self.stream.try_write(output) };
            let sent = match sent {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => 0,
                other => other?,
            };
            if sent < output.len() {
                self.unsent = output.get(sent..).unwrap_or_default().to_vec();
            }
            self.more = matches!(end, PipelineEnd::OutputFull);
            if matches!(end, PipelineEnd::Close) || !self.unsent.is_empty() {
                return Poll::Ready(Ok(end));
            }
        }
    }

    /// Answers commands until there is no whole one, or enough output.
    fn answer(
        &mut self,
        input: &[u8],
        args: &mut Args,
        scratch: &mut ThreadScratch,
        output: &mut Vec<u8>,
    ) -> (usize, PipelineEnd) {
        let mut used = 0_usize;
        loop {
            if output.len() >= OUTPUT {
                return (used, PipelineEnd::OutputFull);
            }
            let input = input.get(used..).unwrap_or_default();
            match parse(input, args) {
                Ok(None) => return (used, PipelineEnd::InputDone),
                Ok(Some(length)) => {
                    used = used.saturating_add(length);
                    self.entry.count_command();
                    match self.session.answer((input, args), &self.server, scratch, output) {
                        // Only a remote store is asked elsewhere.
                        AfterCommand::Answered | AfterCommand::Ask(_) => {}
                        AfterCommand::Close => return (used, PipelineEnd::Close),
                    }
                }
                Err(error) => {
                    reply::error(&format!("ERR Protocol error: {error}"), output);
                    return (used, PipelineEnd::Close);
                }
            }
        }
    }
}

/// Reason why a pipeline ended.
#[derive(Clone, Copy)]
pub(super) enum PipelineEnd {
    /// There is no whole command left.
    InputDone,
    /// The output is sent before the next command is answered.
    OutputFull,
    /// The connection ends.
    Close,
}
