//! Rulings in the extensions of a request, so that no layer counts the request twice.
//!
//! A layer leaves its ruling there, under the limiter and the domain that it asked. A layer further
//! in with the same limiter and domain passes the request on, and a handler can look at the ruling.

use std::fmt;
use std::sync::Arc;

use http::Extensions;
use smallvec::SmallVec;
use tollgate_core::Store;

use crate::{Limiter, Ruling};

/// The rulings that admitted a request, as an extension of the request.
///
/// ```
/// use axum::{Extension, Router, routing::get};
/// use tollgate::http::Rulings;
///
/// async fn handler(Extension(rulings): Extension<Rulings>) -> String {
///     format!("{} limits were looked at", rulings.iter().flat_map(|ruling| ruling.findings()).count())
/// }
/// let app: Router = Router::new().route("/", get(handler));
/// ```
#[derive(Clone, Default)]
pub struct Rulings(SmallVec<[LayerRuling; 1]>);

#[derive(Clone)]
struct LayerRuling {
    limiter: u128,
    domain: Arc<str>,
    ruling: Arc<Ruling>,
}

impl Rulings {
    /// The ruling of this limiter on the request in this domain, if it was asked.
    pub fn ruling<S: Store + 'static>(
        &self,
        limiter: &Limiter<S>,
        domain: &str,
    ) -> Option<&Ruling> {
        self.by(limiter.identity(), domain)
    }

    /// All rulings, in the order in which they were made.
    pub fn iter(&self) -> impl Iterator<Item = &Ruling> {
        self.0.iter().map(|entry| &*entry.ruling)
    }

    /// True if the request has such a ruling.
    pub(super) fn is_by(extensions: &Extensions, limiter: u128, domain: &str) -> bool {
        extensions.get::<Self>().is_some_and(|rulings| rulings.by(limiter, domain).is_some())
    }

    /// Leaves a ruling in a request.
    pub(super) fn leave(
        extensions: &mut Extensions,
        limiter: u128,
        domain: &Arc<str>,
        ruling: Arc<Ruling>,
    ) {
        let entry = LayerRuling { limiter, domain: Arc::clone(domain), ruling };
        extensions.get_or_insert_with(Self::default).0.push(entry);
    }

    pub(super) fn by(&self, limiter: u128, domain: &str) -> Option<&Ruling> {
        let same = |entry: &&LayerRuling| entry.limiter == limiter && *entry.domain == *domain;
        self.0.iter().find(same).map(|entry| &*entry.ruling)
    }
}

impl fmt::Debug for Rulings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
