//! The first byte of every key that this crate builds, which names the kind of the counter.
//!
//! The bytes of rules are in `core::rule` (`r`, `b`, `c`). Keys of two kinds are never equal.

use smallvec::SmallVec;
use tollgate_core::{Key, KeyError};

/// A key that a caller chose: [`crate::Limiter::check`] and gates.
pub(crate) const CHOSEN: u8 = b'k';
/// The once-marker of a debt that was settled.
pub(crate) const DEBT: u8 = b'd';
/// The once-marker of a reservation that was used.
pub(crate) const RESERVATION: u8 = b'o';
/// The nodes that are alive.
pub(crate) const NODES: u8 = b'n';
/// A descriptor of Envoy's: see `envoy::key`.
pub(crate) const ENVOY: u8 = b'e';
/// A rate that is kept in the store, and its counter.
pub(crate) const RATE: u8 = b'q';

/// A key of `CL.THROTTLE`.
pub(crate) const THROTTLE: u8 = b't';

/// The bytes of a key. Most keys are short, and need no allocation.
pub(crate) type TaggedKey = SmallVec<[u8; 64]>;

/// Writes the key of this kind with these bytes.
pub(crate) fn tagged<'b>(
    kind: u8,
    key: &[u8],
    bytes: &'b mut TaggedKey,
) -> Result<Key<'b>, KeyError> {
    bytes.push(kind);
    bytes.extend_from_slice(key);
    Key::new(bytes.as_slice())
}

/// The key of a once-marker: a counter of one, which records that something happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OnceKey([u8; 19]);

impl OnceKey {
    /// Writes the marker of this kind and number, in the shard of the counter that it guards.
    pub(crate) fn write(&mut self, kind: u8, number: u128, guarded: &[u8]) -> Option<Key<'_>> {
        let shard = Key::new(guarded).ok()?.shard();
        let (head, rest) = self.0.split_at_mut(3);
        head.copy_from_slice(&[Key::PLACED, shard, kind]);
        rest.copy_from_slice(&number.to_le_bytes());
        Key::new(&self.0).ok()
    }
}
