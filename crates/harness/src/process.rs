//! Starts child processes that do not outlive this process.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{self, SyncSender};
use std::thread;

type SpawnRequest = (Command, SyncSender<io::Result<Child>>);

/// The thread that starts all children.
///
/// The kernel sends the parent-death signal when the *thread* that started a child ends. A test's
/// thread ends with its test, but several tests may share a server.
static STARTER: LazyLock<SyncSender<SpawnRequest>> = LazyLock::new(|| {
    let (orders, inbox) = mpsc::sync_channel::<SpawnRequest>(16);
    thread::spawn(move || {
        for (mut command, answer) in inbox {
            let _ = answer.send(command.spawn());
        }
    });
    orders
});

/// True if this machine's `setpriv` (util-linux) can set the parent-death signal. Setting it here
/// would take `unsafe`. Without it a child is orphaned when this process is killed.
static SETPRIV: LazyLock<bool> = LazyLock::new(|| {
    let probe = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "true"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    probe.is_ok_and(|status| status.success())
});

/// A command for `program` that dies with this process, under its own process id.
pub(crate) fn dying_with_parent(program: &PathBuf) -> Command {
    if !*SETPRIV {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    let gone = || io::Error::other("the thread that starts children has ended");
    let (answer, started) = mpsc::sync_channel(1);
    STARTER.send((command, answer)).map_err(|_| gone())?;
    started.recv().map_err(|_| gone())?
}

/// Finds `program` as a shell would.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}
