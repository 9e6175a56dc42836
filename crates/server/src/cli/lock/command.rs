//! The command that runs under a lock: start, signals, and the end of its process group.
//!
//! It has a process group of its own, so that a signal reaches its children, too, and no other process. At
//! a terminal it has none, because it could not read from it then.
//!
//! On Linux it is started by way of this same program (`exec`), which asks the kernel to kill it
//! should its parent die, and then becomes the command: a `kill -9` of `tollgate lock` leaves no
//! command behind without a lock.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{ExitCode, ExitStatus};

use rustix::process::{Pid, Signal};
use tokio::process::{Child, Command};

use super::super::complain;
use super::signals;

/// Exit status of shells for a command that cannot be run.
const NOT_EXECUTABLE: u8 = 126;
/// Exit status of shells for a command that does not exist.
const NOT_FOUND: u8 = 127;

/// A command that runs. It is killed when this is dropped.
pub(super) struct ChildProcess {
    child: Child,
    id: Option<Pid>,
    foreground: bool,
}

impl ChildProcess {
    /// Starts it.
    pub(super) fn start(
        command: &[OsString],
        variables: &[(&str, &str)],
        foreground: bool,
    ) -> io::Result<Self> {
        let mut program = program(command);
        program.envs(variables.iter().copied()).kill_on_drop(true);
        if !foreground {
            program.process_group(0);
        }
        let child = program.spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Ok(Self { child, id, foreground })
    }

    /// Waits for its end. May be dropped and called again.
    pub(super) async fn end(&mut self) -> io::Result<u8> {
        self.child.wait().await.map(code)
    }

    /// Sends a signal to it and its children; at a terminal, to it alone.
    pub(super) fn signal(&self, signal: Signal) {
        let Some(id) = self.id else { return };
        // The process may have ended.
        let _ = if self.foreground {
            // Once it was waited for, its number may be another's.
            match self.child.id() {
                Some(_) => rustix::process::kill_process(id, signal),
                None => Ok(()),
            }
        } else {
            rustix::process::kill_process_group(id, signal)
        };
    }
}

fn code(status: ExitStatus) -> u8 {
    let by_signal = || status.signal().map(signals::status);
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.or_else(by_signal).unwrap_or(u8::MAX)
}

/// Reports that the command could not be started, and returns the exit status.
pub(super) fn not_started(command: &[OsString], error: &io::Error) -> u8 {
    let name = command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    complain(&format!("{name} cannot be run: {error}"));
    if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE }
}

#[cfg(target_os = "linux")]
fn program(command: &[OsString]) -> Command {
    // `/proc/self/exe` works even after the file was replaced or removed.
    let mut program = Command::new("/proc/self/exe");
    program.arg0("tollgate").arg("exec").arg(std::process::id().to_string()).arg("--");
    program.args(command);
    program
}

#[cfg(not(target_os = "linux"))]
fn program(command: &[OsString]) -> Command {
    let (name, arguments) = command.split_first().map_or((None, command), |(a, b)| (Some(a), b));
    let mut program = Command::new(name.map_or_else(OsString::new, Clone::clone));
    program.args(arguments);
    program
}

/// Becomes a command that ends with its parent, or reports the error.
pub(in super::super) fn exec(parent: i32, command: &[OsString]) -> ExitCode {
    let (Some(name), arguments) = (command.first(), command.get(1..).unwrap_or_default()) else {
        return ExitCode::from(NOT_FOUND);
    };
    #[cfg(target_os = "linux")]
    // If this fails, the command still runs; the fence protects the resource.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // It may have died before the kernel was asked.
    if rustix::process::getppid().map(Pid::as_raw_nonzero).map(i32::from) != Some(parent) {
        return ExitCode::from(signals::status(Signal::KILL.as_raw()));
    }
    let error = std::process::Command::new(name).args(arguments).exec();
    ExitCode::from(not_started(command, &error))
}
