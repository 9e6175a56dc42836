//! Fixed windows: `lua/fixed_window.lua`.

use tollgate_core::Timestamp;
use tollgate_core::algorithm::Anchor;
use tollgate_core::state::{FixedWindowPlan, MAX_USED, Window};

use super::{double, take_exact, u64s};

pub(super) fn pack_plan(plan: &FixedWindowPlan, out: &mut Vec<u8>) {
    double(plan.capacity, out);
    double(plan.window_us, out);
    double(u64::from(plan.anchor == Anchor::Epoch), out);
}

pub(super) fn encode(window: &Window, out: &mut Vec<u8>) {
    u64s([window.start.as_micros(), window.used], out);
}

pub(super) fn decode(mut bytes: &[u8]) -> Option<Window> {
    let start = Timestamp::from_micros(take_exact(&mut bytes)?);
    let used = take_exact(&mut bytes).filter(|used| (1..=MAX_USED).contains(used))?;
    bytes.is_empty().then_some(Window { start, used })
}
