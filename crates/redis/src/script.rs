//! The scripts, put together from their files when this crate is compiled.

use tollgate_core::lock::LockKind;

/// Reads a value, or sets it if it is what the caller knows.
pub(crate) const VALUES: &str = include_str!("../lua/values.lua");

/// Reads, decides and writes a batch. The order of the files matters: a file uses what those before it
/// define.
///
/// Redis runs the whole script anew each time, and making a function costs more the more it refers to.
/// So the general way is made only for batches that `takes.lua` cannot decide alone, and an algorithm's
/// functions only for batches that need them.
pub(crate) const SCRIPT: &str = concat!(
    include_str!("../lua/prelude.lua"),
    include_str!("../lua/begin.lua"),
    include_str!("../lua/uniform_takes.lua"),
    include_str!("../lua/takes.lua"),
    "if not outcomes then\n",
    include_str!("../lua/steps.lua"),
    "local function make(code)\nif code == 0 then\n",
    include_str!("../lua/fixed_window.lua"),
    "elseif code == 1 then\n",
    include_str!("../lua/sliding_log.lua"),
    "elseif code == 2 then\n",
    include_str!("../lua/sliding_window.lua"),
    "elseif code <= 5 then\n",
    include_str!("../lua/bucket.lua"),
    include_str!("../lua/leaky_queue.lua"),
    "elseif code == 6 then\n",
    include_str!("../lua/smooth.lua"),
    "else\n",
    include_str!("../lua/concurrency.lua"),
    "end\nend\n",
    include_str!("../lua/general.lua"),
    "end\n",
    include_str!("../lua/batch.lua"),
);

/// The lock steps. Each is a script of its own, as each is sent alone. Frequent ones have one script
/// for each kind of lock: an argument less saves a hundredth of Redis's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Acquire,
    AcquireSimple,
    Renew,
    Release,
    ReleaseSimple,
    Inspect,
    Force,
    List,
    SetFenced,
}

/// The arguments that the link puts before a script's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreambleFields {
    /// The time after which the script must do nothing, and an id.
    Whole,
    /// The time after which the script must do nothing.
    Time,
    /// None: the script is harmless whenever it runs, and has ids of its own.
    None,
}

impl Step {
    /// All steps, in the order of their numbers.
    pub(crate) const ALL: [Self; 9] = [
        Self::Acquire,
        Self::AcquireSimple,
        Self::Renew,
        Self::Release,
        Self::ReleaseSimple,
        Self::Inspect,
        Self::Force,
        Self::List,
        Self::SetFenced,
    ];

    pub(crate) const fn acquire(kind: LockKind) -> Self {
        match kind {
            LockKind::Reentrant => Self::Acquire,
            LockKind::Simple => Self::AcquireSimple,
        }
    }

    pub(crate) const fn release(kind: LockKind) -> Self {
        match kind {
            LockKind::Reentrant => Self::Release,
            LockKind::Simple => Self::ReleaseSimple,
        }
    }

    pub(crate) const fn preamble(self) -> PreambleFields {
        match self {
            Self::Acquire | Self::AcquireSimple => PreambleFields::Time,
            Self::Release | Self::ReleaseSimple => PreambleFields::None,
            _ => PreambleFields::Whole,
        }
    }

    /// Returns whether the reply may be a time alone.
    pub(crate) const fn is_terse(self) -> bool {
        !matches!(self.preamble(), PreambleFields::Whole)
    }

    pub(crate) const fn text(self) -> &'static str {
        macro_rules! script {
            ($kind:literal, $($file:literal),+) => {
                concat!($kind, $(include_str!(concat!("../lua/lock/", $file, ".lua"))),+)
            };
        }
        match self {
            Self::Acquire => {
                script!("local kind = 'r'\n", "clock", "acquire_uncontended", "common", "acquire")
            }
            Self::AcquireSimple => {
                script!("local kind = 's'\n", "clock", "acquire_uncontended", "common", "acquire")
            }
            Self::Release => {
                script!("local kind = 'r'\n", "release_sole_hold", "clock", "common", "release")
            }
            Self::ReleaseSimple => {
                script!("local kind = 's'\n", "release_sole_hold", "clock", "common", "release")
            }
            Self::Renew => script!("", "clock", "not_after", "common", "renew"),
            Self::Inspect => script!("", "clock", "not_after", "common", "describe", "inspect"),
            Self::Force => script!("", "clock", "not_after", "common", "describe", "force"),
            Self::List => script!("", "clock", "not_after", "list"),
            Self::SetFenced => script!("", "clock", "not_after", "set_fenced"),
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::lock::RELEASE_RECORD_TTL;

    use super::*;

    #[test]
    fn a_release_record_lives_as_long_as_core_says() {
        for step in [Step::Release, Step::ReleaseSimple] {
            let set = format!("'PX', '{}')", RELEASE_RECORD_TTL.as_millis());
            assert_eq!(step.text().matches(&set).count(), 2, "the short cut, and the long way");
        }
    }
}
