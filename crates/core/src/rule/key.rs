//! The keys of a rule's counters.
//!
//! A key is a *head*, made once per limit, and a *token* for each value of `by`:
//!
//! ```text
//! r4:shop12:login-per-ip2:1m 4·203·0·113·7 t5:alice
//! │ └─────┴────────────┴── domain, rule, limit: length in decimals, colon, bytes
//! └── r a limit, b a ban, c the refusals that lead to one; of rules in the code f, g, h
//! ```
//!
//! | Token | Value |
//! |---|---|
//! | `t` length `:` bytes | bytes as they are |
//! | `p` length `:` bytes | the template of the rule's path |
//! | `4` 4 bytes, `6` 16 bytes | an address; IPv6 with only the domain's prefix |
//! | `T`, `P` 16 bytes | a long value or template, hashed |
//! | `-` | none, under `on-missing: share` |
//!
//! Every token contains its length, so the tokens of a key can be read back one by one, and two
//! lists of values never make the same key: no value can imitate another value or a separator. A
//! hash is SipHash-2-4 of 128 bits under a secret of the fleet; otherwise clients could search for
//! collisions. The threshold of the limit is not part of its key. `docs/keys.md` shows these bytes
//! to operators: change them together, and never without a new first letter.

use std::fmt;
use std::hash::Hasher;
use std::net::IpAddr;

use siphasher::sip128::{Hasher128, SipHasher24};
use smallvec::SmallVec;

use super::bounds::{MAX_LIMIT_NAME, MAX_NAME};
use super::network::masked;
use crate::Key;

/// The secret under which long values are hashed. It is the same on every node of a fleet, and
/// private. Changing it loses the counters of long values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeySecret([u8; 16]);

impl KeySecret {
    /// A secret with these bytes.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

/// Does not print the secret.
impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(..)")
    }
}

/// The longest value that enters any key unhashed.
const MAX_VERBATIM: usize = 256;

/// The longest head: a letter, two names of [`MAX_NAME`] and one of [`MAX_LIMIT_NAME`], each after
/// two digits and a colon.
const MAX_HEAD: usize = 1 + 2 * (3 + MAX_NAME) + 3 + MAX_LIMIT_NAME;

/// The longest value that enters a key with this many values unhashed, so that no key is longer
/// than [`Key::MAX_LEN`]: 256 bytes for up to three values, 101 for eight.
pub(super) fn verbatim(values: usize) -> usize {
    // A letter, three digits and a colon stand before a value.
    let room = Key::MAX_LEN.saturating_sub(MAX_HEAD).checked_div(values.max(1)).unwrap_or(0);
    room.saturating_sub(5).min(MAX_VERBATIM)
}

/// A buffer that keys are written into.
pub(super) type Buffer = SmallVec<[u8; 512]>;

/// The bytes of a key that all its counters share.
pub(super) fn head(letter: u8, domain: &str, rule: &str, limit: &str) -> Box<[u8]> {
    let mut head = Buffer::new();
    head.push(letter);
    for name in [domain, rule, limit] {
        push_sized(&mut head, name.as_bytes());
    }
    head.into_boxed_slice()
}

/// The name of a function's domain: its path, or a hash of a path that is too long for a name. No
/// path contains a `#`. The hash has no secret, because authors of functions do not search for
/// collisions.
pub(super) fn path_name(path: &str) -> String {
    if path.len() <= MAX_NAME {
        return path.to_owned();
    }
    let mut hasher = SipHasher24::new();
    hasher.write(path.as_bytes());
    format!("#{:032x}", hasher.finish128().as_u128())
}

/// Writes tokens, with the longest unhashed value and the secret for longer ones.
#[derive(Clone, Copy)]
pub(super) struct TokenWriter<'k> {
    pub(super) verbatim: usize,
    pub(super) ipv6_prefix: u8,
    pub(super) secret: &'k KeySecret,
}

impl TokenWriter<'_> {
    /// The token of a value.
    pub(super) fn text(&self, buffer: &mut Buffer, value: &[u8]) {
        self.sized(buffer, b't', value);
    }

    /// The token of a path template.
    pub(super) fn template(&self, buffer: &mut Buffer, text: &str) {
        self.sized(buffer, b'p', text.as_bytes());
    }

    /// The token of several segments of a path, each behind a slash.
    pub(super) fn segments<'s>(
        &self,
        buffer: &mut Buffer,
        segments: impl Iterator<Item = &'s [u8]>,
    ) {
        let mut joined: SmallVec<[u8; 256]> = SmallVec::new();
        for segment in segments {
            joined.push(b'/');
            // A decoded segment may hold no slash, so that the joint text can be taken apart.
            joined.extend_from_slice(segment);
        }
        self.text(buffer, &joined);
    }

    /// The token of an address.
    #[inline(always)]
    pub(super) fn address(&self, buffer: &mut Buffer, address: IpAddr) {
        match address {
            IpAddr::V4(v4) => {
                let [a, b, c, d] = v4.octets();
                buffer.extend_from_slice(&[b'4', a, b, c, d]);
            }
            IpAddr::V6(_) => self.network(buffer, address),
        }
    }

    /// The token of an IPv6 address, with only the domain's prefix.
    fn network(&self, buffer: &mut Buffer, address: IpAddr) {
        if let IpAddr::V6(v6) = masked(address, self.ipv6_prefix) {
            buffer.push(b'6');
            buffer.extend_from_slice(&v6.octets());
        }
    }

    /// Writes the token of an absent value.
    pub(super) fn absent(buffer: &mut Buffer) {
        buffer.push(b'-');
    }

    fn sized(&self, buffer: &mut Buffer, letter: u8, value: &[u8]) {
        if value.len() <= self.verbatim {
            buffer.push(letter);
            push_sized(buffer, value);
        } else {
            let mut hasher = SipHasher24::new_with_key(&self.secret.0);
            hasher.write(value);
            buffer.push(letter.to_ascii_uppercase());
            buffer.extend_from_slice(&hasher.finish128().as_bytes());
        }
    }
}

/// Writes a length in decimals, a colon and the bytes.
fn push_sized(buffer: &mut Buffer, value: &[u8]) {
    // Names and values that are written as they are have at most three digits.
    let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
    let digit = |number: u16| b'0' | u8::try_from(number % 10).unwrap_or_default();
    if len >= 100 {
        buffer.push(digit(len / 100));
    }
    if len >= 10 {
        buffer.push(digit(len / 10));
    }
    buffer.push(digit(len));
    buffer.push(b':');
    buffer.extend_from_slice(value);
}
