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

/// The steps on locks. Each is a script of its own, as each is sent alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Acquire,
    Renew,
    Release,
    Inspect,
    Force,
    List,
    Guarded,
}

impl Step {
    /// All of them, in the order of their numbers.
    pub(crate) const ALL: [Self; 7] = [
        Self::Acquire,
        Self::Renew,
        Self::Release,
        Self::Inspect,
        Self::Force,
        Self::List,
        Self::Guarded,
    ];

    pub(crate) const fn text(self) -> &'static str {
        macro_rules! script {
            ($($file:literal),+) => {
                concat!(
                    include_str!("../lua/lock/head.lua"),
                    $(include_str!(concat!("../lua/lock/", $file, ".lua"))),+
                )
            };
        }
        match self {
            Self::Acquire => script!("acquire_short", "common", "acquire"),
            Self::Renew => script!("common", "renew"),
            Self::Release => script!("release_short", "common", "release"),
            Self::Inspect => script!("common", "describe", "inspect"),
            Self::Force => script!("common", "describe", "force"),
            Self::List => script!("list"),
            Self::Guarded => script!("guarded"),
        }
    }
}
