//! From a call to permits or a refusal: one all-or-none request.

use std::pin::Pin;
use std::sync::Arc;

use tollgate_core::{Clock, Store};
use tollgate_embedded::EmbeddedStore;

use super::call::LimitCall;
use super::plan::{CallPlan, Planner, rule_source};
use crate::decision::{Ruling, poll_once};
use crate::{Limiter, Permits, Refused};

/// A store that answers at once, as a function that is not `async` requires.
#[diagnostic::on_unimplemented(
    message = "a function under `#[limit]` that is not `async` cannot wait for `{Self}`",
    label = "takes a round trip",
    note = "make the function `async`, or use a limiter on an `EmbeddedStore`"
)]
pub trait AnswersAtOnce: Store {}

impl<C: Clock> AnswersAtOnce for EmbeddedStore<C> {}
impl<S: AnswersAtOnce> AnswersAtOnce for Arc<S> {}

/// A decision in progress.
type DecisionFuture<'a> = Pin<Box<dyn Future<Output = Result<Permits, Refused>> + Send + 'a>>;

/// A limiter on any store.
pub(crate) trait AnyLimiter: Send + Sync {
    /// Decides a call at once; `None` if the store is remote.
    fn decide_now(&self, call: &LimitCall) -> Option<Result<Permits, Refused>>;

    /// Decides a call.
    fn decide<'a>(&'a self, call: &'a LimitCall) -> DecisionFuture<'a>;
}

impl<S: Store + 'static> AnyLimiter for Limiter<S> {
    fn decide_now(&self, call: &LimitCall) -> Option<Result<Permits, Refused>> {
        if self.store().is_remote() { None } else { poll_once(self.decide_call(call)) }
    }

    fn decide<'a>(&'a self, call: &'a LimitCall) -> DecisionFuture<'a> {
        Box::pin(self.decide_call(call))
    }
}

impl<S: Store + 'static> Limiter<S> {
    async fn decide_call(&self, call: &LimitCall) -> Result<Permits, Refused> {
        let function_rules = call.site.function_rules()?;
        let rules = self.rules();
        let parts = {
            let secret = &self.shared.secret;
            let limiter = self.identity();
            Planner { rules: &rules, function_rules, secret, limiter }.judge(call)?
        };
        if parts.is_empty() {
            // A layer has counted the request.
            return Ok(Permits::none());
        }
        let source = rule_source(&rules, function_rules, &parts);
        let names = &self.shared.runner.names;
        let CallPlan { plan, attributes } =
            CallPlan::new(call, function_rules, &parts, &source, names)?;
        let mut ruling = Ruling::of(&plan);
        let permits = self.run(&plan, None, &mut ruling).await;
        drop(plan);
        if ruling.passes() {
            return Ok(permits);
        }
        let by = attributes.get(ruling.answer.refused_by.unwrap_or(0)).copied().flatten();
        let message = by.and_then(|attribute| call.site.attributes.get(attribute)?.message());
        Err(Refused::judged(call.site.path(), message, ruling))
    }
}
