//! Bodies: those that are read, bounded in size and time, and those that are sent.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::problem::Problem;

/// How long the body of a request may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads a body whole.
pub(crate) async fn read(body: Incoming, most: usize) -> Result<Bytes, Problem> {
    let too_large = || Problem::new(413, &format!("the body is longer than {most} bytes")).close();
    let said = body.size_hint().exact().unwrap_or(0);
    if said > u64::try_from(most).unwrap_or(u64::MAX) {
        return Err(too_large());
    }
    let mut whole = pin!(Limited::new(body, most).collect());
    // Most bodies come with their heads, and need no timer.
    let at_once = poll_fn(|context| Poll::Ready(whole.as_mut().poll(context))).await;
    let read = match at_once {
        Poll::Ready(read) => Ok(read),
        Poll::Pending => Box::pin(timeout(PATIENCE, whole)).await,
    };
    match read {
        Err(_) => Err(Problem::new(408, "the body took longer than 10 s").close()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(Problem::new(400, "the body cannot be read").close()),
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
    }
}

/// The body of a response.
#[derive(Debug)]
pub(crate) enum Body {
    /// All of it.
    Whole(Bytes),
    /// As it comes.
    Stream(mpsc::Receiver<Bytes>),
}

impl Default for Body {
    fn default() -> Self {
        Self::Whole(Bytes::new())
    }
}

impl<B: Into<Bytes>> From<B> for Body {
    fn from(bytes: B) -> Self {
        Self::Whole(bytes.into())
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut *self {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Stream(parts) => {
                parts.poll_recv(context).map(|part| part.map(|part| Ok(Frame::data(part))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(u64::try_from(bytes.len()).unwrap_or(u64::MAX))
            }
            Self::Stream(_) => SizeHint::default(),
        }
    }
}
