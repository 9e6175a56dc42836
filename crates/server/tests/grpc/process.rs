//! The program itself, on free ports.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

/// A program that runs until this is dropped.
pub(crate) struct Program {
    child: Child,
    /// Reads what it logs, so that it never waits for a reader.
    log: Option<JoinHandle<String>>,
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) said: String,
}

impl Program {
    /// Starts `serve`, and reads where it listens. `lines` is how many it prints.
    pub(crate) fn serve(args: &[&str], lines: usize) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.env_clear().arg("serve");
        for listener in ["http", "grpc", "resp", "admin"] {
            command.arg(format!("--{listener}=127.0.0.1:0"));
        }
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut err = child.stderr.take().unwrap();
        let log = std::thread::spawn(move || {
            let mut log = String::new();
            err.read_to_string(&mut log).unwrap();
            log
        });
        let out = BufReader::new(child.stdout.take().unwrap());
        let said: Vec<String> = out.lines().take(lines).map(|line| line.unwrap()).collect();
        let at = |name: &str| {
            let line = said.iter().find(|line| line.trim_start().starts_with(name)).unwrap();
            line.split("://").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
        };
        let (http, grpc, admin) = (at("http "), at("grpc "), at("admin "));
        Self { child, log: Some(log), http, grpc, admin, said: said.join("\n") }
    }

    /// Its resident memory, in KiB.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    pub(crate) fn terminate(&self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &id]).status().unwrap().success());
    }

    /// Waits for its end, and returns its status and what it logged.
    pub(crate) fn ended(mut self) -> (Option<i32>, String) {
        let log = self.log.take().unwrap().join().unwrap();
        (self.child.wait().unwrap().code(), log)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
