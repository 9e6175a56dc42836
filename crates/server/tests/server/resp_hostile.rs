//! Hostile input over the Redis protocol.

use std::io::{Read, Write};
use std::time::Duration;

use super::support::{Wire, connect, encode, metric, start};

/// C31
#[tokio::test(flavor = "multi_thread")]
async fn what_breaks_the_protocol_is_told_so_and_closed() {
    let running = start().await;
    let nested = b"*1\r\n".repeat(100_000);
    let endless = vec![b'x'; 1 << 20];
    let cases: [(&[u8], &str); 13] = [
        (b"*9223372036854775807\r\n", "invalid multibulk length"),
        (b"*-1\r\n", "invalid multibulk length"),
        (b"*1\r\n$-2\r\n", "invalid bulk length"),
        (b"*1\r\n$536870913\r\n", "invalid bulk length"),
        (b"*1\r\n$99999999999999999999", "invalid bulk length"),
        (&nested, "expected '$', got '*'"),
        (&endless, "too big inline request"),
        (b"*1\r\n\0", "expected '$', got '\\u{0}'"),
        (b"*1\r\n$4\r\nPINGxx", "expected CR LF"),
        (b"ECHO \"open\r\n", "unbalanced quotes in request"),
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (b"*x\r\n", "invalid multibulk length"),
        (b"\0\0\0\r\n", "a zero byte in an inline request"),
    ];
    for (bytes, why) in cases {
        let mut stream = connect(running.resp);
        let _ = stream.write_all(bytes);
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        let reply = String::from_utf8_lossy(&reply).into_owned();
        // Bytes that a client sends after the error may reset the connection before it reads the reply.
        if bytes.len() < 1_000 {
            assert_eq!(reply, format!("-ERR Protocol error: {why}\r\n"));
        }
        Wire::new(running.resp).asks(&["PING"], b"+PONG\r\n");
    }
    // Commands before the error are answered.
    let mut stream = connect(running.resp);
    stream.write_all(b"PING\r\n*1\r\n$-1\r\nPING\r\n").unwrap();
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    assert_eq!(reply, b"+PONG\r\n-ERR Protocol error: invalid bulk length\r\n");
}

/// A page in a browser on this machine may post to any port, and its body may hold commands.
#[tokio::test(flavor = "multi_thread")]
async fn a_browser_is_not_listened_to() {
    let running = start().await;
    Wire::new(running.resp).asks(
        &["CL.THROTTLE", "victim", "0", "1", "3600"],
        b"*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:3600\r\n",
    );
    let head = "Host: 127.0.0.1\r\nOrigin: http://evil.example\r\n\r\n";
    for method in ["POST", "PUT"] {
        let mut stream = connect(running.resp);
        let page = format!("{method} / HTTP/1.1\r\n{head}DEL victim\r\nPING\r\n");
        stream.write_all(page.as_bytes()).unwrap();
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        let reply = String::from_utf8_lossy(&reply).into_owned();
        assert!(!reply.contains(':') && !reply.contains("PONG"), "{reply}");
    }
    let mut wire = Wire::new(running.resp);
    wire.asks(&["DEL", "victim"], b":1\r\n");
}

/// A NUL and other bytes in a key are only bytes.
#[tokio::test(flavor = "multi_thread")]
async fn keys_are_any_bytes() {
    let running = start().await;
    let mut client = Wire::new(running.resp);
    for key in [&b"a\0b"[..], b"a", b"{}\r\n", b"\xff\xfe", b"a\0c"] {
        let head = format!("*5\r\n$11\r\nCL.THROTTLE\r\n${}\r\n", key.len());
        let bytes = [head.as_bytes(), key, b"\r\n$1\r\n0\r\n$1\r\n1\r\n$4\r\n3600\r\n"].concat();
        client.send(&bytes);
        client.expect(b"*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:3600\r\n");
    }
}

/// C32: a client that sends and never reads is held up, others are not, and nothing is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_whose_replies_nobody_reads_is_held_up() {
    let running = start().await;
    let one = encode(&["INFO"]);
    let batch = one.repeat(4_096);
    let greedy = connect(running.resp);
    greedy.set_write_timeout(Some(Duration::from_millis(500))).unwrap();

    // A hundred times what the buffers of both ends and of the kernel hold.
    let mut sent = 0_usize;
    let most = 64 << 20;
    let held_up = loop {
        match (&greedy).write(&batch[sent % batch.len()..]) {
            Ok(length) => sent += length,
            Err(_) => break true,
        }
        if sent > most {
            break false;
        }
    };

    assert!(held_up, "{sent} bytes were taken though no reply was");
    Wire::new(running.resp).asks(&["PING"], b"+PONG\r\n");
    drop(greedy);
    let open = "tollgate_connections{listener=\"resp\"}";
    super::support::until("its memory is free", || metric(running.admin, open) == 0).await;
}

/// The same client, which then reads: every command it sent is answered.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_reads_late_gets_every_reply() {
    let running = start().await;
    let writer = connect(running.resp);
    let mut reader = writer.try_clone().unwrap();
    let text = "x".repeat(1_000);
    let sending = std::thread::spawn(move || {
        let command = encode(&["ECHO", &text]);
        for _ in 0..20_000 {
            (&writer).write_all(&command).unwrap();
        }
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });

    let mut replies = Vec::new();
    reader.read_to_end(&mut replies).unwrap();
    sending.join().unwrap();

    assert_eq!(replies.len(), 20_000 * (1_000 + 9));
}

/// A client that leaves in the middle of a command takes nothing with it.
#[tokio::test(flavor = "multi_thread")]
async fn half_a_command_charges_nothing() {
    let running = start().await;
    let command = encode(&["CL.THROTTLE", "k", "0", "1", "3600"]);
    for cut in [1, 10, command.len() - 1] {
        let mut stream = connect(running.resp);
        stream.write_all(&command[..cut]).unwrap();
    }
    let open = "tollgate_connections{listener=\"resp\"}";
    super::support::until("they are gone", || metric(running.admin, open) == 0).await;

    Wire::new(running.resp)
        .asks(&["CL.THROTTLE", "k", "0", "1", "3600"], b"*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:3600\r\n");
}
