//! Each program, run as a user would.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// A program that runs until this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself, and then there is nothing to stop.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server on a free port, and reads where it listens.
fn start(program: &str) -> (Running, String) {
    let mut command = Command::new(program);
    let child = command.arg("127.0.0.1:0").stdout(Stdio::piped()).spawn().unwrap();
    let mut running = Running(child);
    let mut line = String::new();
    BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on http://").expect("where it listens");
    (running, address.to_owned())
}

fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!("{request} HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

#[test]
fn axum_limits_logins_by_address_and_greets_everybody() {
    let (_running, address) = start(env!("CARGO_BIN_EXE_example-axum"));

    for _ in 0..3 {
        assert!(ask(&address, "POST /login").ends_with("welcome\n"));
    }
    let refused = ask(&address, "POST /login");
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    assert!(refused.contains("\"violated-policies\":[\"login\"]"), "{refused}");
    assert!(ask(&address, "GET /").ends_with("hello\n"));
}

#[test]
fn attribute_limits_each_handler_by_itself() {
    let (_running, address) = start(env!("CARGO_BIN_EXE_example-attribute"));

    for _ in 0..3 {
        assert!(ask(&address, "POST /login").ends_with("welcome \n"));
    }
    let refused = ask(&address, "POST /login");
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    assert!(refused.contains("\"detail\":\"too many attempts, try again later\""), "{refused}");

    for _ in 0..2 {
        assert!(
            ask(&address, "GET /report").ends_with("all is well\n"),
            "charged once by the rule"
        );
    }
    let refused = ask(&address, "GET /report");
    assert!(refused.contains("\"violated-policies\":[\"reports\"]"), "{refused}");
}
