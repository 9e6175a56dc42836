//! Reproducible randomness: the same seed makes the same history on every machine.

/// A small generator (SplitMix64). Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator with this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if `end` is 0. The bias is far below the precision of a test.
    pub fn below(&mut self, end: u64) -> u64 {
        let product = u128::from(self.any()) * u128::from(end);
        u64::try_from(product >> 64).expect("the product of two u64 is below 2^128")
    }

    /// A number from `low` to `high`, both inclusive.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below((high - low).saturating_add(1))
    }

    /// True with a probability of `times` in `out_of`.
    pub fn chance(&mut self, times: u64, out_of: u64) -> bool {
        self.below(out_of) < times
    }

    /// One of these values.
    ///
    /// # Panics
    ///
    /// When there are none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let index = self.below(from.len() as u64) as usize;
        from[index]
    }

    /// A number up to `high`, with small and large ones equally likely: its magnitude is drawn
    /// first.
    pub fn magnitude(&mut self, high: u64) -> u64 {
        let bits = self.below(u64::from(64 - high.leading_zeros()) + 1);
        let top = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
        self.within(0, top.min(high))
    }
}
