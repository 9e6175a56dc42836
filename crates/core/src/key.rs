//! The name of a counter.

use std::fmt;

/// The name of a counter: any bytes, at least one and at most [`Key::MAX_LEN`].
///
/// NUL, braces, separators and invalid UTF-8 are all just bytes. A key built from several parts
/// must be built injectively (length-prefixed), or two subjects share one counter; that is the
/// business of the code that builds it. Two charges with equal keys but different algorithms count
/// apart.
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
    /// The longest key. Enough for a few hashed or length-prefixed parts; a longer value from a
    /// client is to be hashed before it becomes part of a key.
    pub const MAX_LEN: usize = 1024;

    /// A key of these bytes.
    ///
    /// # Errors
    ///
    /// When there are none, or more than [`Key::MAX_LEN`].
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

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "a key needs at least one byte"),
            Self::TooLong { len } => {
                write!(f, "a key of {len} bytes is above {}: hash it first", Key::MAX_LEN)
            }
        }
    }
}

impl std::error::Error for KeyError {}
