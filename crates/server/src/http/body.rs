//! Bodies of requests, which are bounded in size and time, and bodies of responses.

use std::future::poll_fn;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::problem::Problem;

/// Time limit for the body of a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Memory for all bodies that are still arriving: a thousand of the longest checks.
const MAX_ARRIVING: usize = 64 * 1024 * 1024;

/// Memory in use by them, at all listeners.
static ARRIVING: AtomicUsize = AtomicUsize::new(0);

/// Reads a body whole.
pub(crate) async fn read(body: Incoming, most: usize) -> Result<Bytes, Problem> {
    let too_large = || Problem::new(413, format!("the body is longer than {most} bytes")).close();
    let said = body.size_hint().exact().unwrap_or(0);
    if said > u64::try_from(most).unwrap_or(u64::MAX) {
        return Err(too_large());
    }
    let mut whole = pin!(WholeBody::new(body, most, &ARRIVING));
    // Most bodies come with their heads, and need no timer.
    let at_once = poll_fn(|context| Poll::Ready(whole.as_mut().poll(context))).await;
    let read = match at_once {
        Poll::Ready(read) => Ok(read),
        Poll::Pending => Box::pin(timeout(PATIENCE, whole)).await,
    };
    match read {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(BodyError::TooLong)) => Err(too_large()),
        Ok(Err(BodyError::Full)) => {
            let full = "request bodies use all memory reserved for them";
            Err(Problem::new(503, full).retry_after(1).close())
        }
        Ok(Err(BodyError::Broken)) => Err(Problem::new(400, "cannot read the body").close()),
        Err(_) => Err(Problem::new(408, "the body did not arrive within 10 s").close()),
    }
}

/// Reason why a body cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyError {
    TooLong,
    /// There is no memory for more.
    Full,
    Broken,
}

/// A body that arrives. Its parts are copied together, because each of them keeps some kilobytes of hyper's
/// buffer, however short it is.
struct WholeBody<B> {
    body: B,
    most: usize,
    held: Vec<u8>,
    /// This body's part of `all`.
    counted: usize,
    all: &'static AtomicUsize,
}

impl<B: HttpBody<Data = Bytes> + Unpin> WholeBody<B> {
    const fn new(body: B, most: usize, all: &'static AtomicUsize) -> Self {
        Self { body, most, held: Vec::new(), counted: 0, all }
    }

    /// Takes a part, and returns it if it is the whole body.
    fn take(&mut self, part: Bytes) -> Result<Option<Bytes>, BodyError> {
        if self.held.len().saturating_add(part.len()) > self.most {
            return Err(BodyError::TooLong);
        }
        if self.held.is_empty() && self.body.is_end_stream() {
            return Ok(Some(part));
        }
        self.held.extend_from_slice(&part);
        let more = self.held.capacity().saturating_sub(self.counted);
        self.counted = self.held.capacity();
        if more > 0 && self.all.fetch_add(more, Ordering::Relaxed) > MAX_ARRIVING {
            return Err(BodyError::Full);
        }
        Ok(None)
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> Future for WholeBody<B> {
    type Output = Result<Bytes, BodyError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let frame = match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(Ok(mem::take(&mut self.held).into())),
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(BodyError::Broken)),
                Poll::Ready(Some(Ok(frame))) => frame,
            };
            // Trailers are ignored.
            let Ok(part) = frame.into_data() else { continue };
            match self.take(part) {
                Ok(None) => {}
                Ok(Some(all)) => return Poll::Ready(Ok(all)),
                Err(wrong) => return Poll::Ready(Err(wrong)),
            }
        }
    }
}

impl<B> Drop for WholeBody<B> {
    fn drop(&mut self) {
        self.all.fetch_sub(self.counted, Ordering::Relaxed);
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
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(mem::take(bytes))))),
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
    use std::io;

    use http_body_util::{Full, StreamBody};

    use super::*;

    /// A body in parts, each of which is the beginning of eight kilobytes.
    fn parts(lengths: &[usize]) -> impl HttpBody<Data = Bytes> + Unpin {
        let part = |length: &usize| Bytes::from(vec![7; 8 * 1024]).slice(..*length);
        let frames: Vec<_> =
            lengths.iter().map(|it| Ok::<_, io::Error>(Frame::data(part(it)))).collect();
        StreamBody::new(futures_util::stream::iter(frames))
    }

    #[tokio::test]
    async fn a_body_is_read_however_it_comes() {
        static ALL: AtomicUsize = AtomicUsize::new(0);
        for lengths in [&[][..], &[10], &[3, 7], &[1; 10]] {
            let read = WholeBody::new(parts(lengths), 10, &ALL).await.unwrap();
            assert_eq!(read, vec![7; lengths.iter().sum()], "{lengths:?}");
        }
        assert_eq!(WholeBody::new(parts(&[5, 6]), 10, &ALL).await, Err(BodyError::TooLong));
        let bytes = Bytes::from_static(b"all at once");
        assert_eq!(WholeBody::new(Full::new(bytes.clone()), 11, &ALL).await, Ok(bytes.clone()));
        assert_eq!(WholeBody::new(Full::new(bytes), 10, &ALL).await, Err(BodyError::TooLong));
        assert_eq!(ALL.load(Ordering::Relaxed), 0);
    }

    /// One byte a packet: what is held is what was sent, not what it came in.
    #[test]
    fn bodies_that_arrive_slowly_hold_what_they_have_sent() {
        static ALL: AtomicUsize = AtomicUsize::new(0);
        let mut slow = WholeBody::new(parts(&[]), 64 * 1024, &ALL);
        for _ in 0..20_000 {
            assert_eq!(slow.take(Bytes::from(vec![7; 8 * 1024]).slice(..1)), Ok(None));
        }

        assert_eq!(ALL.load(Ordering::Relaxed), slow.held.capacity());
        assert!((20_000..=40_000).contains(&slow.held.capacity()), "{}", slow.held.capacity());
        drop(slow);
        assert_eq!(ALL.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn bodies_share_what_memory_there_is() {
        static ALL: AtomicUsize = AtomicUsize::new(MAX_ARRIVING - 8);

        assert_eq!(WholeBody::new(parts(&[8, 8]), 64, &ALL).await.map(|it| it.len()), Ok(16));
        ALL.fetch_add(9, Ordering::Relaxed);
        assert_eq!(WholeBody::new(parts(&[8, 8]), 64, &ALL).await, Err(BodyError::Full));
        let at_once = WholeBody::new(Full::new(Bytes::from_static(b"{}")), 64, &ALL).await;
        assert!(at_once.is_ok(), "it holds nothing up");
        assert_eq!(ALL.load(Ordering::Relaxed), MAX_ARRIVING + 1, "what was held is given back");
    }
}
