//! Names of counters in Redis: `tg:{shard tag}:1:algorithm:key`.
//!
//! The *shard tag* is one of 64 short words in braces, so that Redis Cluster keeps all keys of one tag
//! on one node. It is a fixed hash of the request's partition, or else of the key. Then come the
//! version of the layout and the number of the algorithm, because counters of one key under different
//! algorithms are different counters. The key is the rest, byte for byte: two keys never share a name.
//!
//! Changing anything here moves every counter: it needs another version.
#![allow(clippy::arithmetic_side_effects, reason = "digits, and lengths of a few bytes")]

use smallvec::SmallVec;
use tollgate_core::{Key, Limit, shard_of};

/// The beginning of every name; `docs/keys.md` and the ACL lines repeat it.
const PREFIX: &[u8; 4] = b"tg:{";

/// The version of the layout of names and of what they hold.
pub(crate) const VERSION: u8 = 1;

/// The shard tags. They spread evenly over the slots of a cluster: tag i lies in the middle of the i-th
/// of 64 equal ranges.
pub(crate) const SHARD_TAGS: [&[u8; 3]; 64] = [
    b"53t", b"j3j", b"if5", b"kec", b"574", b"74b", b"akm", b"6bk", b"96a", b"frw", b"0ip", b"oin",
    b"d1i", b"38o", b"0m0", b"2nf", b"he6", b"box", b"40w", b"c9q", b"hav", b"7ah", b"447", b"67a",
    b"1js", b"fcu", b"0xr", b"gqt", b"1n3", b"3me", b"e2j", b"gu4", b"712", b"52d", b"cmk", b"4dm",
    b"75r", b"h5l", b"7av", b"ice", b"3y7", b"1za", b"2k6", b"8ax", b"wu7", b"931", b"2ov", b"8e8",
    b"7d8", b"5gn", b"621", b"41g", b"jc0", b"qkn", b"66q", b"i6o", b"3h5", b"1kc", b"2z4", b"0yb",
    b"3lu", b"des", b"o94", b"802",
];

/// The longest name: prefix, tag, version, algorithm, key.
#[cfg(test)]
pub(crate) const MAX_NAME: usize = PREFIX.len() + 3 + "}:1:255:".len() + Key::MAX_LEN;

/// A name. Keys of up to some forty bytes need no allocation.
pub(crate) type Name = SmallVec<[u8; 56]>;

/// The part of a counter's name before the key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamePrefix {
    bytes: [u8; 16],
    length: usize,
}

impl NamePrefix {
    /// Writes the prefix of the counter of `key` under `limit`, within `partition`.
    pub(crate) fn new(partition: Option<&[u8]>, key: Key<'_>, limit: &Limit) -> Self {
        let mut bytes = [0; 16];
        bytes[..START].copy_from_slice(&start(partition, key));
        let (tens, ones) = (b'0' + limit.code() / 10, b'0' + limit.code() % 10);
        let end: &[u8] = if tens > b'0' { &[tens, ones, b':'] } else { &[ones, b':'] };
        let length = START + end.len();
        bytes[START..length].copy_from_slice(end);
        Self { bytes, length }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Writes the name of the counter of `key` under `limit`, within `partition`.
#[cfg(test)]
pub(crate) fn name(partition: Option<&[u8]>, key: Key<'_>, limit: &Limit) -> Name {
    let mut name = Name::from_slice(NamePrefix::new(partition, key, limit).bytes());
    name.extend_from_slice(key.as_bytes());
    name
}

/// Splits the name of a counter under `limit` into prefix and key.
pub(crate) fn split<'n>(name: &'n [u8], limit: &Limit) -> (&'n [u8], &'n [u8]) {
    let digits = if limit.code() < 10 { 1 } else { 2 };
    let length = START + digits + 1;
    name.split_at_checked(length).unwrap_or((name, &[]))
}

/// Stands in the names of values where counters have the number of their algorithm.
const VALUE: u8 = b'v';

/// The name of a value.
pub(crate) fn value_name(key: Key<'_>) -> Name {
    let mut name = Name::from_slice(&start(None, key));
    name.extend_from_slice(&[VALUE, b':']);
    name.extend_from_slice(key.as_bytes());
    name
}

/// The length of [`start`].
const START: usize = 11;

/// The start of a name: prefix, shard tag and version.
fn start(partition: Option<&[u8]>, key: Key<'_>) -> [u8; START] {
    let [t, g, colon, brace] = *PREFIX;
    let [a, b, c] = shard_tag(partition, key);
    [t, g, colon, brace, a, b, c, b'}', b':', b'0' + VERSION, b':']
}

/// Returns the number of the algorithm and the key of a name, or `None` for a name of another version.
#[cfg(test)]
pub(crate) fn parse(name: &[u8]) -> Option<(u8, &[u8])> {
    let rest = name.strip_prefix(&PREFIX[..])?;
    let (tag, rest) = rest.split_at_checked(3)?;
    if !SHARD_TAGS.iter().any(|known| *known == tag) {
        return None;
    }
    let rest = rest.strip_prefix(b"}:")?.strip_prefix(&[b'0' + VERSION, b':'])?;
    let colon = rest.iter().position(|byte| *byte == b':')?;
    let (digits, key) = rest.split_at_checked(colon)?;
    let code: u8 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let (_, key) = key.split_first()?;
    // One way to write a number: no sign, no zeros before it.
    let canonical = code.to_string().as_bytes() == digits;
    (canonical && (1..=Key::MAX_LEN).contains(&key.len())).then_some((code, key))
}

/// The tag of a partition's counters, or of a key without a partition.
fn shard_tag(partition: Option<&[u8]>, key: Key<'_>) -> [u8; 3] {
    let shard = partition.map_or_else(|| key.shard(), shard_of);
    SHARD_TAGS.get(usize::from(shard)).map_or(*b"000", |tag| **tag)
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use tollgate_core::testing::{Rng, history::AlgorithmKind};

    use super::*;

    fn named(partition: Option<&[u8]>, key: &[u8], limit: &Limit) -> Vec<u8> {
        name(partition, Key::new(key).unwrap(), limit).into_vec()
    }

    fn slot(tag: &[u8]) -> u16 {
        let crc = tag.iter().fold(0_u16, |crc, byte| {
            (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
            })
        });
        crc % 16_384
    }

    // E38
    #[test]
    fn no_two_counters_share_a_name_and_every_name_tells_its_counter() {
        let mut rng = Rng::new(38);
        let limits: Vec<Limit> =
            AlgorithmKind::ALL.iter().map(|kind| kind.limit(&mut rng)).collect();
        let mut seen: HashMap<Vec<u8>, (Vec<u8>, u8)> = HashMap::new();
        for _ in 0..200_000 {
            // Few distinct bytes, among them all that a name uses itself.
            let len = rng.within(1, 12);
            let key: Vec<u8> = (0..len).map(|_| rng.pick(b"tg:{}10\0\xff\r")).collect();
            let limit = rng.pick(&limits);

            let name = named(None, &key, &limit);

            assert_eq!(parse(&name), Some((limit.code(), &key[..])));
            assert_eq!(split(&name, &limit).1, key);
            assert!(name.len() <= MAX_NAME);
            let counter = (key, limit.code());
            assert_eq!(*seen.entry(name).or_insert_with(|| counter.clone()), counter);
        }
    }

    #[test]
    fn a_partition_keeps_all_its_keys_in_one_slot() {
        let mut rng = Rng::new(1);
        let limit = AlgorithmKind::TokenBucket.limit(&mut rng);
        let tag = |name: &[u8]| name[4..7].to_vec();
        let one: HashSet<_> =
            (0..=255).map(|i| tag(&named(Some(b"tenant"), &[1, i, 7], &limit))).collect();
        let many: HashSet<_> =
            (0..10_000).map(|i| tag(&named(None, format!("k{i}").as_bytes(), &limit))).collect();

        assert_eq!(one.len(), 1);
        assert_eq!(many.len(), 64, "keys without one use every tag");
    }

    /// A once-marker has to lie in the shard of the counter that it guards.
    #[test]
    fn a_key_that_names_its_shard_lies_beside_another() {
        let limit = AlgorithmKind::TokenBucket.limit(&mut Rng::new(2));
        let tag = |name: &[u8]| name[4..7].to_vec();
        for i in 0..1_000_u32 {
            let guarded = format!("k{i}");
            let shard = Key::new(&guarded).unwrap().shard();

            let marker = [Key::PLACED, shard, b'd', 1, 2, 3];

            let beside = tag(&named(None, guarded.as_bytes(), &limit));
            assert_eq!(tag(&named(None, &marker, &limit)), beside);
        }
    }

    #[test]
    fn shard_tags_spread_evenly_over_the_slots_of_a_cluster() {
        for (i, tag) in SHARD_TAGS.iter().enumerate() {
            assert_eq!(usize::from(slot(&tag[..]) / 256), i, "{tag:?}");
        }
    }

    #[test]
    fn foreign_names_are_not_ours() {
        for foreign in [
            "",
            "tg:{",
            "tg:{zzz}:1:3:k",
            "tg:{53t}:2:3:k",
            "tg:{53t}:1:3:",
            "tg:{53t}:1:x:k",
            "tg:{53t}:1:+3:k",
            "tg:{53t}:1:03:k",
        ] {
            assert_eq!(parse(foreign.as_bytes()), None, "{foreign}");
        }
    }
}
