//! Fingerprints of keys: 128 bits of SipHash-1-3 under a secret of this process.
//!
//! The table stores a fingerprint in place of a key, so it stores no key and allocates for none. A
//! pair of keys collides with probability 2⁻¹²⁸. Without the secret it is not possible to search
//! for such a pair, or to aim at one slot of the table.

#[cfg(not(loom))]
use std::hash::{BuildHasher, Hasher, RandomState};

use tollgate_core::Charge;

/// The fingerprint of a key in the table. Never zero, so that zero can mean an empty slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    pub(crate) high: u64,
    pub(crate) low: u64,
}

impl Fingerprint {
    pub(crate) const NONE: Self = Self { high: 0, low: 0 };
}

/// The secrets of this process, one for each algorithm, because one key under different algorithms
/// has different counters.
#[derive(Clone, Copy)]
pub(crate) struct Secret {
    keys: [(u64, u64); ALGORITHMS],
}

/// More than the number of algorithms. Codes beyond it would share a secret; a test forbids that.
const ALGORITHMS: usize = 16;

impl Secret {
    /// Draws secrets from the randomness that the standard library takes from the operating system.
    pub(crate) fn random() -> Self {
        // Loom explores one run again and again, so every run must go the same way.
        #[cfg(loom)]
        let draw = || 0x9e37_79b9_7f4a_7c15;
        #[cfg(not(loom))]
        let draw = || RandomState::new().build_hasher().finish();
        Self { keys: std::array::from_fn(|_| (draw(), draw())) }
    }

    /// The fingerprint of a charge's counter.
    #[inline]
    pub(crate) fn fingerprint(&self, charge: &Charge<'_>) -> Fingerprint {
        let code = usize::from(charge.limit().code()) % ALGORITHMS;
        let (k0, k1) = self.keys[code];
        let found = SipHasher13::new(k0, k1).finish(charge.key().as_bytes());
        if found == Fingerprint::NONE { Fingerprint { high: 1, low: 0 } } else { found }
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// SipHash with one compression and three finalisation rounds, 128 bits out.
struct SipHasher13 {
    v: [u64; 4],
}

impl SipHasher13 {
    #[inline]
    const fn new(k0: u64, k1: u64) -> Self {
        Self {
            v: [
                k0 ^ 0x736f_6d65_7073_6575,
                k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
                k0 ^ 0x6c79_6765_6e65_7261,
                k1 ^ 0x7465_6462_7974_6573,
            ],
        }
    }

    #[inline]
    const fn round(&mut self) {
        let [mut v0, mut v1, mut v2, mut v3] = self.v;
        v0 = v0.wrapping_add(v1);
        v2 = v2.wrapping_add(v3);
        v1 = v1.rotate_left(13) ^ v0;
        v3 = v3.rotate_left(16) ^ v2;
        v0 = v0.rotate_left(32);
        v2 = v2.wrapping_add(v1);
        v0 = v0.wrapping_add(v3);
        v1 = v1.rotate_left(17) ^ v2;
        v3 = v3.rotate_left(21) ^ v0;
        v2 = v2.rotate_left(32);
        self.v = [v0, v1, v2, v3];
    }

    #[inline]
    const fn block(&mut self, word: u64) {
        self.v[3] ^= word;
        self.round();
        self.v[0] ^= word;
    }

    /// Hashes the message.
    #[inline]
    fn finish(mut self, bytes: &[u8]) -> Fingerprint {
        let (blocks, tail) = bytes.as_chunks::<8>();
        for block in blocks {
            self.block(u64::from_le_bytes(*block));
        }
        let length = u64::try_from(bytes.len()).unwrap_or(0);
        self.block(load_tail(tail) | length.wrapping_shl(56));
        self.v[2] ^= 0xee;
        let low = self.digest();
        self.v[1] ^= 0xdd;
        let high = self.digest();
        Fingerprint { high, low }
    }

    #[inline]
    const fn digest(&mut self) -> u64 {
        self.round();
        self.round();
        self.round();
        self.v[0] ^ self.v[1] ^ self.v[2] ^ self.v[3]
    }
}

/// Up to seven bytes, little-endian, without a loop.
#[inline]
fn load_tail(tail: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (tail.first_chunk::<4>(), tail.last_chunk::<4>()) {
        // The two overlap where there are fewer than eight bytes, with the same bits.
        let shift = u32::try_from(tail.len().wrapping_sub(4).wrapping_mul(8)).unwrap_or(0);
        return u64::from(u32::from_le_bytes(*first))
            | u64::from(u32::from_le_bytes(*last)).wrapping_shl(shift);
    }
    match *tail {
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_le_bytes([a, b])),
        [a, b, c] => u64::from(u32::from_le_bytes([a, b, c, 0])),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher;

    use siphasher::sip128::{Hasher128, SipHasher13};
    use tollgate_core::algorithm::TokenBucket;
    use tollgate_core::testing::{Rng, history::AlgorithmKind};
    use tollgate_core::{Key, Limit, Op};

    use super::*;

    #[test]
    fn agrees_with_a_published_implementation_at_every_length() {
        let limit = Limit::new(TokenBucket, "1 per 1s".parse().unwrap()).unwrap();
        let secret = Secret::random();
        let (k0, k1) = secret.keys[usize::from(limit.algorithm().code())];
        let bytes: Vec<u8> = (0..=255).cycle().take(1024).collect();

        for len in 1..=bytes.len() {
            let key = Key::new(&bytes[..len]).unwrap();
            let ours = secret.fingerprint(&Charge::take(key, &limit, 1).unwrap());

            let mut theirs = SipHasher13::new_with_keys(k0, k1);
            theirs.write(key.as_bytes());
            let theirs = theirs.finish128();
            assert_eq!((ours.low, ours.high), (theirs.h1, theirs.h2), "length {len}");
        }
    }

    #[test]
    fn one_key_has_another_fingerprint_under_every_algorithm() {
        let mut rng = Rng::new(1);
        let secret = Secret::random();
        let key = Key::new("k").unwrap();
        let mut prints: Vec<(u8, u64)> = AlgorithmKind::ALL
            .iter()
            .map(|kind| {
                let limit = kind.limit(&mut rng);
                assert!(usize::from(limit.code()) < ALGORITHMS, "{limit} has no secret of its own");
                let print = secret.fingerprint(&Charge::new(key, &limit, Op::Peek(1)).unwrap());
                (limit.code(), print.high)
            })
            .collect();
        prints.sort_unstable();
        prints.dedup();

        let mut halves: Vec<u64> = prints.iter().map(|(_, high)| *high).collect();
        halves.sort_unstable();
        halves.dedup();
        assert_eq!(halves.len(), prints.len());
    }

    #[test]
    fn two_stores_do_not_share_a_secret() {
        let (a, b) = (Secret::random(), Secret::random());

        assert_ne!(a.keys, b.keys);
        assert_eq!(format!("{a:?}"), "Secret(..)", "a secret must not reach a log");
    }
}
