//! The first byte of every key this crate builds: what kind of counter it names.
//!
//! Rules name theirs in `core::rule` (`r`, `b`, `c`); these are all others. Two kinds never meet.

use tollgate_core::{Key, KeyError};

/// A key that a caller chose: [`crate::Limiter::check`] and gates.
pub(crate) const CHOSEN: u8 = b'k';
/// That a debt was settled.
pub(crate) const DEBT: u8 = b'd';
/// That a reservation was used.
pub(crate) const RESERVATION: u8 = b'o';
/// The nodes that are alive.
pub(crate) const NODES: u8 = b'n';
/// A descriptor of Envoy's: see `envoy::key`.
pub(crate) const ENVOY: u8 = b'e';
/// A rate that is kept in the store, and its counter.
pub(crate) const RATE: u8 = b'q';

/// A key of `CL.THROTTLE`.
pub(crate) const THROTTLE: u8 = b't';

/// The key of this kind with these bytes.
pub(crate) fn tagged(kind: u8, key: &[u8]) -> Result<Vec<u8>, KeyError> {
    let mut bytes = Vec::with_capacity(key.len().saturating_add(1));
    bytes.push(kind);
    bytes.extend_from_slice(key);
    Key::new(&bytes)?;
    Ok(bytes)
}

/// The key of this kind with this number.
pub(crate) fn numbered(kind: u8, number: u128, buffer: &mut [u8; 17]) -> Option<Key<'_>> {
    let (tag, rest) = buffer.split_first_mut()?;
    *tag = kind;
    rest.copy_from_slice(&number.to_le_bytes());
    Key::new(&*buffer).ok()
}
