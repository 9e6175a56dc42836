//! Owners of locks, and the ids of their holds.

use std::fmt;
use std::sync::Arc;

use crate::errors::messages;

/// The owner of a lock. Clones are the same owner: a lock is re-entrant for all of them, on any
/// task or thread.
///
/// Its text is a UUID, a colon and a number, the form of Redisson's owners, so Redisson accepts it
/// as one of its own. `tollgate` draws it; core has no randomness.
///
/// ```
/// use tollgate_core::lock::Owner;
///
/// let owner = Owner::new(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef, 7);
/// assert_eq!(owner.as_str(), "01234567-89ab-4def-8123-456789abcdef:7");
/// assert_eq!(Owner::parse(owner.as_str())?, owner);
/// # Ok::<(), tollgate_core::lock::OwnerError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(Arc<str>);

impl Owner {
    /// The longest owner. Redisson's have 37 bytes and the number of a thread.
    pub const MAX_LEN: usize = 128;

    /// The owner of this number in the process that drew these random bits. Six of the bits become
    /// the version and variant of a UUID.
    pub fn new(process: u128, number: u64) -> Self {
        let version = (process & !(0xf << 76) & !(0b11 << 62)) | (4 << 76) | (0b10 << 62);
        let hex = format!("{version:032x}");
        let text = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
        Self(format!("{text}:{number}").into())
    }

    /// Parses the text of an owner: visible ASCII with a colon in it.
    ///
    /// # Errors
    ///
    /// When it is empty, longer than [`Owner::MAX_LEN`], has no colon, or contains anything but
    /// visible ASCII.
    pub fn parse(text: &str) -> Result<Self, OwnerError> {
        let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        if text.is_empty() || text.len() > Self::MAX_LEN || !visible || !text.contains(':') {
            return Err(OwnerError { len: text.len() });
        }
        Ok(Self(text.into()))
    }

    /// The text in the store.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({})", self.0)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The reason why a text cannot be an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerError {
    len: usize,
}

messages! { OwnerError:
    Self { len } =>
        "an owner is 1 to 128 bytes of visible ASCII with a colon, not these {len} bytes";
}

/// One grant of a lock: the id of the acquisition, which also names it in its release.
///
/// It is random and unique. A lock that one owner holds twice has two ids. So an acquisition that
/// is sent again counts once, and a release that is sent again releases nothing else.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldId(u128);

impl HoldId {
    /// The id with these random bits.
    pub const fn new(bits: u128) -> Self {
        Self(bits)
    }

    /// Parses an id of 32 hexadecimal digits in lower case, as [`HoldId`] displays.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let bits = (plain && text.len() == 32).then(|| u128::from_str_radix(text, 16).ok())?;
        bits.map(Self)
    }
}

impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HoldId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_owner_is_refused() {
        for text in ["", "no-colon", "a:b c", "a:\n", "ü:1"] {
            assert_eq!(Owner::parse(text), Err(OwnerError { len: text.len() }), "{text:?}");
        }
        let longest = format!(":{}", "x".repeat(Owner::MAX_LEN - 1));
        assert!(Owner::parse(&longest).is_ok());
        assert!(Owner::parse(&format!("{longest}x")).is_err());
    }

    #[test]
    fn an_id_is_thirty_two_digits_and_nothing_else() {
        let id = HoldId::new(0xab);
        assert_eq!(HoldId::parse(&id.to_string()), Some(id));
        for text in ["", "ab", &"AB".repeat(16), &"+1".repeat(16), &"0".repeat(33)] {
            assert_eq!(HoldId::parse(text), None, "{text}");
        }
    }
}
