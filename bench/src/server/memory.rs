//! The memory that a million keys take in the server's own process.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::program::Program;

const KEYS: u64 = 1_000_000;
const PIPELINE: u64 = 1_000;

/// Fills a server with a million keys of `CL.THROTTLE`, and prints what it grew by.
pub fn run() {
    let server = Program::tollgate(&["--max-keys=2000000"]);
    let before = server.resident();
    let mut stream = TcpStream::connect(server.at("resp")).unwrap();
    let reply = b"*5\r\n:0\r\n:101\r\n:100\r\n:-1\r\n:36\r\n";
    let mut replies = vec![0; reply.len() * PIPELINE as usize];
    for from in (0..KEYS).step_by(PIPELINE as usize) {
        let mut commands = String::new();
        for key in from..from + PIPELINE {
            let key = format!("user:{key:012}");
            commands.push_str(&format!(
                "*5\r\n$11\r\nCL.THROTTLE\r\n${}\r\n{key}\r\n$3\r\n100\r\n$3\r\n100\r\n$4\r\n3600\r\n",
                key.len()
            ));
        }
        stream.write_all(commands.as_bytes()).unwrap();
        stream.read_exact(&mut replies).unwrap();
        assert!(replies.starts_with(reply), "{}", replies[..40].escape_ascii());
    }
    assert_eq!(server.metric("tollgate_keys"), KEYS, "each key has a counter");
    let after = server.resident();
    println!(
        "case=memory keys={KEYS} resident-mib={:.1} at-start-mib={:.1} bytes-per-key={:.1}",
        after as f64 / f64::from(1 << 20),
        before as f64 / f64::from(1 << 20),
        (after - before) as f64 / KEYS as f64,
    );
}
