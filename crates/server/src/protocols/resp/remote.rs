//! One connection on a store that takes a trip.
//!
//! The decisions of a pipeline are asked for together and answered in order, so that a pipeline of
//! thirty commands costs one trip, not thirty. A command that resets waits for those before it, and those
//! behind it wait for it.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::ask::StoreCommand;
use super::connection::{BatchEnd, INPUT, OUTPUT, with_scratch};
use super::deadlines::{Activity, ConnectionActivity};
use super::parse::{Args, parse};
use super::reply;
use super::session::{AfterCommand, Session};
use crate::state::ServerState;

/// Commands of one connection in flight at the store: two full pipelines of most clients.
const AT_ONCE: usize = 64;

/// Serves until the client leaves, quits or breaks the protocol.
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
                BatchEnd::InputDone => break,
                BatchEnd::OutputFull => {}
                BatchEnd::Close => return stream.shutdown().await,
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
    end: BatchEnd,
}

/// The next commands that may be asked for together.
fn batch(
    input: &[u8],
    args: &mut Args,
    session: &mut Session,
    server: &Arc<ServerState>,
    entry: &ConnectionActivity,
) -> Pipeline {
    let mut batch = Pipeline { parts: Vec::new(), used: 0, end: BatchEnd::InputDone };
    let (mut questions, mut bytes) = (0_usize, 0_usize);
    while questions < AT_ONCE && bytes < OUTPUT {
        let rest = input.get(batch.used..).unwrap_or_default();
        let mut out = Vec::new();
        let length = match parse(rest, args) {
            Ok(None) => return batch,
            Ok(Some(length)) => length,
            Err(error) => {
                reply::error(&format!("ERR Protocol error: {error}"), &mut out);
                batch.parts.push(PipelineReply::Reply(out));
                batch.end = BatchEnd::Close;
                return batch;
            }
        };
        let next = with_scratch(|scratch| session.answer((rest, args), server, scratch, &mut out));
        bytes = bytes.saturating_add(out.len());
        let closes = matches!(next, AfterCommand::Close);
        if let AfterCommand::Ask(question) = next {
            let alone =
                matches!(question, StoreCommand::Delete { .. } | StoreCommand::Reset { .. });
            if alone && questions > 0 {
                // Read again when those before it are answered.
                break;
            }
            questions = if alone { AT_ONCE } else { questions.saturating_add(1) };
            batch.parts.push(PipelineReply::StoreCommand(question));
        } else {
            batch.parts.push(PipelineReply::Reply(out));
        }
        batch.used = batch.used.saturating_add(length);
        entry.beat();
        if closes {
            batch.end = BatchEnd::Close;
            return batch;
        }
    }
    batch.end = BatchEnd::OutputFull;
    batch
}

/// Asks all of them in the order of the commands, and writes the replies in that order.
async fn answer(
    parts: Vec<PipelineReply>,
    server: &Arc<ServerState>,
    version: reply::RespVersion,
    out: &mut Vec<u8>,
) {
    let answers = parts.into_iter().map(async |part| match part {
        PipelineReply::Reply(reply) => reply,
        PipelineReply::StoreCommand(question) => {
            let mut out = Vec::new();
            question.answer(server, version, &mut out).await;
            out
        }
    });
    out.extend(join_all(answers).await.into_iter().flatten());
}
