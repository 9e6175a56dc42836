//! A fast hash for tables whose keys come from rules.
//!
//! Asks are only looked up, never inserted, so a client cannot make a table slower: its value is
//! hashed once and compared with at most a handful of keys. The tables are the same on every
//! machine, and so is the cost of a lookup.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table whose keys are bytes or text from rules.
pub(super) type Table<K, V> = HashMap<K, V, BuildHasherDefault<MultiplyHasher>>;

/// Folds eight bytes at a time by a multiplication.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MultiplyHasher(u64);

impl MultiplyHasher {
    #[inline]
    fn fold(&mut self, word: u64) {
        // The fraction of the golden ratio: an odd number with its bits well spread.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let mixed = (self.0 ^ word ^ SPREAD.rotate_left(32)).wrapping_mul(SPREAD);
        self.0 = mixed ^ (mixed >> 29);
    }
}

impl Hasher for MultiplyHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.fold(u64::from_le_bytes(*word));
        }
        // What is left over, in at most three steps; the length tells apart what zeros hide.
        let (fours, rest) = rest.as_chunks::<4>();
        let four = fours.first().map_or(0, |four| u64::from(u32::from_le_bytes(*four)));
        let rest = rest.iter().fold(four, |word, byte| word << 8 ^ u64::from(*byte));
        self.fold(rest);
    }

    fn write_u8(&mut self, byte: u8) {
        self.fold(u64::from(byte));
    }

    fn write_usize(&mut self, number: usize) {
        self.fold(u64::try_from(number).unwrap_or(u64::MAX));
    }

    #[inline]
    fn finish(&self) -> u64 {
        // Tables use both ends of the word.
        self.0 ^ self.0.rotate_left(32)
    }
}
