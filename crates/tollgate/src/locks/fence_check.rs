//! Fence checks (fencing tokens), for the resource that a lock protects.
//!
//! A holder that is stopped for longer than its lease does not know that it lost the lock, and no
//! lock can report that in time. The resource can detect it: it remembers the largest fence it has
//! seen, and refuses smaller ones. In Redis, `RedisStore::set_fenced` does that. This module has a
//! predicate for SQL and a check for an HTTP service.

use std::collections::HashMap;
use std::sync::Mutex;

use tollgate_core::lock::Fence;
use tollgate_core::lock_mutex;

/// The header that carries a fence over HTTP.
pub const HEADER: &str = "tollgate-fence";

/// The longest name of a column. No database allows a longer one.
const MAX_COLUMN: usize = 63;

/// Parts of an SQL statement that refuse a stale fence: a column holds the newest one.
///
/// ```
/// use tollgate::locks::fence_check::SqlFence;
///
/// let fence = SqlFence::new("fence")?;
/// let update = format!(
///     "UPDATE stock SET amount = ?2, {} WHERE id = ?3 AND {}",
///     fence.assignment("?1"),
///     fence.predicate("?1"),
/// );
/// assert_eq!(
///     update,
///     "UPDATE stock SET amount = ?2, fence = ?1 WHERE id = ?3 AND (fence IS NULL OR fence <= ?1)",
/// );
/// // Bind `guard.fence().get()` as the first parameter. If no row changed, a newer fence was here.
/// # Ok::<(), tollgate::locks::fence_check::ColumnError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlFence {
    column: String,
}

impl SqlFence {
    /// Keeps the fence in this column, whose type must hold 64 bits.
    ///
    /// # Errors
    ///
    /// When the name is not plain: a letter or an underscore, then letters, digits or underscores,
    /// 63 at most. The name is not quoted, so nothing else is accepted.
    pub fn new(column: &str) -> Result<Self, ColumnError> {
        let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
        let plain = column.bytes().all(|byte| letter(byte) || byte.is_ascii_digit());
        let first = column.bytes().next().is_some_and(letter);
        if !plain || !first || column.len() > MAX_COLUMN {
            return Err(ColumnError);
        }
        Ok(Self { column: column.to_owned() })
    }

    /// The condition `(fence IS NULL OR fence <= ?1)`: true unless the column holds a newer fence.
    pub fn predicate(&self, placeholder: &str) -> String {
        let Self { column } = self;
        format!("({column} IS NULL OR {column} <= {placeholder})")
    }

    /// The assignment `fence = ?1`, which remembers this fence.
    pub fn assignment(&self, placeholder: &str) -> String {
        format!("{} = {placeholder}", self.column)
    }
}

/// The error for a text that is not a plain column name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnError;

error_messages! {
    ColumnError {
        Self => "the name of a fence column has only letters, digits and underscores, 63 at most";
    }
}

/// Remembers the newest fence of each resource of a service, and refuses older ones.
///
/// ```
/// use tollgate::locks::fence_check::{FenceGate, FenceError, HEADER};
///
/// let gate = FenceGate::new(10_000);
/// // With a request's headers: `headers.get(HEADER).map(|value| value.as_bytes())`.
/// assert_eq!(HEADER, "tollgate-fence");
/// assert!(gate.check("stock:7", Some(b"42")).is_ok());
/// assert!(gate.check("stock:7", Some(b"43")).is_ok());
/// assert_eq!(gate.check("stock:7", Some(b"42")), Err(FenceError::Stale { newest: 43 }));
/// assert_eq!(gate.check("stock:7", None), Err(FenceError::Missing));
/// ```
///
/// It remembers fences within this process. A service of several processes keeps the fence with the
/// resource.
#[derive(Debug)]
pub struct FenceGate {
    newest: Mutex<HashMap<Box<str>, u64>>,
    most: usize,
}

/// The reason why a request may not touch the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FenceError {
    /// The request has no fence: answer 428.
    Missing,
    /// The header is not a fence: answer 400.
    Malformed,
    /// A newer fence was seen before: answer 412.
    Stale {
        /// The newest fence.
        newest: u64,
    },
    /// The gate is full. Forgetting a resource would let a stale holder in, so it answers 503.
    Full,
}

impl FenceError {
    /// The HTTP status of the answer.
    pub const fn status(&self) -> u16 {
        match self {
            Self::Missing => 428,
            Self::Malformed => 400,
            Self::Stale { .. } => 412,
            Self::Full => 503,
        }
    }
}

error_messages! {
    FenceError {
        Self::Missing => "the request has no header {HEADER}";
        Self::Malformed => "the header {HEADER} holds no fence";
        Self::Stale { newest } =>
            "the fence is stale: the resource has seen fence {newest}";
        Self::Full => "no more resources can be remembered";
    }
}

impl FenceGate {
    /// Creates a gate that remembers this many resources, about a hundred bytes each.
    pub fn new(resources: usize) -> Self {
        Self { newest: Mutex::default(), most: resources }
    }

    /// Accepts a request with the newest fence of a resource, and remembers that fence.
    ///
    /// # Errors
    ///
    /// When the fence is older, missing or malformed, and when the gate is full.
    pub fn check(&self, resource: &str, header: Option<&[u8]>) -> Result<Fence, FenceError> {
        let header = header.ok_or(FenceError::Missing)?;
        let digits = !header.is_empty() && header.iter().all(u8::is_ascii_digit);
        let text =
            std::str::from_utf8(header).ok().filter(|_| digits).ok_or(FenceError::Malformed)?;
        let fence = text.parse().ok().and_then(Fence::new).ok_or(FenceError::Malformed)?;
        let mut newest = lock_mutex(&self.newest);
        let full = newest.len() >= self.most;
        match newest.get_mut(resource) {
            Some(known) if *known > fence.get() => {
                return Err(FenceError::Stale { newest: *known });
            }
            Some(known) => *known = fence.get(),
            None if full => return Err(FenceError::Full),
            None => drop(newest.insert(resource.into(), fence.get())),
        }
        Ok(fence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_that_is_more_than_a_name_is_refused() {
        for column in ["", "1a", "a b", "a;--", "\"a\"", "ä", &"a".repeat(64)] {
            assert_eq!(SqlFence::new(column), Err(ColumnError), "{column}");
        }
        assert!(SqlFence::new(&"_".repeat(63)).is_ok());
    }

    #[test]
    fn a_gate_forgets_nobody_and_refuses_what_it_cannot_read() {
        let gate = FenceGate::new(2);
        for value in [&b""[..], b"+1", b"1 ", b"-1", b"\xff", b"9007199254740992"] {
            assert_eq!(gate.check("a", Some(value)), Err(FenceError::Malformed), "{value:?}");
        }

        assert!(gate.check("a", Some(b"7")).is_ok());
        assert!(gate.check("b", Some(b"7")).is_ok());

        assert_eq!(gate.check("c", Some(b"7")), Err(FenceError::Full));
        assert!(gate.check("a", Some(b"7")).is_ok(), "the same holder may come again");
        assert_eq!(gate.check("a", Some(b"6")), Err(FenceError::Stale { newest: 7 }));
    }
}
