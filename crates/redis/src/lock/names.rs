//! Names of the keys and the channel of a lock in Redis.
//!
//! | What | Name |
//! |---|---|
//! | the lock | its name, byte for byte |
//! | sidecar | `tg:lock:t:` and the name, if that has a part in braces; else `tg:lock:w:{` name `}` |
//! | channel | `redisson_lock__channel:{` name `}`; without the braces if the name has one |
//! | release record | `redisson_unlock_latch:{` name `}:` hold; without the braces if the name has one |
//!
//! Lock, channel and release record are named as Redisson names them. The sidecar is ours: it shares
//! the slot of the lock wherever a name can achieve that, and two locks never share one. `docs/keys.md`
//! repeats this.

use tollgate_core::lock::{HoldId, LockName};

const TAGGED: &str = "tg:lock:t:";
const WHOLE: &str = "tg:lock:w:{";
pub(crate) const CHANNEL: &str = "redisson_lock__channel";
pub(crate) const RELEASE_RECORD: &str = "redisson_unlock_latch";

/// Returns the sidecar of a lock.
pub(super) fn sidecar(name: &LockName) -> String {
    let name = name.as_str();
    if has_tag(name) { format!("{TAGGED}{name}") } else { format!("{WHOLE}{name}}}") }
}

/// Returns the lock of a sidecar.
pub(super) fn of_sidecar(key: &[u8]) -> Option<LockName> {
    let key = std::str::from_utf8(key).ok()?;
    let name = match key.strip_prefix(TAGGED) {
        Some(name) => name,
        None => key.strip_prefix(WHOLE)?.strip_suffix('}')?,
    };
    let name = LockName::new(name).ok()?;
    (sidecar(&name) == key).then_some(name)
}

/// Returns the channel that announces releases of a lock.
pub(super) fn channel(name: &LockName) -> String {
    prefixed(CHANNEL, name)
}

/// Returns the release record of a hold.
pub(super) fn release_record(name: &LockName, hold: HoldId) -> String {
    format!("{}:{hold}", prefixed(RELEASE_RECORD, name))
}

/// Prefixes a name as Redisson does: in braces, unless it has one.
fn prefixed(prefix: &str, name: &LockName) -> String {
    let name = name.as_str();
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
}

/// Returns whether a cluster hashes only a part of this name: the part between the first brace and the
/// next closing one, unless empty.
fn has_tag(name: &str) -> bool {
    let Some((_, rest)) = name.split_once('{') else { return false };
    rest.find('}').is_some_and(|end| end > 0)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tollgate_core::testing::Rng;

    use super::*;

    fn named(name: &str) -> LockName {
        LockName::new(name).unwrap()
    }

    /// The part of a key that a cluster hashes.
    fn tag(key: &str) -> &str {
        let Some((_, rest)) = key.split_once('{') else { return key };
        match rest.find('}') {
            Some(end) if end > 0 => &rest[..end],
            _ => key,
        }
    }

    // E38
    #[test]
    fn no_two_locks_share_a_sidecar_and_every_sidecar_tells_its_lock() {
        let mut rng = Rng::new(7);
        let mut seen: HashMap<String, String> = HashMap::new();
        for _ in 0..100_000 {
            let len = rng.within(1, 8);
            let name: String = (0..len).map(|_| char::from(rng.pick(b"a{} :"))).collect();

            let key = sidecar(&named(&name));

            assert_eq!(of_sidecar(key.as_bytes()), Some(named(&name)), "{key}");
            assert_eq!(seen.entry(key.clone()).or_insert(name.clone()), &name);
            // A closing brace before there is a tag cannot be put between braces.
            if tag(&name) != name || !name.contains('}') {
                assert_eq!(tag(&key), tag(&name), "{key} is in the slot of {name}");
            }
        }
        assert_eq!(of_sidecar(b"tg:lock:w:{{a}}"), None);
        assert_eq!(of_sidecar(b"tg:lock:x:a"), None);
    }

    #[test]
    fn channels_and_release_records_are_redissons() {
        let hold = HoldId::new(0xab);
        assert_eq!(channel(&named("order")), "redisson_lock__channel:{order}");
        assert_eq!(channel(&named("{order}:1")), "redisson_lock__channel:{order}:1");
        assert_eq!(
            release_record(&named("order"), hold),
            "redisson_unlock_latch:{order}:000000000000000000000000000000ab"
        );
        assert!(release_record(&named("{o}"), hold).starts_with("redisson_unlock_latch:{o}:0"));
    }
}
