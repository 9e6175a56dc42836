//! The tag of a limit: its algorithm, parameters, quota and revision in a few bytes.
//!
//! Numbers are written seven bits a byte, the lowest first, the last byte below 128, without
//! needless zeros: equal limits have equal tags, and no tag is the beginning of another.

use std::num::NonZeroU64;
use std::time::Duration;

use tollgate_core::algorithm::{
    Anchor, Concurrency, Estimate, FixedWindow, LeakyMeter, LeakyQueue, Payment, SlidingLog,
    SlidingWindow, Smooth, TokenBucket,
};
use tollgate_core::{Algorithm, Limit, Quota, Revision};

use super::micros;
use crate::keys::VERSION;

/// Writes the tag.
pub(crate) fn write_tag(limit: &Limit, out: &mut Vec<u8>) {
    out.extend_from_slice(&[VERSION, limit.code()]);
    match limit.algorithm() {
        Algorithm::FixedWindow(window) => out.push(u8::from(window.anchor == Anchor::Epoch)),
        Algorithm::SlidingWindow(window) => {
            out.extend_from_slice(&[window.panes, u8::from(window.estimate == Estimate::Weighted)]);
        }
        Algorithm::Smooth(smooth) => {
            out.extend_from_slice(&[smooth.cold_factor, u8::from(smooth.payment == Payment::Own)]);
            // Zero is none: neither may be zero itself.
            number(smooth.warm_up.map_or(0, micros), out);
            number(smooth.max_debt.map_or(0, NonZeroU64::get), out);
        }
        Algorithm::SlidingLog(_)
        | Algorithm::TokenBucket(_)
        | Algorithm::LeakyMeter(_)
        | Algorithm::LeakyQueue(_)
        | Algorithm::Concurrency(_) => {}
    }
    let quota = limit.quota();
    number(quota.count().get(), out);
    number(micros(quota.period()), out);
    number(quota.burst().get(), out);
    number(limit.revision().0, out);
}

/// Reads the limit of a tag at the beginning of these bytes. Returns it with the rest. Policies are not
/// stored; each caller has its own.
pub(crate) fn read_tag(bytes: &[u8]) -> Option<(Limit, &[u8])> {
    let (version, mut rest) = bytes.split_first()?;
    let code = take_byte(&mut rest).filter(|_| *version == VERSION)?;
    let algorithm = read_algorithm(code, &mut rest)?;
    let (count, period) = (take_number(&mut rest)?, take_number(&mut rest)?);
    let quota = Quota::new(count, Duration::from_micros(period)).ok()?;
    let burst = take_number(&mut rest)?;
    let quota = if burst == count { quota } else { quota.with_burst(burst).ok()? };
    let revision = Revision(take_number(&mut rest)?);
    let limit = Limit::new(algorithm, quota).ok()?.with_revision(revision);
    Some((limit, rest))
}

fn read_algorithm(code: u8, rest: &mut &[u8]) -> Option<Algorithm> {
    let either = |flag: u8| (flag < 2).then_some(flag == 1);
    let algorithm: Algorithm = match code {
        0 => {
            let epoch = either(take_byte(rest)?)?;
            FixedWindow { anchor: if epoch { Anchor::Epoch } else { Anchor::FirstHit } }.into()
        }
        1 => SlidingLog.into(),
        2 => {
            let panes = take_byte(rest)?;
            let weighted = either(take_byte(rest)?)?;
            let estimate = if weighted { Estimate::Weighted } else { Estimate::Conservative };
            SlidingWindow { panes, estimate }.into()
        }
        3 => TokenBucket.into(),
        4 => LeakyMeter.into(),
        5 => LeakyQueue.into(),
        6 => {
            let cold_factor = take_byte(rest)?;
            let payment = if either(take_byte(rest)?)? { Payment::Own } else { Payment::Next };
            let smooth = match take_number(rest)? {
                0 => Smooth::bursty(),
                warm_up => Smooth::warming_up(Duration::from_micros(warm_up)),
            };
            let smooth = smooth.with_cold_factor(cold_factor).with_payment(payment);
            smooth.with_max_debt(take_number(rest)?).into()
        }
        7 => Concurrency.into(),
        _ => return None,
    };
    Some(algorithm)
}

fn number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 128 {
        out.push(u8::try_from(number & 127).unwrap_or(0) | 128);
        number >>= 7;
    }
    out.push(u8::try_from(number).unwrap_or(0));
}

fn take_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*first)
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = take_byte(bytes)?;
        let bits = u64::from(byte & 127);
        if shift == 63 && bits > 1 {
            return None;
        }
        number |= bits.checked_shl(shift)?;
        if byte < 128 {
            // A zero at the end would be another way to write the same.
            return (byte != 0 || shift == 0).then_some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use tollgate_core::testing::{Rng, history::AlgorithmKind};

    use super::*;

    #[test]
    fn a_tag_tells_its_limit_and_ends_where_it_ends() {
        let mut rng = Rng::new(5);
        for kind in AlgorithmKind::ALL {
            for _ in 0..2_000 {
                let limit = kind.limit(&mut rng).with_revision(Revision(rng.magnitude(u64::MAX)));
                let mut tag = Vec::new();
                write_tag(&limit, &mut tag);
                let length = tag.len();
                tag.extend_from_slice(b"state");

                assert_eq!(read_tag(&tag), Some((limit, &b"state"[..])));
                assert!(length <= 255);
                assert!((0..length).all(|cut| read_tag(&tag[..cut]).is_none()), "{limit}");
            }
        }
    }

    #[test]
    fn bytes_that_are_not_a_tag_are_not_taken_for_one() {
        let mut rng = Rng::new(6);
        for _ in 0..100_000 {
            let length = rng.below(24);
            let bytes: Vec<u8> = (0..length)
                .map(|i| u8::try_from(rng.below(if i < 2 { 9 } else { 256 })).unwrap())
                .collect();
            let Some((limit, rest)) = read_tag(&bytes) else { continue };
            let mut again = Vec::new();
            write_tag(&limit, &mut again);
            again.extend_from_slice(rest);
            assert_eq!(again, bytes, "one way to write {limit}");
        }
    }
}
