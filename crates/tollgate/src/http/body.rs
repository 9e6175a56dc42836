//! The body of a response, which holds the request's permits until it ends.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::Permits;

pin_project! {
    /// The body behind a [`LimitLayer`](super::LimitLayer): the service's own, or a refusal.
    ///
    /// It releases the permits of concurrency limits when it ends, fails or is dropped. Work that
    /// outlives it, such as an upgraded connection, takes them over with
    /// [`LimitedBody::take_permits`].
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
        Served { #[pin] body: B, permits: Permits },
        Refusal { bytes: Option<Bytes> },
    }
}

impl<B> LimitedBody<B> {
    pub(super) const fn served(body: B, permits: Permits) -> Self {
        Self { kind: BodyKind::Served { body, permits } }
    }

    /// Takes over the permits that the request holds, so that they do not end with this body. None
    /// are left if it was called before, if the body has ended, and in a refusal.
    ///
    /// ```
    /// use http::{Request, Response, StatusCode};
    /// use tollgate::http::LimitLayer;
    /// use tollgate::{EmbeddedStore, Limiter, rules};
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(EmbeddedStore::new());
    /// limiter.set_rules(rules::load(
    ///     "{ version: 1, domain: chat, rules: [{ name: sockets, limits: [{ concurrent: 1, lease: 1m }] }] }",
    ///     rules::Format::Yaml,
    /// )?)?;
    /// let upgrade = |_: Request<String>| async {
    ///     Response::builder().status(StatusCode::SWITCHING_PROTOCOLS).body(String::new())
    /// };
    /// let service = LimitLayer::new(limiter, "chat").layer(service_fn(upgrade));
    ///
    /// let mut response = service.clone().oneshot(Request::default()).await?;
    /// let permits = response.body_mut().take_permits();
    /// drop(response); // the head is sent, and the connection goes on
    /// assert_eq!(service.clone().oneshot(Request::default()).await?.status(), 429);
    ///
    /// drop(permits); // the connection is closed
    /// assert_eq!(service.oneshot(Request::default()).await?.status(), 101);
    /// # Ok(()) }
    /// ```
    pub fn take_permits(&mut self) -> Permits {
        match &mut self.kind {
            BodyKind::Served { permits, .. } => mem::take(permits),
            BodyKind::Refusal { .. } => Permits::default(),
        }
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
                    *permits = Permits::default();
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
