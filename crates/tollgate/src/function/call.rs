//! One call of a function: the values of its key, its cost, and the limiter that decides.

use std::fmt::{self, Display, Write as _};

use smallvec::SmallVec;
use tollgate_core::{Cost, Store};

use super::decide::{AnswersAtOnce, AnyLimiter};
use super::site::Site;
use crate::scope::Scope;
use crate::{Limiter, Permits, Refused};

/// One call of a function under `#[limit]`.
#[derive(Debug)]
pub struct LimitCall {
    pub(super) site: &'static Site,
    pub(super) values: SmallVec<[Text; 2]>,
    costs: SmallVec<[(usize, Cost); 1]>,
    pub(super) scope: Option<Scope>,
}

/// A value as text. Most values are short.
pub(super) type Text = SmallVec<[u8; 40]>;

impl LimitCall {
    /// A call of this function, in the current scope.
    pub fn new(site: &'static Site) -> Self {
        let (values, costs) = (SmallVec::new(), SmallVec::new());
        Self { site, values, costs, scope: Scope::current() }
    }

    /// Adds the next value of the key.
    pub fn value<V: Display + ?Sized>(&mut self, value: &V) {
        let mut text = TextWriter(Text::new());
        // Writing there does not fail; what a `Display` that fails has written by then counts.
        let _ = write!(text, "{value}");
        self.values.push(text.0);
    }

    /// Sets the cost of the call for the attribute with this index.
    pub fn cost(&mut self, attribute: usize, cost: Cost) {
        self.costs.push((attribute, cost));
    }

    pub(super) fn cost_at(&self, attribute: usize) -> Cost {
        let said = self.costs.iter().find(|(at, _)| *at == attribute);
        said.map_or(1, |(_, cost)| *cost)
    }

    fn no_limiter(&self) -> Refused {
        self.site.misconfigured(
            "no limiter is in scope: write `limiter = …` into the attribute, call the function \
             within `tollgate::scope::with(&limiter, …)`, or add `LimitLayer::with_scope` to the \
             router",
        )
    }

    fn would_wait(&self) -> Refused {
        self.site.misconfigured(
            "the limiter's store takes a round trip, and a function that is not `async` cannot \
             wait for it: make it `async`",
        )
    }
}

/// Lets `Display` write into a text.
struct TextWriter(Text);

impl fmt::Write for TextWriter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Asks the limiter in scope.
///
/// # Errors
///
/// When the function may not run.
pub async fn enter(call: LimitCall) -> Result<Permits, Refused> {
    let Some(scope) = &call.scope else { return Err(call.no_limiter()) };
    decided(scope.limiter(), &call).await
}

/// Asks the limiter in scope, for a function that is not `async`.
///
/// # Errors
///
/// When the function may not run, or the store is remote.
pub fn enter_now(call: &LimitCall) -> Result<Permits, Refused> {
    let Some(scope) = &call.scope else { return Err(call.no_limiter()) };
    scope.limiter().decide_now(call).unwrap_or_else(|| Err(call.would_wait()))
}

/// Decides a call. A local store answers at once. A remote store needs a future, which is boxed so
/// that the caller's future stays small.
async fn decided(limiter: &dyn AnyLimiter, call: &LimitCall) -> Result<Permits, Refused> {
    match limiter.decide_now(call) {
        Some(decided) => decided,
        None => limiter.decide(call).await,
    }
}

impl<S: Store + 'static> Limiter<S> {
    #[doc(hidden)]
    pub async fn __enter(&self, call: LimitCall) -> Result<Permits, Refused> {
        decided(self, &call).await
    }

    #[doc(hidden)]
    pub fn __enter_now(&self, call: &LimitCall) -> Result<Permits, Refused>
    where
        S: AnswersAtOnce,
    {
        self.decide_now(call).unwrap_or_else(|| Err(call.would_wait()))
    }
}
