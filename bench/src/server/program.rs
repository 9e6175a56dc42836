//! Programs that the bench starts: `tollgate serve`, and itself as a peer.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A program that runs until this is dropped, and where it listens.
pub struct Program {
    child: Child,
    at: Vec<(String, SocketAddr)>,
}

impl Program {
    /// The server, built beside this program, on free ports.
    pub fn tollgate(args: &[&str]) -> Self {
        let path = std::env::current_exe().unwrap().with_file_name("tollgate");
        assert!(path.exists(), "{} is not built: use `make bench-server`", path.display());
        let mut command = Command::new(path);
        command.args(["serve", "--http=127.0.0.1:0", "--resp=127.0.0.1:0", "--admin=127.0.0.1:0"]);
        command.args(["--grpc=127.0.0.1:0", "--log-level=error"]).args(args);
        Self::start(command)
    }

    /// This program as a peer.
    pub fn bare(args: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(args);
        Self::start(command)
    }

    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it was built");
        let mut at = Vec::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Each listener has a line; the first line that is none ends them.
        while let Some(Ok(line)) = lines.next() {
            let mut words = line.split_whitespace();
            let (Some(name), Some(url)) = (words.next(), words.next()) else { break };
            if let Some(address) = url.split("://").nth(1).and_then(|it| it.parse().ok()) {
                at.push((name.to_owned(), address));
            }
            if name == "bare" || name == "admin" {
                break;
            }
        }
        assert!(!at.is_empty(), "it does not start");
        Self { child, at }
    }

    /// Where the listener of this name is.
    pub fn at(&self, name: &str) -> SocketAddr {
        let found = self.at.iter().find(|(known, _)| known == name);
        found.unwrap_or_else(|| panic!("no {name} in {:?}", self.at)).1
    }

    /// Bytes of memory that it has.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// A metric of the server.
    pub fn metric(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(self.at("admin")).unwrap();
        let host = self.at("admin");
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file that is removed with this.
pub struct TempFile(PathBuf);

impl TempFile {
    pub fn new(name: &str, bytes: impl AsRef<[u8]>) -> Self {
        let path = std::env::temp_dir().join(format!("tollgate-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
