//! The one script, put together from its files when this crate is compiled.

/// Reads, decides and writes a batch. The order matters: a file uses what those before it define.
pub(crate) const SCRIPT: &str = concat!(
    include_str!("../lua/prelude.lua"),
    include_str!("../lua/fixed_window.lua"),
    include_str!("../lua/sliding_log.lua"),
    include_str!("../lua/sliding_window.lua"),
    include_str!("../lua/bucket.lua"),
    include_str!("../lua/queue.lua"),
    include_str!("../lua/smooth.lua"),
    include_str!("../lua/concurrency.lua"),
    include_str!("../lua/batch.lua"),
);
