//! Rulings in the extensions of a request, so that no layer counts the request twice.
//!
//! A layer leaves a mark there, under the limiter and the domain that it asked. A layer further in
//! with the same limiter and domain passes the request on. The mark has the ruling itself only where
//! somebody may look at it: handlers, if the layer is told so, and functions in the scope of a layer.

use std::fmt;
use std::sync::Arc;

use http::Extensions;
use smallvec::SmallVec;
use tollgate_core::Store;

use crate::{Limiter, Ruling};

/// The rulings that admitted a request, as an extension of the request. For a handler that looks at
/// them, tell the layer to leave them: [`LimitLayer::with_rulings`](super::LimitLayer::with_rulings).
///
/// ```
/// use axum::{Extension, Router, routing::get};
/// use tollgate::http::{LimitLayer, Rulings};
/// use tollgate::{EmbeddedStore, Limiter};
///
/// async fn handler(Extension(rulings): Extension<Rulings>) -> String {
///     format!("{} limits were looked at", rulings.iter().flat_map(|ruling| ruling.findings()).count())
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let layer = LimitLayer::new(Limiter::new(EmbeddedStore::new()), "shop").with_rulings();
/// let app: Router = Router::new().route("/", get(handler)).layer(layer);
/// # }
/// ```
#[derive(Clone)]
pub struct Rulings(SmallVec<[LayerMark; 1]>);

/// The mark of a layer that judged the request.
#[derive(Clone)]
struct LayerMark {
    limiter_domain: LimiterDomain,
    ruling: Option<Arc<Ruling>>,
}

/// The limiter and the domain that a layer asks. A request is charged once under each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LimiterDomain(Arc<(u128, Arc<str>)>);

impl LimiterDomain {
    pub(super) fn new(limiter: u128, domain: &Arc<str>) -> Self {
        Self(Arc::new((limiter, Arc::clone(domain))))
    }
}

impl Rulings {
    /// The ruling of this limiter on the request in this domain, if the layer left one.
    pub fn ruling<S: Store + 'static>(
        &self,
        limiter: &Limiter<S>,
        domain: &str,
    ) -> Option<&Ruling> {
        self.by(limiter.identity(), domain)
    }

    /// The rulings that layers left, in the order in which they were made.
    pub fn iter(&self) -> impl Iterator<Item = &Ruling> {
        self.0.iter().filter_map(|mark| mark.ruling.as_deref())
    }

    /// True if the request was counted by this limiter in this domain.
    pub(super) fn has(extensions: &Extensions, limiter_domain: &LimiterDomain) -> bool {
        let same = |mark: &LayerMark| mark.limiter_domain == *limiter_domain;
        extensions.get::<Self>().is_some_and(|rulings| rulings.0.iter().any(same))
    }

    /// Marks a request as counted.
    pub(super) fn leave(
        extensions: &mut Extensions,
        limiter_domain: &LimiterDomain,
        ruling: Option<Arc<Ruling>>,
    ) {
        let mark = LayerMark { limiter_domain: limiter_domain.clone(), ruling };
        extensions.get_or_insert_with(|| Self(SmallVec::new())).0.push(mark);
    }

    pub(super) fn by(&self, limiter: u128, domain: &str) -> Option<&Ruling> {
        let same = |mark: &&LayerMark| {
            let (its_limiter, its_domain) = &*mark.limiter_domain.0;
            *its_limiter == limiter && **its_domain == *domain
        };
        self.0.iter().find(same)?.ruling.as_deref()
    }
}

impl fmt::Debug for Rulings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
