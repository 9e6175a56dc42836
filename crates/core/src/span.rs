//! Exact lengths of time: whole microseconds and a fraction.
//!
//! One permit of `7 per 1s` takes 1 000 000 / 7 µs. Rounding that, once for each permit, either
//! leaks permits or starves a source at exactly the rate. So a length of time is stored as whole
//! microseconds plus `part / den`. The `den` belongs to the [`PermitRate`] and is not stored with the
//! span. Compare or combine two spans only under one rate.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "it only divides, by numbers that are not zero"
)]

use std::num::NonZeroU64;

/// A length of time, or a moment counted from the epoch, with a fraction over a [`PermitRate`]'s
/// denominator. The derived order is correct, because `part` is always below the denominator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// Whole microseconds.
    pub whole: u64,
    /// The fraction's numerator, below the rate's denominator.
    pub part: u64,
}

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self { whole: 0, part: 0 };

    /// A span of whole microseconds.
    pub const fn micros(whole: u64) -> Self {
        Self { whole, part: 0 }
    }

    /// Microseconds, rounded up: a caller that comes back after the exact span must not be refused
    /// for a fraction of a microsecond.
    #[inline]
    pub const fn ceil(self) -> u64 {
        if self.part == 0 { self.whole } else { self.whole.saturating_add(1) }
    }
}

/// The time that permits take: `micros` microseconds for every `permits` permits, in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PermitRate {
    micros: NonZeroU64,
    permits: NonZeroU64,
    one: Span,
}

impl PermitRate {
    /// The rate of `permits` per `micros`, reduced.
    pub fn new(permits: NonZeroU64, micros: NonZeroU64) -> Self {
        let divisor = gcd(permits, micros);
        let reduce = |n: NonZeroU64| NonZeroU64::new(n.get() / divisor).unwrap_or(NonZeroU64::MIN);
        let (permits, micros) = (reduce(permits), reduce(micros));
        let one = Span { whole: micros.get() / permits, part: micros.get() % permits };
        Self { micros, permits, one }
    }

    /// The denominator of every span under this rate.
    pub const fn denominator(&self) -> NonZeroU64 {
        self.permits
    }

    /// The microseconds that [`PermitRate::denominator`] permits take.
    pub const fn micros(&self) -> NonZeroU64 {
        self.micros
    }

    /// The exact time that `cost` permits take; saturates at the end of time.
    #[inline]
    pub fn span(&self, cost: u64) -> Span {
        if cost == 1 {
            return self.one;
        }
        if let Some(product) = cost.checked_mul(self.micros.get()) {
            return Span { whole: product / self.permits, part: product % self.permits };
        }
        let product = u128::from(cost).saturating_mul(u128::from(self.micros.get()));
        self.span_of_units(product)
    }

    /// The whole permits that fit into `span`, rounded down: a fraction of a permit cannot be
    /// spent.
    #[inline]
    pub fn permits(&self, span: Span) -> u64 {
        if let Some(scaled) = span.whole.checked_mul(self.permits.get())
            && let Some(units) = scaled.checked_add(span.part)
        {
            return units / self.micros;
        }
        u64::try_from(self.units(span) / u128::from(self.micros.get())).unwrap_or(u64::MAX)
    }

    /// `a + b`, saturating at the end of time.
    #[inline]
    pub const fn add(&self, a: Span, b: Span) -> Span {
        // Both parts are below the denominator, so their sum cannot wrap below 2^64.
        let part = a.part.wrapping_add(b.part);
        let whole = a.whole.saturating_add(b.whole);
        if part >= self.permits.get() {
            Span { whole: whole.saturating_add(1), part: part.wrapping_sub(self.permits.get()) }
        } else {
            Span { whole, part }
        }
    }

    /// `a - b`, or zero when `b` is longer.
    #[inline]
    pub const fn sub(&self, a: Span, b: Span) -> Span {
        if a.part >= b.part {
            match a.whole.checked_sub(b.whole) {
                Some(whole) => Span { whole, part: a.part.wrapping_sub(b.part) },
                None => Span::ZERO,
            }
        } else {
            match a.whole.checked_sub(b.whole) {
                None | Some(0) => Span::ZERO,
                Some(whole) => Span {
                    whole: whole.saturating_sub(1),
                    part: a.part.wrapping_add(self.permits.get().wrapping_sub(b.part)),
                },
            }
        }
    }

    /// The span in units of `1 / denominator` microseconds.
    pub(crate) fn units(&self, span: Span) -> u128 {
        u128::from(span.whole)
            .saturating_mul(u128::from(self.permits.get()))
            .saturating_add(u128::from(span.part))
    }

    /// The span with this many units of `1 / denominator` microseconds.
    pub(crate) fn span_of_units(&self, units: u128) -> Span {
        let den = u128::from(self.permits.get());
        match (u64::try_from(units / den), u64::try_from(units % den)) {
            (Ok(whole), Ok(part)) => Span { whole, part },
            _ => Span::micros(u64::MAX),
        }
    }
}

/// `floor(n × mul[0] × mul[1] / (div[0] × div[1]))`, exact, saturating at `u128::MAX`.
///
/// Flooring twice equals flooring once by the product, so the two divisions lose nothing. It
/// favours clarity over speed, because it only runs when a quota changes under live state.
pub(crate) fn mul_div(n: u128, mul: [u64; 2], div: [NonZeroU64; 2]) -> u128 {
    const LOW: u128 = 0xffff_ffff_ffff_ffff;
    let mut limbs = [n & LOW, n >> 64, 0, 0];
    for factor in mul {
        let mut carry = 0_u128;
        for limb in &mut limbs {
            let product = limb.wrapping_mul(u128::from(factor)).wrapping_add(carry);
            *limb = product & LOW;
            carry = product >> 64;
        }
    }
    for divisor in div {
        let mut rest = 0_u128;
        for limb in limbs.iter_mut().rev() {
            let current = (rest << 64) | *limb;
            *limb = current / u128::from(divisor.get());
            rest = current % u128::from(divisor.get());
        }
    }
    if limbs[2] != 0 || limbs[3] != 0 {
        return u128::MAX;
    }
    (limbs[1] << 64) | limbs[0]
}

fn gcd(a: NonZeroU64, b: NonZeroU64) -> NonZeroU64 {
    let (mut a, mut b) = (a, b.get());
    while let Some(divisor) = NonZeroU64::new(b) {
        b = a.get() % divisor;
        a = divisor;
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(permits: u64, micros: u64) -> PermitRate {
        PermitRate::new(NonZeroU64::new(permits).unwrap(), NonZeroU64::new(micros).unwrap())
    }

    #[test]
    fn seven_permits_of_seven_per_second_take_exactly_a_second() {
        let seven = rate(7, 1_000_000);

        let total = (0..7).fold(Span::ZERO, |sum, _| seven.add(sum, seven.span(1)));

        assert_eq!(total, Span::micros(1_000_000));
        assert_eq!(seven.span(7), total);
    }

    #[test]
    fn subtraction_borrows_and_stops_at_zero() {
        let third = rate(3, 10);
        let (one, two) = (third.span(1), third.span(2));

        assert_eq!(third.sub(two, one), one);
        assert_eq!(third.sub(Span::micros(7), two), Span { whole: 0, part: 1 });
        assert_eq!(third.sub(one, two), Span::ZERO);
        assert_eq!(third.sub(Span { whole: 4, part: 0 }, Span { whole: 4, part: 1 }), Span::ZERO);
    }

    #[test]
    fn permits_round_down_and_spans_round_up() {
        let third = rate(3, 10);

        assert_eq!(third.permits(Span::micros(9)), 2);
        assert_eq!(third.permits(Span::micros(10)), 3);
        assert_eq!(third.span(1).ceil(), 4);
        assert_eq!(third.span(3).ceil(), 10);
    }

    #[test]
    fn the_largest_costs_saturate_instead_of_wrapping() {
        let slow = rate(1, 31_536_000_000_000);

        assert_eq!(slow.span(u64::MAX), Span::micros(u64::MAX));
        assert_eq!(rate(1_000_000_000, 1_000_000).permits(Span::micros(u64::MAX)), u64::MAX);
    }

    #[test]
    fn mul_div_is_exact_beyond_128_bits() {
        let nz = |n| NonZeroU64::new(n).unwrap();

        assert_eq!(mul_div(10, [7, 3], [nz(4), nz(5)]), 10);
        assert_eq!(
            mul_div(u128::MAX, [u64::MAX, u64::MAX], [nz(u64::MAX), nz(u64::MAX)]),
            u128::MAX
        );
        assert_eq!(mul_div(1 << 100, [1 << 60, 3], [nz(1 << 60), nz(2)]), 3 << 99);
        assert_eq!(mul_div(u128::MAX, [2, 1], [nz(1), nz(1)]), u128::MAX, "saturates");
    }
}
