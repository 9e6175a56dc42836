//! Servers that are not Redis, or no longer quite.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use super::*;
use crate::error::ConnectErrorKind;

/// Replies of a broken or hostile server to a script.
const ODD: [&[u8]; 13] = [
    b"+OK\r\n",
    b":1\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*1\r\n$1\r\nx\r\n",
    b"*2\r\n$1\r\n1\r\n*0\r\n",
    b"$-9223372036854775808\r\n",
    b">3\r\n:1\r\n:2\r\n:3\r\n",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\r\n\r\n",
    b"\x00\xff\xfe",
    b"*1\r\n=1\r\nx\r\n",
];
/// Beginnings of replies that never end.
const UNFINISHED: [&[u8]; 8] = [
    b"|9223372036854775807\r\n",
    b"%9223372036854775807\r\n",
    b"*1\r\n!-5\r\n",
    b"*9223372036854775807\r\n",
    b"*1000000000\r\n$1\r\n",
    b"$9223372036854775807\r\nx",
    b"$99999999999999999999",
    b"+",
];

/// Says what Redis would until it is given a script, and then `answer`.
fn impostor(answer: &'static [u8]) -> SocketAddr {
    serve(move |command| {
        let has = |part: &[u8]| command.windows(part.len()).any(|window| window == part);
        if has(b"PING") {
            b"+PONG\r\n"
        } else if has(b"EVALSHA") && !has(b"0000000000") {
            answer
        } else if has(b"EVALSHA") {
            b"-NOSCRIPT none\r\n"
        } else if has(b"EVAL") {
            b"*0\r\n"
        } else if has(b"TIME") {
            b"*2\r\n$1\r\n1\r\n$1\r\n2\r\n"
        } else {
            b"-NOPERM no\r\n"
        }
    })
}

/// Its threads end with the process.
fn serve(answer: impl Fn(&[u8]) -> &'static [u8] + Copy + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || converse(stream.unwrap(), answer));
        }
    });
    address
}

/// The link sends one command at a time here, and each fits into a segment.
fn converse(mut stream: TcpStream, answer: impl Fn(&[u8]) -> &'static [u8]) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(answer(&buffer[..length])).is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_answers_are_one_error_and_end_the_connection() {
    for answer in ODD {
        let link = link(without_timeout(&format!("redis://{}", impostor(answer)))).await;

        let error = run(&link).await.unwrap_err();

        let shown = answer.escape_ascii().to_string();
        assert_eq!(error.kind(), StoreErrorKind::Timeout, "{shown}");
        assert_eq!(cause(&error), Cause::Lost, "{shown}");
        until("it connects again", || link.health().reconnects == 1).await;
    }
}

/// The second would be taken for the answer to the next call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_nobody_asked_for_ends_the_connection() {
    const TWO: &[u8] = b"*2\r\n$1\r\n1\r\n$1\r\n1\r\n*2\r\n$1\r\n1\r\n$1\r\n2\r\n";
    let link = link(without_timeout(&format!("redis://{}", impostor(TWO)))).await;

    assert_eq!(count(&link).await, 1);

    until("it connects again", || link.health().reconnects == 1).await;
    assert_eq!(recovered(&link).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_never_ends_is_a_timeout() {
    for answer in UNFINISHED {
        let link = link(breaker_stays_closed(&format!("redis://{}", impostor(answer)))).await;
        until("it is connected", || link.health().connected == 1).await;

        let error = run(&link).await.unwrap_err();

        let shown = answer.escape_ascii().to_string();
        assert_eq!(error.kind(), StoreErrorKind::Timeout, "{shown}");
        until("it connects again", || link.health().reconnects > 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_greets_oddly_is_waited_for() {
    for greeting in ODD.into_iter().chain([
        b"-ERR max number of clients reached\r\n".as_slice(),
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"-DENIED Redis is running in protected mode\r\n",
        b"",
    ]) {
        let address = serve(move |_| greeting);
        let config =
            breaker_stays_closed(&format!("redis://{address}")).connect_timeout(SHORT_DEADLINE);
        let shown = greeting.escape_ascii().to_string();

        let link = Link::connect(&config, COUNT).await.expect(&shown);

        assert_eq!(cause(&run(&link).await.unwrap_err()), Cause::NotConnected, "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_too_old_is_refused() {
    let address = serve(|command| {
        let has = |part: &[u8]| command.windows(part.len()).any(|window| window == part);
        if has(b"PING") {
            b"+PONG\r\n"
        } else if has(b"INFO") {
            b"$20\r\nredis_version:6.0.16\r\n"
        } else {
            b"*2\r\n$1\r\n1\r\n$1\r\n2\r\n"
        }
    });

    let config = without_timeout(&format!("redis://{address}"));
    let error = Link::connect(&config, COUNT).await.map(|_| ()).unwrap_err();

    assert_eq!(error.kind(), ConnectErrorKind::Unsupported);
    let expected =
        format!("redis 6.0.16 at {address} is too old: the scripts use commands of redis 6.2");
    assert_eq!(error.to_string(), expected);
}
