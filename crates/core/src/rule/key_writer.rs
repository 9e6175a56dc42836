//! Keys of counters without a rule, made of the same tokens (`key.rs`).
//!
//! All code that builds keys from values of clients has the same two duties: two different lists of
//! values must not make the same key, and no value may make a key too long. So all of it uses this
//! one codec.

use std::ops::Range;

use super::key::{Buffer, KeySecret, TokenWriter, verbatim};
use crate::{Key, KeyError};

/// Writes keys one after the other into one buffer.
///
/// ```
/// use tollgate_core::rule::{KeySecret, KeyWriter};
///
/// let secret = KeySecret::new([7; 16]);
/// let mut keys = KeyWriter::new(&secret);
/// let mut key = |values: &[&str]| {
///     keys.begin(b"x", values.len());
///     values.iter().for_each(|value| keys.text(value.as_bytes()));
///     keys.end()
/// };
/// let (one, other) = (key(&["ab", "c"]), key(&["a", "bc"]));
///
/// assert_eq!(keys.key(one)?.as_bytes(), b"xt2:abt1:c");
/// assert_eq!(keys.key(other)?.as_bytes(), b"xt1:at2:bc");
/// # Ok::<(), tollgate_core::KeyError>(())
/// ```
#[derive(Debug)]
pub struct KeyWriter<'k> {
    bytes: Buffer,
    start: usize,
    verbatim: usize,
    secret: &'k KeySecret,
}

impl<'k> KeyWriter<'k> {
    /// The most values of a key. With more, hashes alone would make it too long.
    pub const MAX_VALUES: usize = 33;

    /// A writer without keys.
    pub fn new(secret: &'k KeySecret) -> Self {
        Self { bytes: Buffer::new(), start: 0, verbatim: 0, secret }
    }

    /// Begins a key with these bytes, for at most [`KeyWriter::MAX_VALUES`] values. The first byte
    /// distinguishes its kind from all others; the head must contain its own length.
    pub fn begin(&mut self, head: &[u8], values: usize) {
        self.start = self.bytes.len();
        self.verbatim = verbatim(values);
        self.bytes.extend_from_slice(head);
    }

    /// Adds a value, hashed if it is long.
    pub fn text(&mut self, value: &[u8]) {
        let tokens = self.tokens();
        tokens.text(&mut self.bytes, value);
    }

    /// Adds a pattern in place of all values that match it. No value can imitate it.
    pub fn pattern(&mut self, pattern: &str) {
        let tokens = self.tokens();
        tokens.template(&mut self.bytes, pattern);
    }

    /// Ends the key, and returns its range.
    pub fn end(&mut self) -> Range<usize> {
        self.start..self.bytes.len()
    }

    /// The key in this range.
    ///
    /// # Errors
    ///
    /// When it has no bytes, or too many values.
    pub fn key(&self, place: Range<usize>) -> Result<Key<'_>, KeyError> {
        Key::new(self.bytes.get(place).unwrap_or_default())
    }

    const fn tokens(&self) -> TokenWriter<'k> {
        TokenWriter { verbatim: self.verbatim, ipv6_prefix: 128, secret: self.secret }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_and_longest_values_make_a_key() {
        let secret = KeySecret::new([1; 16]);
        let mut keys = KeyWriter::new(&secret);
        for len in [0, 1, 20, 21, 100, 300, 100_000] {
            keys.begin(b"xy", KeyWriter::MAX_VALUES);
            for _ in 0..KeyWriter::MAX_VALUES {
                keys.text(&vec![b'v'; len]);
            }
            let place = keys.end();

            assert!(keys.key(place).is_ok(), "values of {len} bytes");
        }
    }
}
