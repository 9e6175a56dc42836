//! The scripts, put together from their files when this crate is compiled.

/// Reads a value, or sets it if it is what the caller knows.
pub(crate) const VALUES: &str = include_str!("../lua/values.lua");

/// Reads, decides and writes a batch. The order matters: a file uses what those before it define.
///
/// Redis runs all of it anew each time, and making a function costs more the more it refers to. So most
/// batches are done before any is made, and the algorithms are within one function, which makes only
/// those that the batch has need of.
pub(crate) const SCRIPT: &str = concat!(
    include_str!("../lua/prelude.lua"),
    include_str!("../lua/plain.lua"),
    include_str!("../lua/steps.lua"),
    "local function make(code)\nif code == 0 then\n",
    include_str!("../lua/fixed_window.lua"),
    "elseif code == 1 then\n",
    include_str!("../lua/sliding_log.lua"),
    "elseif code == 2 then\n",
    include_str!("../lua/sliding_window.lua"),
    "elseif code <= 5 then\n",
    include_str!("../lua/bucket.lua"),
    include_str!("../lua/queue.lua"),
    "elseif code == 6 then\n",
    include_str!("../lua/smooth.lua"),
    "else\n",
    include_str!("../lua/concurrency.lua"),
    "end\nend\n",
    include_str!("../lua/batch.lua"),
);
