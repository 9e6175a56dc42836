//! The counters' names of a batch, each once, in the order they came.
//!
//! They are stored as they will be sent, so that nothing is left to do then.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use tollgate_core::{Charge, Key};

use crate::keys::{Name, NamePrefix};
use crate::link::PackedStrings;

/// A name's prefix and hash, computed by the caller before it takes the queue's lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashedName {
    head: NamePrefix,
    hash: u32,
}

impl HashedName {
    pub(crate) fn new(partition: Option<&[u8]>, charge: &Charge<'_>, hasher: &RandomState) -> Self {
        let (key, limit) = (charge.key(), charge.limit());
        // Keys chosen to collide do not, because the hasher has a secret. Few counters differ
        // only in what comes before the key.
        let hash = hasher.hash_one(key.as_bytes());
        let hash = u32::try_from(hash >> 32).unwrap_or_default();
        Self { head: NamePrefix::new(partition, key, limit), hash }
    }

    pub(super) fn parts<'n>(&'n self, key: Key<'n>) -> NameParts<'n> {
        NameParts { head: self.head.bytes(), key: key.as_bytes(), hash: self.hash }
    }
}

/// The parts of a name: prefix and key, and a hash.
#[derive(Clone, Copy, Debug)]
pub(super) struct NameParts<'n> {
    pub(super) head: &'n [u8],
    pub(super) key: &'n [u8],
    pub(super) hash: u32,
}

impl NameParts<'_> {
    pub(super) fn is(&self, name: &[u8]) -> bool {
        name.strip_prefix(self.head) == Some(self.key)
    }

    pub(super) fn to_name(self) -> Name {
        let mut name = Name::from_slice(self.head);
        name.extend_from_slice(self.key);
        name
    }
}

/// Distinct names, each with its number from 1 on.
#[derive(Debug, Default)]
pub(super) struct NameTable {
    strings: PackedStrings,
    hashes: Vec<u32>,
    /// Numbers at the slot of their hash or after it; 0 in a free slot. Never more than half full.
    slots: Vec<u16>,
}

/// Initial slots: room for a full batch.
const FIRST_SLOTS: usize = 1024;

impl NameTable {
    pub(super) const fn strings(&self) -> &PackedStrings {
        &self.strings
    }

    pub(super) const fn len(&self) -> usize {
        self.strings.len()
    }

    pub(super) fn get(&self, number: u16) -> &[u8] {
        self.strings.get(usize::from(number) - 1)
    }

    pub(super) fn hash(&self, number: u16) -> u32 {
        self.hashes[usize::from(number) - 1]
    }

    /// Empties the table and keeps its memory.
    pub(super) fn clear(&mut self) {
        if self.len() > 0 {
            self.slots.fill(0);
        }
        self.strings.clear();
        self.hashes.clear();
    }

    /// Returns the number of a name, and adds it if it is new.
    #[inline]
    pub(super) fn number(&mut self, name: NameParts<'_>) -> u16 {
        if self.len() * 2 >= self.slots.len() {
            self.grow();
        }
        match self.seek(name) {
            Ok(number) => number,
            Err(slot) => {
                self.strings.push(name.head, name.key);
                self.hashes.push(name.hash);
                let number = u16::try_from(self.len()).unwrap_or(u16::MAX);
                self.slots[slot] = number;
                number
            }
        }
    }

    /// Returns the number of a known name.
    pub(super) fn find(&self, name: NameParts<'_>) -> Option<u16> {
        self.seek(name).ok()
    }

    /// Returns the number of a name, or the slot for it.
    fn seek(&self, name: NameParts<'_>) -> Result<u16, usize> {
        let Some(mask) = self.slots.len().checked_sub(1) else { return Err(0) };
        let mut slot = usize::try_from(name.hash).unwrap_or(0) & mask;
        loop {
            match self.slots[slot] {
                0 => return Err(slot),
                number if self.hash(number) == name.hash && name.is(self.get(number)) => {
                    return Ok(number);
                }
                _ => slot = (slot + 1) & mask,
            }
        }
    }

    fn grow(&mut self) {
        let slots = (self.slots.len() * 2).max(FIRST_SLOTS);
        self.slots.clear();
        self.slots.resize(slots, 0);
        let mask = slots - 1;
        for (hash, number) in self.hashes.iter().zip(1_u16..) {
            let mut slot = usize::try_from(*hash).unwrap_or(0) & mask;
            while self.slots[slot] != 0 {
                slot = (slot + 1) & mask;
            }
            self.slots[slot] = number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_one_number_however_many_there_are_and_however_they_collide() {
        for hash in [|i: u32| i.wrapping_mul(0x9e37_79b9), |i: u32| i % 3] {
            let mut names = NameTable::default();
            for round in 0..2 {
                for i in 0..2_000_u16 {
                    let key = i.to_string();
                    let hash = hash(u32::from(i));
                    let number =
                        names.number(NameParts { head: b"name ", key: key.as_bytes(), hash });
                    assert_eq!(number, i.saturating_add(1), "round {round}");
                    assert_eq!(names.get(number), format!("name {i}").as_bytes());
                }
            }
            assert_eq!(names.len(), 2_000);
            // The same bytes, wherever the key begins.
            assert_eq!(names.find(NameParts { head: b"na", key: b"me 7", hash: hash(7) }), Some(8));
            assert_eq!(names.find(NameParts { head: b"name", key: b"7", hash: hash(7) }), None);

            names.clear();

            let other = NameParts { head: b"an", key: b"other", hash: hash(1) };
            assert_eq!((names.len(), names.number(other)), (0, 1));
        }
    }
}
