//! One connection on a store that takes a trip.
//!
//! The decisions of a pipeline are asked for together and answered in order, so that a pipeline of
//! thirty commands costs one trip, not thirty. A command that gives back waits for those before it,
//! and those behind it wait for it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::ask::StoreCommand;
use super::connection::{INPUT, OUTPUT, with_scratch};
use super::deadlines::{Activity, ConnectionActivity};
use super::parse::{Args, parse};
use super::reply;
use super::session::{AfterCommand, Session};
use crate::state::ServerState;

/// Commands of one connection in flight at the store: two full pipelines of most clients.
const AT_ONCE: usize = 64;

/// Serves until the client leaves, errs or is told to.
pub(super) async fn serve(
    mut stream: TcpStream,
    mut session: Session,
    server: Arc<ServerState>,
    entry: Arc<ConnectionActivity>,
) -> std::io::Result<()> {
    let (mut input, mut args, mut output) = (Vec::new(), Args::new(), Vec::new());
    let mut chunk = vec![0; CHUNK].into_boxed_slice();
    loop {
        entry.set(if input.is_empty() { Activity::Idle } else { Activity::Partial });
        let room_left = INPUT.saturating_sub(input.len()).min(CHUNK);
        let length = stream.read(chunk.get_mut(..room_left).unwrap_or_default()).await?;
        if length == 0 {
            return Ok(());
        }
        input.extend_from_slice(chunk.get(..length).unwrap_or_default());
        let mut used = 0_usize;
        loop {
            entry.set(Activity::Asking);
            let rest = input.get(used..).unwrap_or_default();
            let batch = batch(rest, &mut args, &mut session, &server, &entry);
            used = used.saturating_add(batch.used);
            let version = session.version();
            answer(batch.parts, &server, version, &mut output).await;
            entry.set(Activity::Writing);
            stream.write_all(&output).await?;
            output.clear();
            match batch.end {
                PipelineEnd::InputDone => break,
                PipelineEnd::Full => {}
                PipelineEnd::Close => return stream.shutdown().await,
            }
        }
        input.drain(..used);
    }
}

/// Bytes per read.
const CHUNK: usize = 8 * 1024;

/// A reply, or what has to be asked for it.
enum PipelineReply {
    Reply(Vec<u8>),
    StoreCommand(StoreCommand),
}

struct Pipeline {
    parts: Vec<PipelineReply>,
    used: usize,
    end: PipelineEnd,
}

enum PipelineEnd {
    InputDone,
    Full,
    Close,
}

/// The next commands that may be asked for together.
fn batch(
    input: &[u8],
    args: &mut Args,
    session: &mut Session,
    server: &Arc<ServerState>,
    entry: &ConnectionActivity,
) -> Pipeline {
    let mut batch = Pipeline { parts: Vec::new(), used: 0, end: PipelineEnd::InputDone };
    let (mut questions, mut bytes) = (0_usize, 0_usize);
    while questions < AT_ONCE && bytes < OUTPUT {
        let rest = input.get(batch.used..).unwrap_or_default();
        let length = match parse(rest, args) {
            Ok(None) => return batch,
            Ok(Some(length)) => length,
            Err(error) => {
                let mut out = Vec::new();
                reply::error(&format!("ERR Protocol error: {error}"), &mut out);
                batch.parts.push(PipelineReply::Reply(out));
                batch.end = PipelineEnd::Close;
                return batch;
            }
        };
        let mut out = Vec::new();
        let next = with_scratch(|scratch| session.answer((rest, args), server, scratch, &mut out));
        bytes = bytes.saturating_add(out.len());
        match next {
            AfterCommand::Ask(question) => {
                let alone =
                    matches!(question, StoreCommand::Delete { .. } | StoreCommand::Reset { .. });
                if alone && questions > 0 {
                    // Read again when those before it are answered.
                    batch.end = PipelineEnd::Full;
                    return batch;
                }
                questions = if alone { AT_ONCE } else { questions.saturating_add(1) };
                batch.parts.push(PipelineReply::StoreCommand(question));
            }
            AfterCommand::Answered => batch.parts.push(PipelineReply::Reply(out)),
            AfterCommand::Close => {
                batch.parts.push(PipelineReply::Reply(out));
                batch.end = PipelineEnd::Close;
            }
        }
        batch.used = batch.used.saturating_add(length);
        entry.beat();
        if let PipelineEnd::Close = batch.end {
            return batch;
        }
    }
    batch.end = PipelineEnd::Full;
    batch
}

type PendingReply<'r> = Pin<Box<dyn Future<Output = Vec<u8>> + Send + 'r>>;

/// Asks all of them, and writes the replies in order.
async fn answer(
    parts: Vec<PipelineReply>,
    server: &Arc<ServerState>,
    version: reply::RespVersion,
    out: &mut Vec<u8>,
) {
    let mut answers: Vec<Result<Vec<u8>, PendingReply<'_>>> = parts
        .into_iter()
        .map(|part| match part {
            PipelineReply::Reply(reply) => Ok(reply),
            PipelineReply::StoreCommand(question) => {
                let answering: PendingReply<'_> = Box::pin(async move {
                    let mut out = Vec::new();
                    question.answer(server, version, &mut out).await;
                    out
                });
                Err(answering)
            }
        })
        .collect();
    poll_fn(|context| {
        let mut waiting = false;
        // In order, so that the store is asked in the order of the commands.
        for answer in &mut answers {
            if let Err(answering) = answer {
                match answering.as_mut().poll(context) {
                    Poll::Ready(reply) => *answer = Ok(reply),
                    Poll::Pending => waiting = true,
                }
            }
        }
        if waiting { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    for reply in answers.iter().flatten() {
        out.extend_from_slice(reply);
    }
}
