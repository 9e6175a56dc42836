//! Exact fractions, for oracles that must not round.

use std::cmp::Ordering;
use std::ops::{Add, Mul, Neg, Sub};

/// A fraction in lowest terms. Panics if 128 bits cannot hold it: an oracle outside of its range
/// must fail rather than judge wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio {
    num: i128,
    den: i128,
}

const RANGE: &str = "the oracle's fractions stay within 128 bits";

impl Ratio {
    /// Zero.
    pub const ZERO: Self = Self { num: 0, den: 1 };

    /// `num / den`.
    ///
    /// # Panics
    ///
    /// When `den` is zero.
    pub fn new(num: i128, den: i128) -> Self {
        assert!(den != 0, "a fraction over zero");
        let divisor = gcd(num.unsigned_abs(), den.unsigned_abs()).max(1);
        let divisor = i128::try_from(divisor).expect(RANGE) * den.signum();
        Self { num: num / divisor, den: den / divisor }
    }

    /// A whole number.
    pub fn int(whole: impl Into<i128>) -> Self {
        Self { num: whole.into(), den: 1 }
    }

    /// The numerator and denominator.
    ///
    /// # Panics
    ///
    /// When the fraction is negative, or one of them needs more than 64 bits.
    pub fn terms(self) -> (u64, u64) {
        (u64::try_from(self.num).expect(RANGE), u64::try_from(self.den).expect(RANGE))
    }

    /// The largest whole number not above it.
    pub fn floor(self) -> i128 {
        self.num.div_euclid(self.den)
    }

    /// The smallest whole number not below it.
    pub fn ceil(self) -> i128 {
        -(-self.num).div_euclid(self.den)
    }

    /// `1 / self`.
    pub fn inverse(self) -> Self {
        Self::new(self.den, self.num)
    }

    /// Rounded down to a multiple of `1 / steps`.
    pub fn floor_to(self, steps: u64) -> Self {
        Self::new((self * Self::int(steps)).floor(), steps.into())
    }

    /// The product `self × by`, rounded down to a multiple of `1 / steps`. The product itself may
    /// need more than 128 bits; `None` if the result does, too. Neither factor may be negative.
    pub fn scaled(self, by: Self, steps: u64) -> Option<Self> {
        let times = by.num.checked_mul(steps.into())?;
        let over = self.den.checked_mul(by.den)?;
        // Long multiplication, bit by bit from the top, with the remainder carried along.
        let (whole, rest) = (self.num / over, self.num % over);
        let (mut quotient, mut remainder) = (0_i128, 0_i128);
        for bit in (0..127).rev() {
            quotient = quotient.checked_mul(2)?;
            remainder *= 2;
            if times >> bit & 1 == 1 {
                quotient = quotient.checked_add(whole)?;
                remainder += rest;
            }
            quotient = quotient.checked_add(remainder / over)?;
            remainder %= over;
        }
        Some(Self::new(quotient, steps.into()))
    }

    /// Both numerators over one denominator, and that denominator.
    fn common(self, other: Self) -> (i128, i128, i128) {
        if self.den == other.den {
            return (self.num, other.num, self.den);
        }
        let divisor = gcd(self.den.unsigned_abs(), other.den.unsigned_abs());
        let divisor = i128::try_from(divisor).expect(RANGE);
        let (mine, theirs) = (other.den / divisor, self.den / divisor);
        let a = self.num.checked_mul(mine).expect(RANGE);
        let b = other.num.checked_mul(theirs).expect(RANGE);
        (a, b, self.den.checked_mul(mine).expect(RANGE))
    }
}

impl Add for Ratio {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let (a, b, den) = self.common(other);
        Self::new(a.checked_add(b).expect(RANGE), den)
    }
}

impl Neg for Ratio {
    type Output = Self;

    fn neg(self) -> Self {
        Self { num: -self.num, den: self.den }
    }
}

impl Sub for Ratio {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl Mul for Ratio {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        // Reduced crosswise first, so that intermediate products stay small.
        let (a, b) = (Self::new(self.num, other.den), Self::new(other.num, self.den));
        let num = a.num.checked_mul(b.num).expect(RANGE);
        Self { num, den: a.den.checked_mul(b.den).expect(RANGE) }
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ratio {
    fn cmp(&self, other: &Self) -> Ordering {
        let (a, b, _) = self.common(*other);
        a.cmp(&b)
    }
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_add_compare_and_round_exactly() {
        let (third, sixth) = (Ratio::new(1, 3), Ratio::new(-2, -12));

        assert_eq!(third + sixth, Ratio::new(1, 2));
        assert_eq!(third - third, Ratio::ZERO);
        assert_eq!(third * sixth, Ratio::new(1, 18));
        assert!(sixth < third && -third < -sixth);
        assert_eq!((Ratio::new(-7, 2).floor(), Ratio::new(-7, 2).ceil()), (-4, -3));
        assert_eq!(Ratio::new(22, 7).floor_to(10), Ratio::new(31, 10));
        assert_eq!(Ratio::new(2, 3).inverse(), Ratio::new(3, 2));
    }

    #[test]
    fn scaling_is_exact_beyond_128_bits() {
        let large = Ratio::new(1 << 100, 3);

        assert_eq!(Ratio::new(22, 7).scaled(Ratio::new(1, 2), 10), Some(Ratio::new(15, 10)));
        assert_eq!(large.scaled(Ratio::new(3 << 40, 1 << 40), 1), Some(Ratio::int(1_i128 << 100)));
        assert_eq!(large.scaled(Ratio::new(1 << 60, 3), 1), None);
    }
}
