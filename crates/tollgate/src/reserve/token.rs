//! The reservation token: a reservation as text, with a code that only the fleet can make.
//!
//! ```text
//! base64url( 2 │ id 16 │ at 8 │ expires 8 │ charges ) . base64url( code 16 )
//! charge = cost 8 │ version of the rules 8 │ algorithm 1 │ measured 1 │ key │ partition, the last two behind their lengths (2)
//! ```
//!
//! All numbers are little-endian. The code is SipHash-2-4 of 128 bits over everything before it,
//! under a key derived from the fleet's secret. A key names its rule and limit, which the settling
//! node looks up in its own rules. A counter without a rule there is left unchanged.

use std::hash::Hasher;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use siphasher::sip128::{Hasher128, SipHasher24};
use tollgate_core::rule::RuleSet;
use tollgate_core::{Revision, Timestamp};

use super::{Reservation, SpentCharge};
use crate::decision::OwnedCounter;
use crate::permits::Permits;

const VERSION: u8 = 2;

/// An upper bound of a token's size: 64 charges with the longest names and keys.
const MAX_LEN: usize = 256 * 1024;

pub(super) fn write(reservation: &Reservation, secret: &[u8; 16]) -> String {
    let mut bytes = vec![VERSION];
    bytes.extend(reservation.id.to_le_bytes());
    bytes.extend(reservation.at.as_micros().to_le_bytes());
    bytes.extend(reservation.expires.as_micros().to_le_bytes());
    for spent in &reservation.spent {
        bytes.extend(spent.cost.to_le_bytes());
        bytes.extend(spent.charged.0.to_le_bytes());
        bytes.extend([spent.counter.limit.code(), u8::from(spent.measured)]);
        for part in [&spent.counter.key[..], spent.counter.partition.as_deref().unwrap_or(&[])] {
            let length = u16::try_from(part.len()).unwrap_or(u16::MAX);
            bytes.extend(length.to_le_bytes());
            bytes.extend(part.iter().take(usize::from(length)));
        }
    }
    let code = code(&bytes, secret);
    format!("{}.{}", URL_SAFE_NO_PAD.encode(bytes), URL_SAFE_NO_PAD.encode(code))
}

pub(super) fn read(
    token: &str,
    secret: &[u8; 16],
    rules: &RuleSet,
) -> Result<Reservation, TokenError> {
    if token.len() > MAX_LEN {
        return Err(TokenError::Malformed);
    }
    let (payload, given) = token.split_once('.').ok_or(TokenError::Malformed)?;
    let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|_| TokenError::Malformed);
    let (bytes, given) = (decode(payload)?, decode(given)?);
    if !same(&code(&bytes, secret), &given) {
        return Err(TokenError::NotOurs);
    }
    let mut rest = TokenReader(&bytes);
    if rest.array::<1>() != Some([VERSION]) {
        return Err(TokenError::Malformed);
    }
    contents(rest, rules).ok_or(TokenError::Malformed)
}

/// The reservation after the version byte; `None` if bytes are missing.
fn contents(mut rest: TokenReader<'_>, rules: &RuleSet) -> Option<Reservation> {
    let id = rest.array().map(u128::from_le_bytes)?;
    let (at, expires) = (rest.moment()?, rest.moment()?);
    let mut spent = Vec::new();
    while !rest.0.is_empty() {
        let cost = rest.array().map(u64::from_le_bytes)?;
        let charged = rest.array().map(u64::from_le_bytes).map(Revision)?;
        let [code, measured] = rest.array()?;
        let (key, partition) = (rest.part()?, rest.part()?);
        let active = rules.limit_of_key(key);
        if let Some(active) = active.filter(|active| active.limit().code() == code) {
            let partition = (!partition.is_empty()).then(|| partition.into());
            let counter = OwnedCounter { key: key.into(), limit: *active.limit(), partition };
            let (measured, guard) = (measured != 0, active.guard().copied());
            spent.push(SpentCharge { counter, cost, charged, measured, guard });
        }
    }
    Some(Reservation { id, at, expires, spent, permits: Permits::none() })
}

fn code(bytes: &[u8], secret: &[u8; 16]) -> [u8; 16] {
    // Under a key of its own. Values of clients are hashed under the secret itself, and shown in
    // keys; but only long ones, and this text is short.
    let mut hasher = SipHasher24::new_with_key(secret);
    hasher.write(b"tollgate reservations");
    let mut hasher = SipHasher24::new_with_key(&hasher.finish128().as_bytes());
    hasher.write(bytes);
    hasher.finish128().as_bytes()
}

/// Compares in a time that does not reveal the place of a difference.
fn same(ours: &[u8], given: &[u8]) -> bool {
    let differ = ours.iter().zip(given).fold(0, |differ, (a, b)| differ | (a ^ b));
    ours.len() == given.len() && differ == 0
}

struct TokenReader<'b>(&'b [u8]);

impl<'b> TokenReader<'b> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn moment(&mut self) -> Option<Timestamp> {
        self.array().map(u64::from_le_bytes).map(Timestamp::from_micros)
    }

    fn part(&mut self) -> Option<&'b [u8]> {
        let length = usize::from(u16::from_le_bytes(self.array()?));
        let (part, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(part)
    }
}

/// The reason why a token is not a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenError {
    /// It is incomplete, or not a token.
    Malformed,
    /// It was not made with this fleet's secret.
    NotOurs,
}

error_messages! {
    TokenError {
        Self::Malformed => "the token is not a whole reservation";
        Self::NotOurs => "the token was not made with this fleet's secret";
    }
}
