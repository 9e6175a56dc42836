//! Bodies of requests, bounded in time and size, and bodies of answers, which are counted until read.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::Sleep;
use tonic::Status;

use super::connection_health::ConnectionHealth;

/// Deadline for a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyDeadline {
    /// So long from the first wait until all of it is here.
    Whole(Duration),
    /// So long between two parts.
    Silence(Duration),
}

/// The body of a request.
pub(super) struct RequestBody {
    body: Incoming,
    health: Arc<ConnectionHealth>,
    patience: BodyDeadline,
    /// Made when there is something to wait for: most bodies come with their head.
    timer: Option<Pin<Box<Sleep>>>,
    held: usize,
}

impl RequestBody {
    pub(super) const fn new(
        body: Incoming,
        health: Arc<ConnectionHealth>,
        patience: BodyDeadline,
    ) -> Self {
        Self { body, health, patience, timer: None, held: 0 }
    }

    /// True if the deadline has passed; otherwise it wakes the task then.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        let (BodyDeadline::Whole(patience) | BodyDeadline::Silence(patience)) = self.patience;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        timer.as_mut().poll(context).is_ready()
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
            if this.is_late(context) {
                let late = Status::deadline_exceeded("the request did not arrive in time");
                return Poll::Ready(Some(Err(late)));
            }
            return Poll::Pending;
        };
        if let BodyDeadline::Silence(_) = this.patience {
            this.timer = None;
        }
        let Some(frame) = frame else { return Poll::Ready(None) };
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => return Poll::Ready(Some(Err(Status::cancelled(error.to_string())))),
        };
        let bytes = frame.data_ref().map_or(0, |data| data.remaining());
        this.held = this.held.saturating_add(bytes);
        if !this.health.hold(bytes) {
            let full = "the request bodies of this connection exceed its memory limit";
            return Poll::Ready(Some(Err(Status::resource_exhausted(full))));
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.health.release(self.held);
    }
}

/// The body of an answer.
pub(super) struct ResponseBody {
    body: tonic::body::Body,
    /// Counts the response as read when dropped; none for streams that last.
    health: Option<Arc<ConnectionHealth>>,
}

impl ResponseBody {
    pub(super) fn new(body: tonic::body::Body, health: Option<Arc<ConnectionHealth>>) -> Self {
        if let Some(health) = &health {
            health.begin();
        }
        Self { body, health }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if let Some(health) = &self.health {
            health.end();
        }
    }
}
