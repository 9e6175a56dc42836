//! The permits of a request, for work that outlives the response.
//!
//! A layer leaves them in the request's extensions. Unless the handler takes them, they end with the
//! body of the response.

use std::mem;
use std::sync::{Arc, Mutex};

use http::Extensions;
use smallvec::SmallVec;
use tollgate_core::lock_mutex;

use crate::Permits;

/// The permits that a request holds, as an extension of the request; there is none without permits.
/// A handler whose work outlives the response, such as an upgraded connection, takes them over.
///
/// ```
/// use axum::{Extension, Router, body::Body, routing::post};
/// use http::Request;
/// use tollgate::http::{LimitLayer, RequestPermits};
/// use tollgate::{EmbeddedStore, Limiter, rules};
/// use tower::ServiceExt;
///
/// async fn export(Extension(permits): Extension<RequestPermits>) -> &'static str {
///     let permits = permits.take();
///     tokio::spawn(async move {
///         tokio::time::sleep(std::time::Duration::from_secs(60)).await; // the work
///         drop(permits);
///     });
///     "the export has begun\n"
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(EmbeddedStore::new());
/// limiter.set_rules(rules::load(
///     "{ version: 1, domain: shop, rules: [{ name: export, limits: [{ concurrent: 1, lease: 1m }] }] }",
///     rules::Format::Yaml,
/// )?)?;
/// let app = Router::new().route("/export", post(export)).layer(LimitLayer::new(limiter, "shop"));
/// let request = || Request::post("/export").body(Body::empty());
///
/// assert_eq!(app.clone().oneshot(request()?).await?.status(), 200);
/// assert_eq!(app.oneshot(request()?).await?.status(), 429);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct RequestPermits(SmallVec<[SharedPermits; 1]>);

/// Of one layer.
type SharedPermits = Arc<Mutex<Permits>>;

impl RequestPermits {
    /// Takes the permits over, so that they do not end with the response: one value for each layer
    /// that holds some. None are left if they were taken before, or if the response has ended.
    pub fn take(&self) -> Vec<Permits> {
        let all = self.0.iter().map(|shared| mem::take(&mut *lock_mutex(shared)));
        all.filter(|permits| !permits.is_empty()).collect()
    }

    /// Leaves the permits of a layer in the extensions of a request.
    pub(super) fn leave(extensions: &mut Extensions, permits: Permits) -> BodyPermits {
        let held = BodyPermits::new(permits);
        if let Some(shared) = &held.0 {
            extensions.get_or_insert_with(Self::default).0.push(Arc::clone(shared));
        }
        held
    }
}

/// Releases the permits of a layer when dropped, unless they were taken over.
#[derive(Debug, Default)]
pub(super) struct BodyPermits(Option<SharedPermits>);

impl BodyPermits {
    pub(super) fn new(permits: Permits) -> Self {
        Self((!permits.is_empty()).then(|| Arc::new(Mutex::new(permits))))
    }
}

impl Drop for BodyPermits {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            let permits = mem::take(&mut *lock_mutex(shared));
            drop(permits);
        }
    }
}
