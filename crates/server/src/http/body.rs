//! Bodies: those that are read, bounded in size and time, and those that are sent.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
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

/// What bodies that are still arriving may hold, all of them together: a thousand of the longest of checks.
const MAX_ARRIVING: usize = 64 * 1024 * 1024;

/// What they hold now, at all listeners: there is one memory.
static ARRIVING: AtomicUsize = AtomicUsize::new(0);

/// Reads a body whole.
pub(crate) async fn read(body: Incoming, most: usize) -> Result<Bytes, Problem> {
    let too_large = || Problem::new(413, &format!("the body is longer than {most} bytes")).close();
    let said = body.size_hint().exact().unwrap_or(0);
    if said > u64::try_from(most).unwrap_or(u64::MAX) {
        return Err(too_large());
    }
    let mut whole = pin!(Limited::new(Counted::new(body, &ARRIVING), most).collect());
    // Most bodies come with their heads, and need no timer.
    let at_once = poll_fn(|context| Poll::Ready(whole.as_mut().poll(context))).await;
    let read = match at_once {
        Poll::Ready(read) => Ok(read),
        Poll::Pending => Box::pin(timeout(PATIENCE, whole)).await,
    };
    match read {
        Err(_) => Err(Problem::new(408, "the body took longer than 10 s").close()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) if error.is::<Full>() => {
            let full = "the bodies of other requests take all the memory there is for them";
            Err(Problem::new(503, full).retry_after(1).close())
        }
        Ok(Err(_)) => Err(Problem::new(400, "the body cannot be read").close()),
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
    }
}

/// A body whose parts are counted while it arrives.
struct Counted<B> {
    body: B,
    held: usize,
    all: &'static AtomicUsize,
}

impl<B> Counted<B> {
    const fn new(body: B, all: &'static AtomicUsize) -> Self {
        Self { body, held: 0, all }
    }
}

/// That there is no memory for more.
#[derive(Debug)]
struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too much is arriving")
    }
}

impl std::error::Error for Full {}

impl<B> HttpBody for Counted<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            return Poll::Pending;
        };
        let frame = frame.map(|frame| frame.map_err(Into::into));
        let bytes = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            _ => 0,
        };
        // One that is here at once holds nothing up.
        if bytes > 0 && !self.body.is_end_stream() {
            self.held = self.held.saturating_add(bytes);
            if self.all.fetch_add(bytes, Ordering::Relaxed) > MAX_ARRIVING {
                return Poll::Ready(Some(Err(Full.into())));
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for Counted<B> {
    fn drop(&mut self) {
        self.all.fetch_sub(self.held, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use http_body_util::{Full as Whole, StreamBody};

    use super::*;

    #[tokio::test]
    async fn bodies_that_arrive_slowly_share_what_memory_there_is() {
        static ALL: AtomicUsize = AtomicUsize::new(MAX_ARRIVING - 10);
        let parts = |parts: &[usize]| {
            let parts: Vec<_> = parts
                .iter()
                .map(|length| Ok::<_, std::io::Error>(Frame::data(vec![0; *length].into())))
                .collect();
            Counted::new(StreamBody::new(futures_util::stream::iter(parts)), &ALL)
        };

        assert_eq!(parts(&[5, 5]).collect().await.unwrap().to_bytes().len(), 10);
        assert_eq!(ALL.load(Ordering::Relaxed), MAX_ARRIVING - 10, "it is given back");
        let refused = parts(&[20, 5, 5]).collect().await.unwrap_err();
        assert!(refused.is::<Full>(), "{refused}");
        assert_eq!(ALL.load(Ordering::Relaxed), MAX_ARRIVING - 10);
        let whole = Counted::new(Whole::new(Bytes::from(vec![0; 1000])), &ALL);
        assert_eq!(whole.collect().await.unwrap().to_bytes().len(), 1000, "it holds nothing up");
    }
}
