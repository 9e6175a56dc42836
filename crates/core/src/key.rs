//! Keys: the names of counters.

use std::fmt;

use crate::errors::messages;

/// The name of a counter: any bytes, at least one and at most [`Key::MAX_LEN`].
///
/// NUL, braces, separators and invalid UTF-8 are plain bytes. If you build a key from several
/// parts, build it injectively (length-prefixed); otherwise two subjects share one counter. Charges
/// with equal keys but different algorithms use different counters.
///
/// ```
/// use tollgate_core::{Key, KeyError};
///
/// assert!(Key::new(b"user\0{42}").is_ok());
/// assert_eq!(Key::new(b""), Err(KeyError::Empty));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key<'a>(&'a [u8]);

impl<'a> Key<'a> {
    /// The longest key: enough for a few hashed or length-prefixed parts. Hash a longer value from
    /// a client before you put it into a key.
    pub const MAX_LEN: usize = 1024;

    /// A key of these bytes.
    ///
    /// # Errors
    ///
    /// When there are no bytes, or more than [`Key::MAX_LEN`].
    pub fn new<B: AsRef<[u8]> + ?Sized>(bytes: &'a B) -> Result<Self, KeyError> {
        let bytes = bytes.as_ref();
        match bytes.len() {
            0 => Err(KeyError::Empty),
            len if len > Self::MAX_LEN => Err(KeyError::TooLong { len }),
            _ => Ok(Self(bytes)),
        }
    }

    /// The bytes of the key.
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// The first byte of a key whose second byte is its [shard](Key::shard).
    pub const PLACED: u8 = 0;

    /// The number of shards.
    pub const SHARDS: u8 = 64;

    /// The shard of the key, below [`Key::SHARDS`]: a store that is spread over several machines
    /// keeps the keys of one shard together.
    ///
    /// It follows from the bytes by a hash that never changes. A key that begins with
    /// [`Key::PLACED`] names its shard in the next byte, so that it can be kept beside another key.
    pub fn shard(&self) -> u8 {
        match self.0 {
            [Self::PLACED, shard, _, ..] => *shard % Self::SHARDS,
            bytes => shard_of(bytes),
        }
    }
}

/// The shard of some bytes: FNV-1a, then two rounds of mixing, since its high bits alone hardly
/// depend on short keys. It needs no secret, because aiming at one shard gains nothing.
pub fn shard_of(bytes: &[u8]) -> u8 {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mixed = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    u8::try_from(mixed >> 58).unwrap_or(0)
}

impl fmt::Debug for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key(\"{}\")", self.0.escape_ascii())
    }
}

/// The reason why bytes cannot be a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// There are no bytes.
    Empty,
    /// There are more than [`Key::MAX_LEN`].
    TooLong {
        /// The number of bytes.
        len: usize,
    },
}

messages! { KeyError:
    Self::Empty => "a key needs at least one byte";
    Self::TooLong { len } => "a key of {len} bytes is above {}: hash it first", Key::MAX_LEN;
}
