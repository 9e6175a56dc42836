//! Buckets and queues: `lua/bucket.lua`.

use tollgate_core::state::{AheadReason, Bucket, BucketPlan};
use tollgate_core::{Span, Timestamp};

use super::{double, exact, take_exact, u64s};

pub(super) fn pack_plan(plan: &BucketPlan, out: &mut Vec<u8>) {
    for number in [plan.capacity, plan.rate.denominator().get(), plan.full.whole, plan.full.part] {
        double(number, out);
    }
}

pub(super) fn encode(bucket: &Bucket, out: &mut Vec<u8>) {
    u64s([bucket.arrival.whole, bucket.arrival.part], out);
    let (code, since) = match bucket.ahead {
        AheadReason::WithinBurst => return,
        AheadReason::Debt(since) => (1, since),
        AheadReason::Waiting(since) => (2, since),
    };
    out.push(code);
    u64s([since.as_micros()], out);
}

/// Reads the arrival time of a bucket whose state is nothing else.
pub(crate) fn read_arrival(plan: &BucketPlan, bytes: &[u8]) -> Option<Span> {
    let (whole, part) = bytes.split_first_chunk::<8>()?;
    let (whole, part) = (exact(*whole)?, exact(part.try_into().ok()?)?);
    (part < plan.rate.denominator().get()).then_some(Span { whole, part })
}

pub(super) fn decode(plan: &BucketPlan, bytes: &[u8]) -> Option<Bucket> {
    let (arrival, rest) = bytes.split_at_checked(16)?;
    let ahead = match rest.split_first() {
        None => AheadReason::WithinBurst,
        Some((code, mut rest)) => {
            let since = Timestamp::from_micros(take_exact(&mut rest)?);
            match (code, rest) {
                (1, []) => AheadReason::Debt(since),
                (2, []) => AheadReason::Waiting(since),
                _ => return None,
            }
        }
    };
    Some(Bucket { arrival: read_arrival(plan, arrival)?, ahead })
}
