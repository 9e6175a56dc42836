//! Fenced writes: a value that only the newest holder of a lock may set.
//!
//! The script compares the fence with the newest it has seen, and sets the value only if the fence is
//! not older.

use std::time::Duration;

use tollgate_core::StoreError;
use tollgate_core::lock::Fence;

use super::{call, reply};
use crate::RedisStore;
use crate::script::Step;

/// The result of a fenced write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FencedWrite {
    /// The value was set.
    Set,
    /// A holder with a newer fence has set the value before. It stays unchanged.
    Stale {
        /// The newest fence seen.
        newest: Fence,
    },
}

impl RedisStore {
    /// Sets a value unless a newer fence was seen for it. This makes a lock safe even for a holder
    /// that was stopped beyond its lease. With a `ttl` the value expires, and the memory of the
    /// fence with it; choose one longer than any holder may be stopped.
    ///
    /// The value is the field `value` of a hash; the field `fence` is the newest fence.
    ///
    /// # Errors
    ///
    /// When Redis does not answer: the value may have been set, and the call may be repeated. When
    /// the key holds something else than such a hash.
    ///
    /// ```no_run
    /// # use tollgate_redis::{FencedWrite, RedisStore, core::lock::Fence};
    /// # async fn example(store: &RedisStore, fence: Fence) -> Result<(), Box<dyn std::error::Error>> {
    /// if let FencedWrite::Stale { newest } = store.set_fenced("stock:7", b"41", fence, None).await? {
    ///     println!("somebody else has had the lock since: {newest}");
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn set_fenced(
        &self,
        key: &str,
        value: &[u8],
        fence: Fence,
        ttl: Option<Duration>,
    ) -> Result<FencedWrite, StoreError> {
        let millis = ttl.map_or(0, |ttl| ttl.as_millis().clamp(1, MAX_TTL_MS));
        let mut call = call(Step::SetFenced, [key], [fence.to_string()]);
        call.args.extend([value.to_vec(), millis.to_string().into_bytes()]);
        let reply = self.step(call).await?;
        match reply.values.as_slice() {
            [Some(_), Some(word)] if word == b"set" => Ok(FencedWrite::Set),
            [Some(newest), Some(word)] if word == b"stale" => {
                let newest = std::str::from_utf8(newest).ok().and_then(|text| text.parse().ok());
                // Somebody else's number may be larger than any of ours; it is newer all the same.
                let newest = newest.and_then(Fence::new).unwrap_or(Fence::MAX);
                Ok(FencedWrite::Stale { newest })
            }
            _ => Err(reply::malformed()),
        }
    }
}

/// A hundred years. Redis refuses much longer ones.
const MAX_TTL_MS: u128 = 100 * 365 * 24 * 60 * 60 * 1_000;
