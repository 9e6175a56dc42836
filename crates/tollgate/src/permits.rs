//! Permits of concurrency limits, held as long as this value lives.
//!
//! `decision/background.rs` renews them while they are held, so work may take longer than a lease.
//! Dropping the value gives them back, also in a task that panics or is cancelled. If a process dies,
//! its permits are free again when their leases end.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tollgate_core::{Answer, Holder, Op, Request, Store, Timestamp, Verdict};

use crate::decision::{Background, Job, OwnedCounter, Runner};

/// The permits that a request holds until its work is done. Most requests hold none.
///
/// Each is renewed every third of its lease while this value lives, and every sixth while the store
/// does not answer. A store in this process gets it back as soon as the value is dropped; a remote
/// store gets it back in the background.
///
/// ```
/// use tollgate::{Ask, EmbeddedStore, Limiter, rules};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(EmbeddedStore::new());
/// limiter.set_rules(rules::load(
///     "{ version: 1, domain: shop, rules: [{ name: export, limits: [{ concurrent: 1, lease: 1m }] }] }",
///     rules::Format::Yaml,
/// )?)?;
/// let ask = Ask::new("shop");
///
/// let permits = limiter.admit(&ask).await.into_permits();
/// assert_eq!(permits.len(), 1);
/// assert!(!limiter.admit(&ask).await.passes());
///
/// drop(permits);
/// assert!(limiter.admit(&ask).await.passes());
/// # Ok(()) }
/// ```
#[must_use = "permits go back as soon as this is dropped"]
#[derive(Default)]
pub struct Permits {
    /// Boxed, because an admission is moved often and seldom holds permits.
    held: Option<Box<HeldPermits>>,
}

/// At least one permit, with the limiter that takes them back.
struct HeldPermits {
    permits: SmallVec<[(OwnedCounter, Holder, Duration); 1]>,
    background: Background,
    runner: Arc<dyn Releases>,
}

/// A runner that can release a permit at once.
pub(crate) trait Releases: Send + Sync {
    fn release(&self, counter: &OwnedCounter, holder: Holder);
}

impl<S: Store> Releases for Runner<S> {
    fn release(&self, counter: &OwnedCounter, holder: Holder) {
        // A background job releases permits of a remote store.
        if self.store.is_remote() {
            return;
        }
        let Some(charge) = counter.charge(Op::Release { holder }) else { return };
        let (charges, decisions) = ([charge], SmallVec::new());
        let (verdict, at) = (Verdict::Allow, Timestamp::EPOCH);
        let mut answer = Answer { verdict, at, refused_by: None, decisions };
        if let Ok(request) = Request::new(&charges) {
            // Permits of a local store that fails end with their leases.
            let _ = self.ask_now(&request, &mut answer);
        }
    }
}

impl Permits {
    /// Holds no permits.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    /// Permits that are about to be requested. If dropped before the answer is known, they are
    /// released, so a caller that leaves while the store decides leaves no permit behind.
    pub(crate) fn asked<S: Store + 'static>(
        permits: impl IntoIterator<Item = (OwnedCounter, Holder, Duration)>,
        background: &Background,
        runner: &Arc<Runner<S>>,
    ) -> Self {
        let permits: SmallVec<_> = permits.into_iter().collect();
        if permits.is_empty() {
            return Self::none();
        }
        let runner: Arc<dyn Releases> = Arc::<Runner<S>>::clone(runner);
        Self {
            held: Some(Box::new(HeldPermits { permits, background: background.clone(), runner })),
        }
    }

    /// Renews them from now on, because they were granted.
    pub(crate) fn granted(&self) {
        let Some(held) = &self.held else { return };
        for (counter, holder, lease) in &held.permits {
            let (counter, holder, lease) = (counter.clone(), *holder, *lease);
            held.background.queue(Job::Hold { counter, holder, lease });
        }
    }

    /// Takes over the permits of another value.
    pub(crate) fn join(&mut self, mut other: Self) {
        let Some(held) = &mut self.held else {
            *self = other;
            return;
        };
        if let Some(others) = &mut other.held {
            held.permits.append(&mut others.permits);
        }
    }

    /// Forgets them without a release, because they were refused.
    pub(crate) fn refused(&mut self) {
        if let Some(mut held) = self.held.take() {
            held.permits.clear();
        }
    }

    /// The number of permits.
    pub fn len(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held.permits.len())
    }

    /// True if no permit is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_none()
    }
}

impl Drop for HeldPermits {
    fn drop(&mut self) {
        for (counter, holder, _) in self.permits.drain(..) {
            self.runner.release(&counter, holder);
            self.background.queue(Job::Release { counter, holder });
        }
    }
}

opaque_debug!(Permits: |it| held = it.len());
