//! The body of a response, which holds the request's permits until it ends.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::request_permits::BodyPermits;

pin_project! {
    /// The body behind a [`LimitLayer`](super::LimitLayer): the service's own, or a refusal.
    ///
    /// It releases the permits of concurrency limits when it ends, fails or is dropped. Work that
    /// outlives it, such as an upgraded connection, takes them over: see
    /// [`RequestPermits`](super::RequestPermits).
    #[derive(Debug)]
    #[project = Projected]
    pub struct LimitedBody<B> {
        #[pin]
        kind: BodyKind<B>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = ProjectedKind]
    enum BodyKind<B> {
        Served { #[pin] body: B, permits: BodyPermits },
        Refusal { bytes: Option<Bytes> },
    }
}

impl<B> LimitedBody<B> {
    pub(super) const fn served(body: B, permits: BodyPermits) -> Self {
        Self { kind: BodyKind::Served { body, permits } }
    }

    pub(super) fn refusal(bytes: Bytes) -> Self {
        Self { kind: BodyKind::Refusal { bytes: (!bytes.is_empty()).then_some(bytes) } }
    }
}

impl<B> Body for LimitedBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let Projected { kind } = self.project();
        match kind.project() {
            ProjectedKind::Served { body, permits } => {
                let frame = ready!(body.poll_frame(context));
                if !matches!(frame, Some(Ok(_))) {
                    *permits = BodyPermits::default();
                }
                Poll::Ready(frame)
            }
            ProjectedKind::Refusal { bytes } => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes.into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Served { body, .. } => body.is_end_stream(),
            BodyKind::Refusal { bytes } => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Served { body, .. } => body.size_hint(),
            BodyKind::Refusal { bytes } => {
                let len = bytes.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(len).unwrap_or(u64::MAX))
            }
        }
    }
}
