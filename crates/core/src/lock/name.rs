//! Names of locks.

use std::fmt;
use std::sync::Arc;

use crate::errors::messages;

/// The name of a lock: any text of 1 to [`LockName::MAX_LEN`] bytes. Clones share it.
///
/// Braces, spaces, colons and line ends are plain characters. In Redis the name is the key, as with
/// Redisson, so both mean the same lock by it. In a cluster, a part in braces chooses the slot.
///
/// ```
/// use tollgate_core::lock::{LockName, LockNameError};
///
/// assert_eq!(LockName::new("order {42}")?.as_str(), "order {42}");
/// assert_eq!(LockName::new(""), Err(LockNameError::Empty));
/// # Ok::<(), LockNameError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The longest name. Every waiting process keeps it, and so does the server: as a key, as a
    /// channel and beside the fence. Hash a longer name first.
    pub const MAX_LEN: usize = 1024;

    /// A name of this text.
    ///
    /// # Errors
    ///
    /// When the text is empty, or longer than [`LockName::MAX_LEN`] bytes.
    pub fn new(name: &str) -> Result<Self, LockNameError> {
        match name.len() {
            0 => Err(LockNameError::Empty),
            len if len > Self::MAX_LEN => Err(LockNameError::TooLong { len }),
            _ => Ok(Self(name.into())),
        }
    }

    /// The text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockName({:?})", &*self.0)
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The reason why a text cannot be the name of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockNameError {
    /// The text is empty.
    Empty,
    /// The text is longer than [`LockName::MAX_LEN`].
    TooLong {
        /// The number of bytes.
        len: usize,
    },
}

messages! { LockNameError:
    Self::Empty => "a lock needs a name of at least one byte";
    Self::TooLong { len } =>
        "a lock's name of {len} bytes is above {}: hash it first", LockName::MAX_LEN;
}

#[cfg(test)]
mod tests {
    use super::*;

    // C40
    #[test]
    fn any_text_up_to_the_longest_is_a_name() {
        for name in ["a", "order {42}", "{", "}{", "{}", "a\nb\0c", " ", "щёл"] {
            assert_eq!(LockName::new(name).unwrap().as_str(), name);
        }
        assert!(LockName::new(&"x".repeat(LockName::MAX_LEN)).is_ok());
        for len in [LockName::MAX_LEN + 1, 1 << 20] {
            assert_eq!(LockName::new(&"x".repeat(len)), Err(LockNameError::TooLong { len }));
        }
    }
}
