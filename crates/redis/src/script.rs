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

/// Declares the lock steps: of each, the arguments that the link adds, and its script, which is a line
/// and some files.
macro_rules! lock_steps {
    ($($step:ident: $preamble:ident, $line:literal, $($file:literal)+;)+) => {
        /// The lock steps. Each is a script of its own, as each is sent alone. Frequent ones have one
        /// script for each kind of lock: an argument less saves a hundredth of Redis's work.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Step {
            $($step,)+
        }

        impl Step {
            /// All steps, in the order of their numbers.
            pub(crate) const ALL: [Self; [$($line),+].len()] = [$(Self::$step),+];

            pub(crate) const fn preamble(self) -> PreambleFields {
                match self {
                    $(Self::$step => PreambleFields::$preamble,)+
                }
            }

            pub(crate) const fn text(self) -> &'static str {
                match self {
                    $(Self::$step => concat!(
                        $line, $(include_str!(concat!("../lua/lock/", $file, ".lua"))),+
                    ),)+
                }
            }
        }
    };
}

lock_steps! {
    Acquire: Time, "local kind = 'r'\n", "clock" "acquire_uncontended" "common" "acquire";
    AcquireSimple: Time, "local kind = 's'\n", "clock" "acquire_uncontended" "common" "acquire";
    Renew: Whole, "", "clock" "not_after" "common" "renew";
    Release: None, "local kind = 'r'\n", "release_sole_hold" "clock" "common" "release";
    ReleaseSimple: None, "local kind = 's'\n", "release_sole_hold" "clock" "common" "release";
    Inspect: Whole, "", "clock" "not_after" "common" "describe" "inspect";
    Force: Whole, "", "clock" "not_after" "common" "describe" "force";
    List: Whole, "", "clock" "not_after" "list";
    SetFenced: Whole, "", "clock" "not_after" "set_fenced";
}

impl Step {
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

    /// Returns whether the reply may be a time alone.
    pub(crate) const fn is_terse(self) -> bool {
        !matches!(self.preamble(), PreambleFields::Whole)
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
