//! A private directory and port for one server.

use std::fs::DirBuilder;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// A private directory, removed with its contents when dropped.
#[derive(Debug)]
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new() -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            // Short, because the path of a unix socket must fit into 107 bytes.
            let name =
                format!("tollgate-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            match DirBuilder::new().mode(0o700).create(&path) {
                // Left behind by a process of the same number that was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made.map(|()| Self(path)),
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A TCP port of 127.0.0.1 that no other harness takes, even while nothing listens on it.
///
/// The claim is an abstract unix socket. It has the scope of a port (the network namespace) and
/// ends with its process. Without it, another test could take the port of a killed server before
/// the restart.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _claim: UnixListener,
}

/// The range of ports, below the ephemeral range (32768 and up). From the ephemeral range, a client
/// that reconnects to a dead server could get the very port that it dials, and would then talk to
/// itself. The cluster bus, 10 000 higher, is below it as well.
const PORTS: std::ops::Range<u16> = 10_000..20_000;

impl Port {
    pub(crate) fn free() -> io::Result<Self> {
        // Processes start at different places, so that they seldom try the same ports.
        static NEXT: LazyLock<AtomicUsize> = LazyLock::new(|| {
            let spread = std::process::id().wrapping_mul(211);
            AtomicUsize::new(usize::try_from(spread).unwrap_or(0))
        });
        for _ in PORTS {
            let step = NEXT.fetch_add(1, Ordering::Relaxed) % PORTS.len();
            let Some(number) = PORTS.clone().nth(step) else { continue };
            let Ok(port) = Self::claim(number) else { continue };
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(port);
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "no free port on 127.0.0.1"))
    }

    /// The port of this number, even if a program outside the harness listens on it.
    ///
    /// A claim may outlive its owner by a moment: a child that any thread is starting holds a copy
    /// until it executes its program. So this tries again for a while.
    pub(crate) fn fixed(number: u16) -> io::Result<Self> {
        for _ in 0..20 {
            if let Ok(port) = Self::claim(number) {
                return Ok(port);
            }
            thread::sleep(Duration::from_millis(10));
        }
        Self::claim(number).map_err(|error| {
            io::Error::new(error.kind(), format!("port {number} is already in use by a harness"))
        })
    }

    fn claim(number: u16) -> io::Result<Self> {
        let name = SocketAddr::from_abstract_name(format!("tollgate-port-{number}"))?;
        Ok(Self { number, _claim: UnixListener::bind_addr(&name)? })
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}
