//! The replies of the lock steps.
//!
//! The words are those of `lua/lock/*.lua`; a reply with others is malformed.

use std::str::FromStr;
use std::time::Duration;

use tollgate_core::StoreError;
use tollgate_core::lock::{
    AcquireOutcome, Fence, LockHolder, LockKind, LockName, ReleaseOutcome, RenewOutcome,
};

use super::names;
use crate::error::Cause;
use crate::link::Reply;

/// The error for a malformed reply: the step was executed.
pub(super) fn malformed() -> StoreError {
    Cause::MalformedReply.timeout()
}

fn text(reply: &Reply, index: usize) -> Option<&str> {
    std::str::from_utf8(reply.values.get(index)?.as_deref()?).ok()
}

fn number<N: FromStr>(reply: &Reply, index: usize) -> Option<N> {
    text(reply, index)?.parse().ok()
}

/// Converts the milliseconds left; a negative number means no expiry.
fn left(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

pub(super) fn acquired(reply: &Reply) -> Option<AcquireOutcome> {
    if reply.values.is_empty() {
        // A reply with only the time: the time is the fence.
        return Some(AcquireOutcome::Granted {
            fence: Fence::new(reply.now)?,
            depth: 1,
            copies: 0,
        });
    }
    Some(match text(reply, 0)? {
        "granted" => AcquireOutcome::Granted {
            fence: Fence::new(number(reply, 1)?)?,
            depth: number(reply, 2)?,
            copies: 0,
        },
        "busy" => AcquireOutcome::Busy { left: left(number(reply, 1)?) },
        "over" => AcquireOutcome::Over,
        "deep" => AcquireOutcome::TooDeep,
        "foreign" => AcquireOutcome::Foreign,
        _ => return None,
    })
}

pub(super) fn renewed(reply: &Reply, asked: usize) -> Option<Vec<RenewOutcome>> {
    let outcome = |byte| match byte {
        b'h' => Some(RenewOutcome::Held),
        b'l' => Some(RenewOutcome::Lost),
        _ => None,
    };
    let renewed: Option<Vec<_>> = text(reply, 0)?.bytes().map(outcome).collect();
    renewed.filter(|renewed| renewed.len() == asked)
}

pub(super) fn released(reply: &Reply) -> Option<ReleaseOutcome> {
    if reply.values.is_empty() {
        return Some(ReleaseOutcome::Freed);
    }
    match text(reply, 0)? {
        "1" => Some(ReleaseOutcome::Freed),
        "0" => Some(ReleaseOutcome::StillHeld),
        "x" => Some(ReleaseOutcome::AlreadyLost),
        _ => None,
    }
}

/// Reads the holder of a lock, or `None` if it is free.
///
/// # Errors
///
/// When the key holds no lock, or the reply is malformed.
pub(super) fn holder(reply: &Reply, name: &LockName) -> Result<Option<LockHolder>, StoreError> {
    let kind = match text(reply, 0) {
        Some("none") => return Ok(None),
        Some("hash") => LockKind::Reentrant,
        Some("string") => LockKind::Simple,
        Some("other") => return Err(Cause::NoLock.corrupt()),
        _ => return Err(malformed()),
    };
    held(reply, name, kind).map(Some).ok_or_else(malformed)
}

fn held(reply: &Reply, name: &LockName, kind: LockKind) -> Option<LockHolder> {
    let since: Option<u64> = number(reply, 6);
    let lossy = |index: usize| {
        let bytes = reply.values.get(index)?.as_deref()?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    };
    Some(LockHolder {
        name: name.clone(),
        kind,
        owner: lossy(1)?,
        depth: number(reply, 2)?,
        left: left(number(reply, 3)?),
        fence: number(reply, 5).and_then(Fence::new),
        age: since.map(|since| Duration::from_micros(reply.now.saturating_sub(since))),
        label: lossy(7)?,
        waiting: number(reply, 4)?,
    })
}

/// Reads the next cursor, and the locks on this page.
pub(super) fn page(reply: &Reply) -> Option<(u64, Vec<LockName>)> {
    let mut packed = reply.values.get(1)?.as_deref()?;
    let mut locks = Vec::new();
    while let Some((length, rest)) = packed.split_first_chunk() {
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (sidecar, rest) = rest.split_at_checked(length)?;
        locks.extend(names::of_sidecar(sidecar));
        packed = rest;
    }
    packed.is_empty().then_some(())?;
    Some((number(reply, 0)?, locks))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(packed: &[u8]) -> Option<Vec<LockName>> {
        let values = vec![Some(b"7".to_vec()), Some(packed.to_vec())];
        page(&Reply { now: 1, values }).map(|(next, locks)| {
            assert_eq!(next, 7);
            locks
        })
    }

    #[test]
    fn a_page_has_any_number_of_locks_and_no_half_of_one() {
        let one = b"\0\0\0\x0ftg:lock:w:{one}";
        let name = LockName::new("one").unwrap();

        assert_eq!(listed(b""), Some(vec![]));
        assert_eq!(listed(one), Some(vec![name.clone()]));
        assert_eq!(listed(&one.repeat(2000)), Some(vec![name.clone(); 2000]));
        let foreign = [&b"\0\0\0\x02xx"[..], one].concat();
        assert_eq!(listed(&foreign), Some(vec![name]), "what is no sidecar is passed over");
        for cut in 1..one.len() {
            assert_eq!(listed(&one[..cut]), None, "cut to {cut}");
        }
    }
}
