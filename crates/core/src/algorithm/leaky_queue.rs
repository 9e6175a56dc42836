//! Leaky bucket as a queue: departures evenly spaced, callers told their exact moment.
//!
//! The state is the next free departure, kept as in `bucket.rs`. A charge departs then (or now,
//! when the line is empty) and occupies the time its cost takes. The burst is the number of
//! places in the queue behind the departing charge: with a burst of Q, at most Q wait.
//!
//! Bound: departures i and i + n lie at least n / rate apart, rounded down to the microsecond;
//! never more than Q wait.
//!
//! A place is known by its microsecond of departure; above 10⁶ a second several share one, and
//! are told apart no further.
//!
//! A departure that was granted cannot be recalled. So a credit frees a place only while it is
//! the last one (`at` being its moment of departure), and a change of quota keeps the time line.

use std::time::Duration;

use super::bucket::{Ahead, Bucket, BucketKind, BucketPlan, Convert, Credit, Take};
use super::{Change, MAX_AHEAD_US};
use crate::decision::{Decision, Retry, Verdict};
use crate::limit::OnChange;
use crate::span::Span;
use crate::{Quota, Timestamp};

/// Spaces departures evenly at the rate. The burst is the number of places in the queue.
///
/// Charges need patience to wait in line; without it they pass only when the line is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeakyQueue;

impl BucketKind for LeakyQueue {
    const TAKE: Take = line_up;
    const CREDIT: Credit = step_out;
    const CONVERT: Convert = keep_departures;

    fn capacity(quota: &Quota) -> u64 {
        // The departing charge takes a place as well.
        quota.burst().get().saturating_add(1)
    }
}

/// Keeps every granted departure, unless the edit resets.
fn keep_departures(
    state: Bucket,
    from: &BucketPlan,
    to: &BucketPlan,
    change: Change,
    now: Timestamp,
) -> Option<Bucket> {
    if change == Change::Revise(OnChange::Reset) {
        return None;
    }
    let kept = BucketPlan::adopt(state, from, to, now)?;
    let most = to.rate.add(to.full, Span::micros(MAX_AHEAD_US));
    let backlog = to.backlog(Some(&kept), now).min(most);
    to.bucket(backlog, kept.ahead, now)
}

fn line_up(
    plan: &BucketPlan,
    state: Option<&Bucket>,
    cost: u64,
    patience_us: u64,
    now: Timestamp,
) -> (Decision, Option<Bucket>) {
    let backlog = plan.backlog(state, now);
    if cost > plan.capacity {
        return (plan.look(Verdict::Deny(Retry::Never), backlog), None);
    }
    let after = plan.rate.add(backlog, plan.rate.span(cost));
    let wait = backlog.ceil();
    let until_room = plan.rate.sub(after, plan.full).ceil();
    let retry = until_room.max(wait.saturating_sub(patience_us));
    if retry > 0 {
        let retry = Retry::After(Duration::from_micros(retry));
        return (plan.look(Verdict::Deny(retry), backlog), None);
    }
    let Some(bucket) = plan.bucket(after, Ahead::No, now) else {
        return (plan.look(Verdict::Deny(Retry::Never), backlog), None);
    };
    let verdict = match wait {
        0 => Verdict::Allow,
        wait => Verdict::Wait(Duration::from_micros(wait)),
    };
    (plan.look(verdict, after), Some(bucket))
}

/// Gives back the place that departs at `at`, if it is the last.
fn step_out(
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
