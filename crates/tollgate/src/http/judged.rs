//! What has been judged of a request already, so that nothing counts it twice.
//!
//! A layer leaves its ruling in the request's extensions, under the limiter and the domain that
//! it asked. Whoever comes later with the same limiter and domain takes that ruling for its own:
//! a layer within a layer passes the request on, and a handler can look at what was decided.

use std::fmt;
use std::sync::Arc;

use http::Extensions;
use smallvec::SmallVec;
use tollgate_core::Store;

use crate::{Limiter, Ruling};

/// Rulings that let a request through, as an extension of the request.
///
/// ```
/// use axum::{Extension, Router, routing::get};
/// use tollgate::http::Judged;
///
/// async fn handler(Extension(judged): Extension<Judged>) -> String {
///     format!("{} limits were looked at", judged.rulings().flat_map(|ruling| ruling.findings()).count())
/// }
/// let app: Router = Router::new().route("/", get(handler));
/// ```
#[derive(Clone, Default)]
pub struct Judged(SmallVec<[Entry; 1]>);

#[derive(Clone)]
struct Entry {
    limiter: u128,
    domain: Arc<str>,
    ruling: Arc<Ruling>,
}

impl Judged {
    /// What this limiter decided about the request in this domain, if it was asked.
    pub fn ruling<S: Store + 'static>(
        &self,
        limiter: &Limiter<S>,
        domain: &str,
    ) -> Option<&Ruling> {
        self.by(limiter.identity(), domain)
    }

    /// All rulings, in the order in which they were made.
    pub fn rulings(&self) -> impl Iterator<Item = &Ruling> {
        self.0.iter().map(|entry| &*entry.ruling)
    }

    /// Whether the request has been judged so.
    pub(super) fn is_by(extensions: &Extensions, limiter: u128, domain: &str) -> bool {
        extensions.get::<Self>().is_some_and(|judged| judged.by(limiter, domain).is_some())
    }

    /// Leaves a ruling in a request.
    pub(super) fn leave(
        extensions: &mut Extensions,
        limiter: u128,
        domain: &Arc<str>,
        ruling: Arc<Ruling>,
    ) {
        let entry = Entry { limiter, domain: Arc::clone(domain), ruling };
        extensions.get_or_insert_with(Self::default).0.push(entry);
    }

    pub(super) fn by(&self, limiter: u128, domain: &str) -> Option<&Ruling> {
        let same = |entry: &&Entry| entry.limiter == limiter && *entry.domain == *domain;
        self.0.iter().find(same).map(|entry| &*entry.ruling)
    }
}

impl fmt::Debug for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.rulings()).finish()
    }
}
