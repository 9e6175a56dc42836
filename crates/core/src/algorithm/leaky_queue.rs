//! Leaky bucket as a queue: evenly spaced departures, with the exact moment for each caller.
//!
//! The state is the next free departure, stored as in `bucket.rs`. A charge departs then (or now,
//! if the queue is empty) and occupies the time that its cost takes. The burst is the number of
//! places in the queue behind the departing charge: with a burst of Q, at most Q wait.
//!
//! Bound: departures i and i + n lie at least n / rate apart, rounded down to the microsecond;
//! never more than Q wait.
//!
//! A place is identified by its microsecond of departure. Above 10⁶ a second, several places share
//! one microsecond and cannot be told apart.
//!
//! A granted departure cannot be recalled. So a credit frees a place only while it is the last one
//! (`at` is its moment of departure), and a change of quota keeps the time line.

use super::bucket::{Bucket, BucketKind, BucketPlan};
use super::{Change, Conversion, MAX_AHEAD_US};
use crate::limit::OnChange;
use crate::span::Span;
use crate::{Quota, Timestamp};

/// Spaces departures evenly at the rate. The burst is the number of places in the queue.
///
/// Charges need patience to wait in the queue; without it they pass only if the queue is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeakyQueue;

impl BucketKind for LeakyQueue {
    fn capacity(quota: &Quota) -> u64 {
        // The departing charge takes a place as well.
        quota.burst().get().saturating_add(1)
    }

    /// Departs after those before it. Needs a place among them.
    fn wait(plan: &BucketPlan, before: Span, after: Span) -> (u64, u64) {
        (before.ceil(), plan.rate.sub(after, plan.full).ceil())
    }

    /// Gives back the place that departs at `at`, if it is the last.
    fn credit(
        plan: &BucketPlan,
        state: &Bucket,
        cost: u64,
        at: Timestamp,
        now: Timestamp,
    ) -> Option<Bucket> {
        let charged = plan.rate.span(cost);
        let departure = plan.rate.sub(state.arrival, charged);
        if cost == 0 || charged > state.arrival || departure.ceil() != at.as_micros() {
            return None;
        }
        let left = plan.rate.sub(plan.backlog(Some(state), now), charged);
        plan.bucket(left, state.ahead.at(now), now)
    }

    /// Keeps every granted departure, unless the edit resets.
    fn convert(state: Bucket, by: Conversion<'_, BucketPlan>) -> Option<Bucket> {
        if by.change == Change::Revise(OnChange::Reset) {
            return None;
        }
        let (to, now) = (by.to, by.now);
        let kept = BucketPlan::adopt(state, by)?;
        let most = to.rate.add(to.full, Span::micros(MAX_AHEAD_US));
        let backlog = to.backlog(Some(&kept), now).min(most);
        to.bucket(backlog, kept.ahead, now)
    }
}
