//! One connection on a remote store.
//!
//! A pipeline of thirty commands costs one round trip: its decisions are asked for together and answered
//! in order. `Delete` and `Reset` run alone: after the commands before them, before those behind them.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::connection::{INPUT, OUTPUT, PipelineEnd, with_scratch};
use super::deadlines::{Activity, ConnectionActivity};
use super::parse::{Args, parse};
use super::reply;
use super::session::{AfterCommand, Session};
use super::store_command::StoreCommand;
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
            let pipeline = read_pipeline(rest, &mut args, &mut session, &server, &entry);
            used = used.saturating_add(pipeline.used);
            let version = session.version();
            answer(pipeline.replies, &server, version, &mut output).await;
            entry.set(Activity::Writing);
            stream.write_all(&output).await?;
            output.clear();
            match pipeline.end {
                PipelineEnd::InputDone => break,
                PipelineEnd::OutputFull => {}
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

/// Commands that are asked for together, as their replies.
struct Pipeline {
    replies: Vec<PipelineReply>,
    used: usize,
    end: PipelineEnd,
}

/// Reads the next commands that may be asked for together.
fn read_pipeline(
    input: &[u8],
    args: &mut Args,
    session: &mut Session,
    server: &Arc<ServerState>,
    entry: &ConnectionActivity,
) -> Pipeline {
    let mut pipeline = Pipeline { replies: Vec::new(), used: 0, end: PipelineEnd::InputDone };
    let (mut questions, mut bytes) = (0_usize, 0_usize);
    while questions < AT_ONCE && bytes < OUTPUT {
        let rest = input.get(pipeline.used..).unwrap_or_default();
        let mut out = Vec::new();
        let length = match parse(rest, args) {
            Ok(None) => return pipeline,
            Ok(Some(length)) => length,
            Err(error) => {
                reply::error(&format!("ERR Protocol error: {error}"), &mut out);
                pipeline.replies.push(PipelineReply::Reply(out));
                pipeline.end = PipelineEnd::Close;
                return pipeline;
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
            pipeline.replies.push(PipelineReply::StoreCommand(question));
        } else {
            pipeline.replies.push(PipelineReply::Reply(out));
        }
        pipeline.used = pipeline.used.saturating_add(length);
        entry.count_command();
        if closes {
            pipeline.end = PipelineEnd::Close;
            return pipeline;
        }
    }
    pipeline.end = PipelineEnd::OutputFull;
    pipeline
}

/// Asks all of them in the order of the commands, and writes the replies in that order.
async fn answer(
    replies: Vec<PipelineReply>,
    server: &Arc<ServerState>,
    version: reply::RespVersion,
    out: &mut Vec<u8>,
) {
    let answers = replies.into_iter().map(async |reply| match reply {
        PipelineReply::Reply(reply) => reply,
        PipelineReply::StoreCommand(question) => {
            let mut out = Vec::new();
            question.answer(server, version, &mut out).await;
            out
        }
    });
    out.extend(join_all(answers).await.into_iter().flatten());
}
