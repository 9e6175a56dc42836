//! The admission, the answer to a request: a ruling, and the permits that the request holds.

use std::time::Duration;

use tollgate_core::Verdict;

use crate::decision::{Outage, Ruling};
use crate::permits::Permits;

/// The answer to a request. Protocols turn it into bytes and need nothing else.
///
/// Keep it, or its [`Permits`], while the work lasts: dropping it gives the permits of concurrency
/// limits back.
///
/// ```
/// use tollgate::{Admission, EmbeddedStore, Limit, Limiter, SlidingLog};
///
/// /// The status of a web server's answer.
/// fn status(admission: &Admission) -> u16 {
///     match admission.outage() {
///         _ if admission.passes() => 200,
///         Some(outage) if outage.unavailable => 503,
///         _ => 429,
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(EmbeddedStore::new());
/// let limit = Limit::new(SlidingLog, "1 per 1m".parse()?)?;
/// assert_eq!(status(&limiter.check("k", &limit, 1).await?), 200);
/// assert_eq!(status(&limiter.check("k", &limit, 1).await?), 429);
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "an unchecked admission admits every request"]
pub struct Admission {
    pub(crate) ruling: Ruling,
    pub(crate) permits: Permits,
}

impl Admission {
    /// True if the request may pass, at once or after [`Admission::wait`]. Set in an outage, too.
    pub const fn passes(&self) -> bool {
        self.ruling.passes()
    }

    /// The verdict over all limits.
    pub const fn verdict(&self) -> Verdict {
        self.ruling.verdict()
    }

    /// The time to wait before passing. Zero, unless the request was granted a place in the future.
    /// Only requests with patience get one; [`Limiter::admit`](crate::Limiter::admit) and
    /// [`Limiter::check`](crate::Limiter::check) have none.
    pub const fn wait(&self) -> Duration {
        self.ruling.wait()
    }

    /// The time after which asking again can help, never zero: the longest, if several limits
    /// refuse. `None` if the request passes, or can never pass.
    pub const fn retry_after(&self) -> Option<Duration> {
        self.ruling.retry_after()
    }

    /// The name of the rule that refuses: see [`Ruling::refused_by`].
    pub fn refused_by(&self) -> Option<&str> {
        self.ruling.refused_by()
    }

    /// The decision, limit by limit.
    pub const fn ruling(&self) -> &Ruling {
        &self.ruling
    }

    /// The reason why the store did not decide; `None` if it did.
    pub const fn outage(&self) -> Option<Outage> {
        self.ruling.outage()
    }

    /// The permits held under concurrency limits. Drop them when the work is done.
    pub fn into_permits(self) -> Permits {
        self.permits
    }
}
