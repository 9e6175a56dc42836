//! A fast hash for tables whose keys come from rules.
//!
//! Asks are only looked up, never inserted, so that a client cannot lengthen anything: what it
//! sends is hashed once and compared with at most a handful of keys. The tables are the same on
//! every machine, and so are the instructions that a lookup costs.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table by bytes or text of rules.
pub(super) type Table<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;

/// Folds eight bytes at a time by a multiplication.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mix(u64);

impl Mix {
    fn fold(&mut self, word: u64) {
        // An odd number with its bits well spread: the fraction of the golden ratio.
        let product = u128::from(self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060);
        let [low, high] = [product & u128::from(u64::MAX), product >> 64];
        self.0 = u64::try_from(low ^ high).unwrap_or_default().rotate_left(23);
    }
}

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.fold(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        for (to, from) in last.iter_mut().zip(rest) {
            *to = *from;
        }
        self.fold(u64::from_le_bytes(last));
    }

    fn write_u8(&mut self, byte: u8) {
        self.fold(u64::from(byte));
    }

    fn write_usize(&mut self, number: usize) {
        self.fold(u64::try_from(number).unwrap_or(u64::MAX));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
