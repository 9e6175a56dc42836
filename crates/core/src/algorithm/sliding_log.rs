//! Sliding log: it remembers every charge until the charge leaves the window.
//!
//! Bound: exactly the count in any window (t − W, t]; no charge is refused that would fit.
//!
//! Entries carry the *cumulative* cost. So usage is a difference, and bisection finds the entry
//! whose leaving makes room for a cost. Charges of one instant share an entry. A debit is recorded
//! at the moment it arrives, because entries only ever join at the end. A credit comes off the
//! oldest live entries: they leave soonest, so it never gives back more than the charge itself was
//! worth.
//!
//! Decisions need only a [`LogView`], so a store that keeps the log elsewhere can answer from a few
//! numbers.

use std::collections::VecDeque;
use std::time::Duration;

use super::fixed_window::scale;
use super::{Change, Conversion, Outcome, Step, refuse_own_burst};
use crate::charge::{Op, Terms};
use crate::decision::{Decision, Retry, Verdict};
use crate::limit::{LimitError, LimitErrorKind, OnChange};
use crate::{Quota, Timestamp};

/// Remembers every charge for one period: exact, at the price of memory per charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SlidingLog;

impl SlidingLog {
    /// The largest count. Beyond it, one key would occupy megabytes.
    pub const MAX_COUNT: u64 = 100_000;
}

/// Totals beyond this restart from zero; a Redis script is exact up to 2^53.
const MAX_TOTAL: u64 = 1 << 52;

/// The most that debits may record at once. The oldest part of a larger debt is forgiven.
const MAX_DEBT: u64 = 1 << 40;

/// The most entries that are scaled to another count. A log with more is made coarser first: each
/// remaining entry also stands for those before it, so their cost leaves later, by a 256th of the
/// log at most. Redis writes each scaled entry again, and blocks all its clients meanwhile.
pub const MAX_SCALED: usize = 256;

/// The numbers of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLogPlan {
    /// The most permits of any window.
    pub capacity: u64,
    /// The time for which an entry counts.
    pub window_us: u64,
}

/// Charges in the order in which they came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// Cumulative cost of the charges that have left.
    base: u64,
    entries: VecDeque<LogEntry>,
}

/// The charges of one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The moment.
    pub at: Timestamp,
    /// Everything charged up to and including it.
    pub total: u64,
}

/// The part of a log that a decision needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogView {
    /// Permits charged within the window.
    pub used: u64,
    /// The time of the newest live entry.
    pub newest: Option<Timestamp>,
    /// The time of the entry whose leaving makes room for the cost in question.
    pub blocking: Option<Timestamp>,
}

impl Log {
    /// A log of entries in the order in which they came, with `base` charged before them. `None` if
    /// moments or totals do not rise, or total more than a log ever records.
    pub fn from_entries(base: u64, entries: impl IntoIterator<Item = LogEntry>) -> Option<Self> {
        let entries: VecDeque<LogEntry> = entries.into_iter().collect();
        let mut before: Option<LogEntry> = None;
        for entry in &entries {
            let rises = entry.total > before.map_or(base, |b| b.total)
                && before.is_none_or(|b| entry.at > b.at);
            if !rises || entry.total > MAX_TOTAL {
                return None;
            }
            before = Some(*entry);
        }
        Some(Self { base, entries })
    }

    /// A log with this view for a decision about this cost, for stores that keep the log elsewhere.
    /// Its other entries are missing.
    pub fn as_seen(plan: &SlidingLogPlan, view: LogView, cost: u64) -> Self {
        let Some(newest) = view.newest else { return Self::default() };
        let gone = view.used.saturating_add(cost).saturating_sub(plan.capacity);
        let before = view.blocking.filter(|at| *at < newest);
        let entries = before.map(|at| LogEntry { at, total: gone.min(view.used) });
        let entries = entries.into_iter().chain([LogEntry { at: newest, total: view.used }]);
        Self { base: 0, entries: entries.collect() }
    }

    /// Returns the log with as many entries as the stored one. The present entries go to these
    /// places; each gap is filled with copies of the entry before it, which decide nothing. For
    /// stores that keep the log elsewhere.
    #[must_use]
    pub fn padded(self, places: &[usize]) -> Self {
        let mut entries = VecDeque::new();
        let first = self.entries.front().map(|entry| entry.at);
        // The least that an entry may add, or else it would count as given back.
        let least = self.base.saturating_add(1);
        let mut before = LogEntry { at: first.unwrap_or(Timestamp::EPOCH), total: least };
        for (entry, place) in self.entries.iter().zip(places) {
            let most = usize::try_from(SlidingLog::MAX_COUNT).unwrap_or(usize::MAX);
            entries.resize((*place).min(most).max(entries.len()), before);
            entries.push_back(*entry);
            before = *entry;
        }
        Self { base: self.base, entries }
    }

    /// Permits charged before the entries that are kept.
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// The entries that are kept, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = LogEntry> {
        self.entries.iter().copied()
    }

    /// Entries that still count at `now`, oldest first, each with its own cost.
    pub fn live(&self, window_us: u64, now: Timestamp) -> impl Iterator<Item = (Timestamp, u64)> {
        let first = self.first_live(window_us, now);
        let mut before = self.total_before(first);
        self.entries.range(first..).map(move |entry| {
            let cost = entry.total.saturating_sub(before);
            before = entry.total;
            (entry.at, cost)
        })
    }

    /// The part of the log that a decision about `cost` needs.
    pub fn view(&self, plan: &SlidingLogPlan, cost: u64, now: Timestamp) -> LogView {
        let first = self.first_live(plan.window_us, now);
        let base = self.total_before(first);
        let Some(newest) = self.entries.back().filter(|_| first < self.entries.len()) else {
            return LogView::default();
        };
        let used = newest.total.saturating_sub(base);
        let too_many = used.saturating_add(cost).saturating_sub(plan.capacity);
        let gone = base.saturating_add(too_many);
        let index = self.entries.partition_point(|entry| entry.total < gone);
        let blocking = if too_many == 0 { None } else { self.entries.get(index).map(|e| e.at) };
        LogView { used, newest: Some(newest.at), blocking }
    }

    fn first_live(&self, window_us: u64, now: Timestamp) -> usize {
        self.entries.partition_point(|entry| now.micros_since(entry.at) >= window_us)
    }

    fn total_before(&self, index: usize) -> u64 {
        match index.checked_sub(1).and_then(|before| self.entries.get(before)) {
            Some(entry) => entry.total,
            None => self.base,
        }
    }

    fn trim(&mut self, window_us: u64, now: Timestamp) {
        let first = self.first_live(window_us, now);
        self.base = self.total_before(first);
        self.entries.drain(..first);
    }

    fn push(&mut self, cost: u64, now: Timestamp, most_entries: u64) {
        if self.newest_total().saturating_add(MAX_DEBT) > MAX_TOTAL {
            self.rebase();
        }
        let total = self.newest_total().saturating_add(cost.min(MAX_DEBT));
        self.forgive(total.saturating_sub(MAX_DEBT));
        let len = u64::try_from(self.entries.len()).unwrap_or(u64::MAX);
        match self.entries.back_mut() {
            // Only debits can make more entries than the count; the newest then stands for all.
            Some(newest) if newest.at == now || len >= most_entries => {
                *newest = LogEntry { at: now, total };
            }
            _ => {
                self.grow(most_entries);
                self.entries.push_back(LogEntry { at: now, total });
            }
        }
    }

    fn newest_total(&self) -> u64 {
        self.entries.back().map_or(self.base, |entry| entry.total)
    }

    /// Drops everything charged up to this total.
    fn forgive(&mut self, total: u64) {
        self.base = self.base.max(total);
        let gone = self.entries.partition_point(|entry| entry.total <= self.base);
        self.entries.drain(..gone);
    }

    /// Doubles the capacity, but never beyond the plan's [`Step::heap_bytes`].
    fn grow(&mut self, most_entries: u64) {
        let len = self.entries.len();
        if len == self.entries.capacity() {
            let most = usize::try_from(most_entries).unwrap_or(usize::MAX);
            let target = len.saturating_mul(2).clamp(4, most.max(4));
            self.entries.reserve_exact(target.saturating_sub(len));
        }
    }

    /// Leaves at most this many entries, spread as evenly as possible.
    fn coarsen(&mut self, most: usize) {
        let len = self.entries.len();
        if len > most {
            let places = (1..=most).map(|i| i.saturating_mul(len).checked_div(most));
            let kept = places.filter_map(|place| self.entries.get(place?.checked_sub(1)?));
            self.entries = kept.copied().collect();
        }
    }

    fn rebase(&mut self) {
        for entry in &mut self.entries {
            entry.total = entry.total.saturating_sub(self.base);
        }
        self.base = 0;
    }

    fn credit(&mut self, cost: u64) {
        let newest = self.newest_total();
        self.forgive(self.base.saturating_add(cost).min(newest));
    }
}

/// An edit of a log. Entries that left are dropped first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEdit {
    /// The moment of the decision.
    pub now: Timestamp,
    /// The change after that.
    pub action: LogAction,
}

/// A change of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogAction {
    /// A charge joins at the end.
    Push(u64),
    /// This cost comes off the oldest entries.
    Credit(u64),
}

impl SlidingLogPlan {
    /// Decides from a view of the log.
    #[inline]
    fn decide(&self, view: LogView, terms: Terms) -> Outcome<LogAction> {
        let now = terms.now;
        let until = |at: Timestamp| self.window_us.saturating_sub(now.micros_since(at));
        let in_window = |at: Timestamp| now.micros_since(at) < self.window_us;
        let (verdict, action) = match terms.op {
            Op::Take(cost) | Op::Peek(cost) if cost > self.capacity => {
                (Verdict::Deny(Retry::Never), None)
            }
            Op::Take(cost) | Op::Peek(cost) if cost > 0 => match view.blocking {
                Some(at) => (Verdict::Deny(Retry::After(Duration::from_micros(until(at)))), None),
                None if matches!(terms.op, Op::Peek(_)) => (Verdict::Allow, None),
                None => (Verdict::Allow, Some(LogAction::Push(cost))),
            },
            Op::Debit { cost, at } if cost > 0 && in_window(at) => {
                (Verdict::Allow, Some(LogAction::Push(cost)))
            }
            Op::Credit { cost, at } if cost > 0 && view.used > 0 && in_window(at) => {
                (Verdict::Allow, Some(LogAction::Credit(cost)))
            }
            Op::Acquire { .. } | Op::Renew { .. } | Op::Release { .. } => {
                (Verdict::Deny(Retry::Never), None)
            }
            _ => (Verdict::Allow, None),
        };
        let (used, newest) = match action {
            Some(LogAction::Push(cost)) => (view.used.saturating_add(cost), Some(now)),
            Some(LogAction::Credit(cost)) => (view.used.saturating_sub(cost), view.newest),
            None => (view.used, view.newest),
        };
        let reset = newest.filter(|_| used > 0).map_or(0, until);
        (Decision::new(verdict, self.capacity.saturating_sub(used), reset), action)
    }
}

impl Step for SlidingLog {
    type Plan = SlidingLogPlan;
    type State = Log;
    type Edit = LogEdit;

    fn plan(&self, quota: &Quota) -> Result<SlidingLogPlan, LimitError> {
        refuse_own_burst(quota, "sliding-log")?;
        let capacity = quota.count().get();
        if capacity > Self::MAX_COUNT {
            let reason = format!(
                "sliding-log remembers every charge, and {capacity} is above {}: use \
                 sliding-window, or count in larger units",
                Self::MAX_COUNT
            );
            return Err(LimitError::new(LimitErrorKind::CountTooLarge, reason));
        }
        Ok(SlidingLogPlan { capacity, window_us: quota.period_us().get() })
    }

    fn settle(_: &SlidingLogPlan, log: &mut Log, now: Timestamp) -> bool {
        let on_time = log.entries.partition_point(|entry| entry.at <= now);
        let ahead = on_time < log.entries.len();
        if ahead {
            // All that lies ahead counts as charged just now.
            let total = log.entries.back().map_or(0, |newest| newest.total);
            log.entries.truncate(on_time);
            match log.entries.back_mut() {
                Some(newest) if newest.at == now => newest.total = total,
                _ => log.entries.push_back(LogEntry { at: now, total }),
            }
        }
        ahead
    }

    fn decide(plan: &SlidingLogPlan, log: Option<&Log>, terms: Terms) -> Outcome<LogEdit> {
        let now = terms.now;
        let cost = match terms.op {
            Op::Take(cost) | Op::Peek(cost) => cost,
            _ => 0,
        };
        let view = log.map_or_else(LogView::default, |log| log.view(plan, cost, now));
        let (decision, action) = plan.decide(view, terms);
        (decision, action.map(|action| LogEdit { now, action }))
    }

    fn apply(plan: &SlidingLogPlan, log: Option<Log>, edit: LogEdit) -> Option<Log> {
        let mut log = log.unwrap_or_default();
        log.trim(plan.window_us, edit.now);
        match edit.action {
            LogAction::Push(cost) => log.push(cost, edit.now, plan.capacity),
            LogAction::Credit(cost) => log.credit(cost),
        }
        (!log.entries.is_empty()).then_some(log)
    }

    fn convert(mut log: Log, by: Conversion<'_, SlidingLogPlan>) -> Option<Log> {
        let Conversion { from, to, change, now } = by;
        log.trim(from.window_us.min(to.window_us), now);
        match change {
            Change::Revise(OnChange::Reset) => return None,
            Change::Revise(OnChange::Keep) | Change::Adopt => {}
            Change::Revise(OnChange::Scale) => {
                log.coarsen(MAX_SCALED);
                log.rebase();
                for entry in &mut log.entries {
                    entry.total = scale(entry.total, from.capacity, to.capacity);
                }
                let mut before = 0;
                log.entries.retain(|entry| {
                    let costs = entry.total > before;
                    before = entry.total;
                    costs
                });
            }
        }
        let most = usize::try_from(to.capacity).unwrap_or(usize::MAX);
        while log.entries.len() > most {
            // Fewer entries than charges: the oldest two become one, at the later moment.
            log.entries.pop_front();
        }
        log.entries.shrink_to(most);
        (!log.entries.is_empty()).then_some(log)
    }

    fn idle_at(plan: &SlidingLogPlan, log: &Log) -> Option<Timestamp> {
        match log.entries.back() {
            Some(newest) => newest.at.checked_plus_micros(plan.window_us),
            None => Some(Timestamp::EPOCH),
        }
    }

    fn heap_bytes(plan: &SlidingLogPlan) -> usize {
        let most = usize::try_from(plan.capacity.max(4)).unwrap_or(usize::MAX);
        most.saturating_mul(size_of::<LogEntry>())
    }
}
