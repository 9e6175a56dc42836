//! The sizes of a store.

use tollgate_core::Clock;

use crate::{EmbeddedStore, MonotonicClock};

/// The sizes of an [`EmbeddedStore`]. Memory is allocated when it is needed.
///
/// ```
/// use tollgate_embedded::EmbeddedStore;
///
/// let store = EmbeddedStore::builder().max_keys(10_000).build();
/// assert_eq!(store.stats().table_bytes, 0);
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct EmbeddedStoreBuilder {
    max_keys: usize,
    max_heap: Option<usize>,
    shards: Option<usize>,
}

/// The sizes of a store and of each shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) shards: usize,
    pub(crate) hot_slots: usize,
    pub(crate) keys_per_shard: usize,
    pub(crate) heap_per_shard: usize,
}

/// The most keys of a shard. A larger one would hold its lock for too long when it grows.
const KEYS_PER_SHARD: usize = 32_768;

/// The most shards. More would take megabytes before the first key.
const MAX_SHARDS: usize = 1 << 16;

/// The usual number of shards. With fewer, threads would wait for each other.
const USUAL_SHARDS: usize = 64;

/// The number of hot slots of a large store, 64 bytes each: a quarter of a megabyte in all.
const DEFAULT_HOT_SLOTS: usize = 4096;

/// The fewest keys of a shard. A smaller one would be full while others are half empty.
const FEWEST_KEYS_PER_SHARD: usize = 256;

impl Default for EmbeddedStoreBuilder {
    fn default() -> Self {
        Self { max_keys: 1_000_000, max_heap: None, shards: None }
    }
}

impl EmbeddedStoreBuilder {
    /// Sets the most keys, of up to 41 bytes each; 1 000 000 by default, at least 1.
    ///
    /// They are divided evenly among the shards, so the first shard is full when the store holds a
    /// few per cent less.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys.max(1);
        self
    }

    /// Sets the most bytes for states that do not fit into a table: logs, panes, holders. Each key
    /// counts with its largest possible size. By default 256 bytes for each key, and at least 256
    /// MiB.
    ///
    /// The bytes are divided evenly among the shards. A limit whose state may outgrow a shard's
    /// share gets no counter at all: `on-full` answers every key under it.
    pub fn max_heap(mut self, bytes: usize) -> Self {
        self.max_heap = Some(bytes);
        self
    }

    /// Sets the number of shards, each with a lock of its own. It is rounded up to a power of two,
    /// but is never more than the number of keys. By default it depends on the number of keys.
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = Some(shards.clamp(1, MAX_SHARDS));
        self
    }

    /// Builds a store on the process's monotonic clock.
    pub fn build(self) -> EmbeddedStore {
        self.with_clock(MonotonicClock::new())
    }

    /// Builds a store on this clock.
    pub fn with_clock<C: Clock>(self, clock: C) -> EmbeddedStore<C> {
        EmbeddedStore::with_sizes(self.sizes(), clock)
    }

    fn sizes(&self) -> Sizes {
        let chosen = self.max_keys.div_ceil(KEYS_PER_SHARD).max(USUAL_SHARDS);
        let useful = self.max_keys.div_ceil(FEWEST_KEYS_PER_SHARD);
        let shards = self.shards.unwrap_or(chosen.min(useful).min(MAX_SHARDS)).next_power_of_two();
        // Every shard needs room for a key, or the store would hold more than was said.
        let most = self.max_keys.checked_ilog2().map_or(1, |log| 1 << log);
        let shards = shards.min(most);
        let heap = self.max_heap.unwrap_or(self.max_keys.saturating_mul(256).max(256 << 20));
        // Loom explores few; elsewhere no more than there may be keys.
        let hot_slots = if cfg!(loom) { 1 } else { DEFAULT_HOT_SLOTS.min(self.max_keys) };
        Sizes {
            shards,
            hot_slots: hot_slots.next_power_of_two().max(shards),
            // Rounded down, so that the store never holds more keys than was said.
            keys_per_shard: self.max_keys.checked_div(shards).unwrap_or(0).max(1),
            heap_per_shard: heap.checked_div(shards).unwrap_or(0),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_hot_slots_as_keys_up_to_4096_and_one_for_each_shard_at_least() {
        let hot_slots = |builder: EmbeddedStoreBuilder| builder.sizes().hot_slots;
        let keys = |keys| EmbeddedStoreBuilder::default().max_keys(keys);

        assert_eq!(hot_slots(keys(usize::MAX).shards(1)), 4_096);
        assert_eq!(hot_slots(keys(4_097)), 4_096);
        assert_eq!(hot_slots(keys(100)), 128);
        assert_eq!(hot_slots(keys(1)), 1);
        assert_eq!(hot_slots(keys(1_000_000).shards(8_192)), 8_192, "one a shard");
    }
}
