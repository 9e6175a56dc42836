//! The clock of a server under test, moved by the test.
//!
//! `shim/clock.c` is preloaded into the server and reads the time from a file that this module
//! writes: change them together. The shipped scripts call `TIME` as always, and need no argument
//! for tests.
//!
//! Redis 7.0 under such a clock, as the tests show:
//!
//! - The first command after [`ServerClock::set`] already lives at that time: in `TIME`, in scripts
//!   too, in `PTTL`, and for the expiry of the keys it touches.
//! - A key whose time to live ends in this very millisecond still exists, with a `PTTL` of 0.
//! - The server's cron expires keys that no command touches, some ten times a second of *real*
//!   time.
//! - Stepping back lengthens the remaining time to live. It does not revive deleted keys.
//! - Within a script expiry stands still, but `TIME` does not: asked twice, it may answer twice.

use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::scratch::TempDir;

const SHIM: &str = include_str!("../shim/clock.c");

/// The time of every server that is started with this clock.
///
/// It stands still until it is set again. At zero, its initial value, the servers read the real
/// time. Clones are the same clock. Replication and the cluster bus see its jumps as they would see
/// those of a real clock.
#[derive(Clone, Debug)]
pub struct ServerClock(Arc<ClockFile>);

#[derive(Debug)]
struct ClockFile {
    file: File,
    shim: PathBuf,
    dir: TempDir,
}

impl ServerClock {
    /// A clock that still follows the real time.
    ///
    /// # Errors
    ///
    /// When there is no C compiler `cc` to build the shim with; the message names the package to
    /// install.
    pub fn new() -> io::Result<Self> {
        let dir = TempDir::new()?;
        let file = File::options().read(true).write(true).create_new(true).open(dir.file("us"))?;
        file.set_len(16)?;
        Ok(Self(Arc::new(ClockFile { file, shim: shim()?, dir })))
    }

    /// Sets the clock to `micros` after the Unix epoch for every command that is sent from now on,
    /// forward or back. Zero returns to the real time.
    pub fn set(&self, micros: u64) -> io::Result<()> {
        // Copying eight bytes into a mapped page is not promised to be atomic. The shim accepts
        // two equal copies only, and for that they must not be written at once.
        self.0.file.write_all_at(&micros.to_le_bytes(), 0)?;
        self.0.file.write_all_at(&micros.to_le_bytes(), 8)
    }

    /// The time that was set last; zero for the real time.
    pub fn micros(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.0.file.read_exact_at(&mut bytes, 8)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Puts a command under this clock before it starts: its C library then returns this time of
    /// day. Its monotonic clock is not changed.
    pub fn govern(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.0.shim).env("TOLLGATE_CLOCK", self.0.dir.file("us"));
    }
}

/// The shim, built at first use and stored beside the test's executable, so that `cargo clean`
/// removes it.
fn shim() -> io::Result<PathBuf> {
    static BUILDING: Mutex<()> = Mutex::new(());
    let mut hasher = DefaultHasher::new();
    SHIM.hash(&mut hasher);
    let path =
        std::env::current_exe()?.with_file_name(format!("clock-shim-{:016x}.so", hasher.finish()));
    let _one_at_a_time = crate::lock(&BUILDING);
    if !path.exists() {
        let dir = TempDir::new()?;
        let source = dir.file("clock.c");
        fs::write(&source, SHIM)?;
        // Another process may build it, too. Renaming keeps others from loading half a library.
        let mut unfinished = OsString::from(&path);
        unfinished.push(format!(".{}", std::process::id()));
        compile(&source, Path::new(&unfinished))?;
        fs::rename(&unfinished, &path)?;
    }
    Ok(path)
}

fn compile(source: &Path, library: &Path) -> io::Result<()> {
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O2", "-o"]).arg(library).arg(source).arg("-ldl");
    let output = cc.output().map_err(|error| {
        let hint = "the clock shim needs a C compiler: apt-get install gcc libc6-dev";
        io::Error::new(error.kind(), format!("cc: {error}; {hint}"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("cc could not build the clock shim: {said}")))
}
