//! Events, as they happen: `text/event-stream`.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{mpsc, watch};

use crate::accept::stopped;
use crate::http::body::Body;
use crate::http::problem::{Problem, typed};
use crate::state::ServerState;
use crate::telemetry::events::Subscriber;

/// Interval of keep-alive comments, so that proxies do not close the stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Parts that may wait for the client. Behind them events are dropped, and counted.
const WAITING: usize = 16;

pub(super) fn stream(server: &ServerState, ending: watch::Receiver<bool>) -> Response<Body> {
    let Some(subscriber) = server.events.subscribe() else {
        return Problem::new(503, "too many event streams are open").retry_after(5).into();
    };
    let (parts, body) = mpsc::channel(WAITING);
    tokio::spawn(pass_on(subscriber, parts, ending));
    typed("text/event-stream", Body::Stream(body))
}

/// Passes events on until the client leaves or the server ends.
async fn pass_on(
    mut subscriber: Subscriber,
    parts: mpsc::Sender<Bytes>,
    mut ending: watch::Receiver<bool>,
) {
    let mut next = Bytes::from_static(b": welcome\n\n");
    loop {
        tokio::select! {
            sent = parts.send(next) => if sent.is_err() { return },
            () = stopped(&mut ending) => return,
        }
        next = tokio::select! {
            told = subscriber.receiver.recv() => match told {
                Ok(told) => format!("event: {}\ndata: {}\n\n", told.name, told.data).into(),
                Err(RecvError::Lagged(missed)) => {
                    format!("event: missed\ndata: {{\"events\":{missed}}}\n\n").into()
                }
                Err(RecvError::Closed) => return,
            },
            () = tokio::time::sleep(KEEP_ALIVE) => Bytes::from_static(b": still here\n\n"),
            () = parts.closed() => return,
            () = stopped(&mut ending) => return,
        };
    }
}
