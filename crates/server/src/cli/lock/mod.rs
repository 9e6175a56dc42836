//! `tollgate lock`: runs a command under a lock, as flock(1) does, across machines.
//!
//! | Exit status | Means |
//! |---|---|
//! | the command's own | it ran under the lock from its beginning to its end |
//! | 128 + n | it, or the wait for the lock, was ended by signal n |
//! | 1, or `-E` | another owner had the lock for longer than `--wait`; it did not run |
//! | 2 | the command line is invalid; it did not run |
//! | 124 | the lock was lost; the command was stopped, or had ended before the loss was noticed |
//! | 125 | the lock could not be requested; it did not run |
//! | 126, 127 | it cannot be run; it does not exist |
//!
//! `docs/locks.md` and the help say this too.

mod command;
mod signals;

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rustix::process::Signal;
use tollgate::locks::{Durability, Replicas};
use tollgate::redis::RedisStore;
use tollgate::{Lease, Owner};
use tollgate::{LockError, LockGuard, Locks, ReleaseResult};

pub(super) use command::exec;

use super::redis::{LockStoreArgs, chain, plain, whoami};
use super::{Failure, complain, wait};
use crate::enum_text::{impl_from_str, text_enum};
use crate::settings::value::DurationText;
use command::ChildProcess;
use signals::{SignalName, Signals};

/// The lock was lost. As timeout(1) has it when it stops something.
const LOST: u8 = 124;
/// The lock could not be asked for. As timeout(1), env(1) and others have it when they fail themselves.
const FAILED: u8 = 125;

text_enum! {
    /// Replication of a lock before the command runs.
    enum DurabilityOption {
        /// The server has it.
        Plain = "plain",
        /// A majority of the replicas is waited for.
        Majority = "majority",
        /// A majority of the replicas must have it.
        Required = "required",
    }
}

impl_from_str!(DurabilityOption);

/// The exit status, for the help.
const STATUSES: &str = "\
Exit status:
  the command's  it ran under the lock from its beginning to its end
  128 + n        it, or the wait for the lock, was ended by signal n
  1, or -E       somebody else had the lock; it did not run
  2              the command line makes no sense; it did not run
  124            the lock was lost, whatever the command's status is
  125            the lock could not be asked for; it did not run
  126, 127       it cannot be run; there is none of that name

A command may end with any of these itself: choose another -E to tell a conflict apart.";

/// Arguments of `tollgate lock`.
#[derive(Args, Debug)]
#[command(after_help = STATUSES)]
pub(super) struct LockCommand {
    #[command(flatten)]
    store: LockStoreArgs,
    /// Time to wait for the lock [default: until it is free]
    #[arg(
        short,
        long,
        env = "TOLLGATE_LOCK_WAIT",
        value_name = "TIME",
        overrides_with = "no_wait"
    )]
    wait: Option<DurationText>,
    /// Do not wait; same as --wait 0s
    #[arg(short, long, overrides_with = "wait")]
    no_wait: bool,
    /// Time until the lock is free again if this process or its machine dies; renewed while the
    /// command runs
    #[arg(long, env = "TOLLGATE_LOCK_LEASE", default_value = "30s", value_name = "TIME")]
    lease: DurationText,
    /// Owner of the lock, to re-enter one that this owner holds, such as "$TOLLGATE_OWNER"
    /// [default: a new owner]
    #[arg(long, env = "TOLLGATE_LOCK_OWNER", value_name = "OWNER")]
    owner: Option<String>,
    /// Replication of the lock before the command runs: plain (none), majority (wait for a majority
    /// of the replicas), required (do not run without a majority)
    #[arg(long, env = "TOLLGATE_LOCK_DURABILITY", default_value = "plain", value_name = "WORD")]
    durability: DurabilityOption,
    /// Number of replicas
    #[arg(long, env = "TOLLGATE_LOCK_REPLICAS", default_value = "1", value_name = "COUNT")]
    replicas: NonZeroU32,
    /// Time to wait for the replicas
    #[arg(long, env = "TOLLGATE_LOCK_REPLICAS_WAIT", default_value = "1s", value_name = "TIME")]
    replicas_wait: DurationText,
    /// Signal for the command when the lock is lost
    #[arg(long, env = "TOLLGATE_LOCK_SIGNAL", default_value = "TERM", value_name = "SIGNAL")]
    signal: SignalName,
    /// Time between that signal and KILL [default: a twentieth of the lease, 500ms at most, so that
    /// after an outage the command is gone before another owner can get the lock]
    #[arg(long, env = "TOLLGATE_LOCK_KILL_AFTER", value_name = "TIME")]
    kill_after: Option<DurationText>,
    /// Exit status if another owner holds the lock
    #[arg(
        short = 'E',
        long,
        env = "TOLLGATE_LOCK_CONFLICT_EXIT_CODE",
        default_value_t = 1,
        value_name = "STATUS"
    )]
    conflict_exit_code: u8,
    /// Keep the command in this process group, so that it can use the terminal; signals then reach
    /// only the command. Implied if stdin is a terminal
    #[arg(long, env = "TOLLGATE_LOCK_FOREGROUND")]
    foreground: bool,
    /// Name of the lock
    #[arg(value_name = "NAME")]
    name: String,
    /// Command to run, and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// Result of waiting for the lock.
enum WaitOutcome {
    Granted(LockGuard),
    Busy,
    Interrupted(Signal),
}

impl LockCommand {
    pub(super) fn run(&self) -> ExitCode {
        let status = wait(self.hold()).unwrap_or_else(|error| {
            complain(&chain(&*error));
            FAILED
        });
        ExitCode::from(status)
    }

    async fn hold(&self) -> Result<u8, Failure> {
        // Before the lock is asked for, so that no signal leaves it behind.
        let mut signals = Signals::new()?;
        let locks = self.locks(self.store.open(Some(&self.name)).await?)?;
        let status = match self.wait_for(&locks, &mut signals).await? {
            WaitOutcome::Granted(guard) => self.under(guard, &mut signals).await?,
            WaitOutcome::Busy => self.conflict_exit_code,
            WaitOutcome::Interrupted(signal) => signals::status(signal.as_raw()),
        };
        // A request without an answer may still be granted.
        locks.settled().await;
        Ok(status)
    }

    fn locks(&self, store: RedisStore) -> Result<Locks<RedisStore>, Failure> {
        let replicas = Replicas { count: self.replicas, patience: self.replicas_wait.0 };
        let durability = match self.durability {
            DurabilityOption::Plain => Durability::Primary,
            DurabilityOption::Majority => Durability::Majority(replicas),
            DurabilityOption::Required => Durability::Required(replicas),
        };
        let builder = Locks::builder(store).lease(Lease::new(self.lease.0)?);
        Ok(builder.durability(durability).label(whoami()).build())
    }

    async fn wait_for(
        &self,
        locks: &Locks<RedisStore>,
        signals: &mut Signals,
    ) -> Result<WaitOutcome, Failure> {
        let mut lock = locks.named(&self.name)?;
        if let Some(owner) = &self.owner {
            lock = lock.by(&Owner::parse(owner)?);
        }
        let patience = if self.no_wait { Some(Duration::ZERO) } else { self.wait.map(|it| it.0) };
        let taken = async {
            match patience {
                None => lock.lock().await.map(Some),
                Some(Duration::ZERO) => lock.try_lock().await,
                Some(patience) => lock.lock_within(patience).await,
            }
        };
        let taken: Result<Option<LockGuard>, LockError> = tokio::select! {
            taken = taken => taken,
            signal = signals.next() => return Ok(WaitOutcome::Interrupted(signal)),
        };
        Ok(taken?.map_or(WaitOutcome::Busy, WaitOutcome::Granted))
    }

    /// Runs the command while the lock is held.
    async fn under(&self, guard: LockGuard, signals: &mut Signals) -> Result<u8, Failure> {
        let fence = guard.fence().to_string();
        let variables = [
            ("TOLLGATE_LOCK", self.name.as_str()),
            ("TOLLGATE_FENCE", fence.as_str()),
            ("TOLLGATE_OWNER", guard.owner().as_str()),
        ];
        let foreground = self.foreground || std::io::IsTerminal::is_terminal(&std::io::stdin());
        let ran = match ChildProcess::start(&self.command, &variables, foreground) {
            Ok(running) => self.watch(running, &guard, signals, foreground).await?,
            Err(error) => CommandEnd::Ended(command::not_started(&self.command, &error)),
        };
        let name = plain(&self.name);
        let status = match (ran, guard.release().await) {
            (CommandEnd::Stopped, _) => LOST,
            (CommandEnd::Ended(_), Ok(ReleaseResult::AlreadyLost)) => {
                complain(&format!("the lock \"{name}\" was lost before the command ended"));
                LOST
            }
            (CommandEnd::Ended(status), Ok(ReleaseResult::Released)) => status,
            (CommandEnd::Ended(status), Err(error)) => {
                let error = chain(&error);
                complain(&format!("the lock \"{name}\" ends with its lease: {error}"));
                status
            }
        };
        Ok(status)
    }

    /// Waits for the end of the command, passes signals on, and stops it when the lock is lost.
    async fn watch(
        &self,
        mut running: ChildProcess,
        guard: &LockGuard,
        signals: &mut Signals,
        foreground: bool,
    ) -> Result<CommandEnd, Failure> {
        // Far in the future until the lock is lost.
        let kill = tokio::time::sleep(Duration::MAX);
        tokio::pin!(kill);
        let mut lost = false;
        let ended = loop {
            tokio::select! {
                ended = running.end() => break ended?,
                signal = signals.next() => {
                    if signals::is_passed_on(signal, foreground) {
                        running.signal(signal);
                    }
                }
                () = guard.lost(), if !lost => {
                    lost = true;
                    let (name, signal) = (plain(&self.name), signals::name(self.signal.0));
                    complain(&format!("the lock \"{name}\" was lost: the command is sent {signal}"));
                    running.signal(self.signal.0);
                    let kill_after = self.kill_after.map_or_else(|| grace(self.lease.0), |it| it.0);
                    kill.set(tokio::time::sleep(kill_after));
                }
                () = &mut kill, if !kill.is_elapsed() => running.signal(Signal::KILL),
            }
        };
        if !lost {
            return Ok(CommandEnd::Ended(ended));
        }
        if !foreground {
            // Children that it left behind.
            running.signal(Signal::KILL);
        }
        Ok(CommandEnd::Stopped)
    }
}

/// Time between the signal and KILL. A loss is reported a tenth of the lease before its
/// end, a second at most: half of that is left for the killing.
fn grace(lease: Duration) -> Duration {
    lease.checked_div(20).unwrap_or_default().min(Duration::from_millis(500))
}

/// End of the command.
enum CommandEnd {
    Ended(u8),
    /// The lock was lost before.
    Stopped,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_a_twentieth_of_the_lease_and_half_a_second_at_most() {
        for (lease_ms, grace_us) in [
            (10, 500),
            (1_000, 50_000),
            (9_999, 499_950),
            (10_000, 500_000),
            (30_000, 500_000),
            (365 * 24 * 3_600_000, 500_000),
        ] {
            let lease = Duration::from_millis(lease_ms);
            assert_eq!(grace(lease), Duration::from_micros(grace_us), "{lease:?}");
        }
    }
}
