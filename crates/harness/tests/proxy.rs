//! Each fault of the proxy, seen from a client.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]
#![allow(clippy::disallowed_methods, reason = "latency is measured in real time, from below only")]

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use tollgate_harness::{
    Client,
    Direction::{ToClient, ToServer},
    Fault, FaultProxy, RedisServer, Reply, Traffic,
};

const PING: &[&[u8]] = &[b"PING"];
/// Bytes of a PING on the wire, there and back.
const REQUEST: usize = "*1\r\n$4\r\nPING\r\n".len();
const REPLY: usize = "+PONG\r\n".len();

fn pong() -> Reply {
    Reply::Status("PONG".into())
}

/// A server, a proxy before it, and a client whose connection has already carried a PING.
fn connected() -> (RedisServer, FaultProxy, Client<TcpStream>) {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.address()).unwrap();
    let mut client = Client::tcp(proxy.address()).unwrap();
    assert_eq!(client.command(PING).unwrap(), pong());
    (server, proxy, client)
}

fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        thread::sleep(Duration::from_millis(1));
    }
}

/// The connection is open, and nothing has come.
fn is_silent(client: &Client<TcpStream>) -> bool {
    client.stream().set_nonblocking(true).unwrap();
    let peeked = client.stream().peek(&mut [0]);
    client.stream().set_nonblocking(false).unwrap();
    peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn passing_changes_nothing_and_counts() {
    let (_server, proxy, mut client) = connected();
    let long = vec![b'x'; 3_000_000];

    assert_eq!(client.command(&[b"ECHO", &long]).unwrap(), Reply::Bulk(long));

    assert_eq!(proxy.connections(), 1);
    let replies = proxy.traffic(ToClient);
    assert_eq!(replies.received, REPLY + "$3000000\r\n\r\n".len() + 3_000_000);
    assert_eq!(replies.delivered, replies.received);
}

#[test]
fn a_client_that_reads_late_holds_nobody_up() {
    let (_server, proxy, mut late) = connected();
    let mut prompt = Client::tcp(proxy.address()).unwrap();
    let more_than_buffers_hold = vec![b'x'; 16 << 20];

    late.send(&[b"ECHO", &more_than_buffers_hold]).unwrap();
    assert_eq!(prompt.command(PING).unwrap(), pong());

    assert_eq!(late.receive().unwrap(), Reply::Bulk(more_than_buffers_hold));
}

#[test]
fn latency_is_at_least_what_was_asked_and_does_not_add_up() {
    let (_server, proxy, mut client) = connected();
    let delay = Duration::from_millis(40);
    proxy.set(ToServer, Fault::Latency(delay));
    proxy.set(ToClient, Fault::Latency(delay));

    let start = Instant::now();
    for _ in 0..50 {
        client.send(PING).unwrap();
    }
    assert_eq!(client.receive().unwrap(), pong());
    assert!(start.elapsed() >= 2 * delay);

    // Without delay from here on; what is in line still comes first.
    proxy.set(ToClient, Fault::Pass);
    for _ in 1..50 {
        assert_eq!(client.receive().unwrap(), pong());
    }
}

#[test]
fn a_black_hole_towards_the_client_loses_replies_of_executed_commands() {
    let (server, proxy, mut client) = connected();
    proxy.set(ToClient, Fault::BlackHole);

    client.send(&[b"INCR", b"count"]).unwrap();
    wait_until(|| proxy.traffic(ToClient).received == REPLY + ":1\r\n".len());

    assert_eq!(server.command(&[b"GET", b"count"]).unwrap(), Reply::Bulk(b"1".into()));
    assert_eq!(proxy.traffic(ToClient).delivered, REPLY);
    server.kill().unwrap();
    assert!(is_silent(&client), "not even the server's death comes through");
}

#[test]
fn a_black_hole_towards_the_server_loses_requests() {
    let (server, proxy, mut client) = connected();
    proxy.set(ToServer, Fault::BlackHole);

    client.send(&[b"INCR", b"count"]).unwrap();
    wait_until(|| proxy.traffic(ToServer).received > REQUEST);
    assert!(is_silent(&client));
    proxy.set(ToServer, Fault::Pass);

    assert_eq!(client.command(PING).unwrap(), pong(), "the connection is still good");
    assert_eq!(server.command(&[b"GET", b"count"]).unwrap(), Reply::Nil);
}

#[test]
fn a_reset_reaches_the_client_as_one() {
    let (server, proxy, mut client) = connected();

    proxy.set(ToClient, Fault::Reset);
    client.send(&[b"INCR", b"count"]).unwrap();
    assert_eq!(client.receive().unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(server.command(&[b"GET", b"count"]).unwrap(), Reply::Bulk(b"1".into()));

    proxy.set(ToClient, Fault::Pass);
    let mut idle = Client::tcp(proxy.address()).unwrap();
    assert_eq!(idle.command(PING).unwrap(), pong());
    proxy.reset_open();
    assert_eq!(idle.receive().unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_cut_passes_so_many_bytes_of_each_connection_and_closes() {
    let (_server, proxy, mut first) = connected();
    let mut second = Client::tcp(proxy.address()).unwrap();
    proxy.set(ToClient, Fault::CutAfter(REPLY + 3));

    for client in [&mut first, &mut second] {
        assert_eq!(client.command(PING).unwrap(), pong());
        client.send(PING).unwrap();
        let mut rest = Vec::new();
        client.stream().read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"+PO");
    }
}

#[test]
fn slices_arrive_one_by_one_and_complete() {
    let (_server, proxy, mut client) = connected();
    proxy.set(ToClient, Fault::Slice(2));

    assert_eq!(client.command(PING).unwrap(), pong());

    let both = Traffic { received: 2 * REPLY, delivered: 2 * REPLY, pieces: 1 + 4 };
    assert_eq!(proxy.traffic(ToClient), both);
}

#[test]
fn corrupted_bytes_are_not_what_was_sent() {
    let (_server, proxy, mut client) = connected();
    proxy.set(ToClient, Fault::Corrupt);

    client.send(PING).unwrap();

    let mut reply = [0; REPLY];
    client.stream().read_exact(&mut reply).unwrap();
    assert_eq!(reply.map(|byte| !byte), *b"+PONG\r\n");
}

#[test]
fn new_connections_are_refused_while_open_ones_go_on() {
    let (_server, proxy, mut client) = connected();

    for _ in 0..20 {
        proxy.refuse_new().unwrap();
        let refused = Client::tcp(proxy.address()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(client.command(PING).unwrap(), pong());

        proxy.accept_new().unwrap();
        assert_eq!(Client::tcp(proxy.address()).unwrap().command(PING).unwrap(), pong());
    }
    assert_eq!(proxy.connections(), 21);
}

#[test]
fn a_connection_to_a_dead_server_is_reset_until_it_is_back() {
    let (server, proxy, mut client) = connected();

    server.kill().unwrap();
    assert!(client.command(PING).is_err());
    assert!(Client::tcp(proxy.address()).and_then(|mut new| new.command(PING)).is_err());
    server.restart().unwrap();

    assert_eq!(Client::tcp(proxy.address()).unwrap().command(PING).unwrap(), pong());
}

#[test]
fn dropping_the_proxy_closes_everything() {
    let (_server, proxy, mut client) = connected();
    let address = proxy.address();

    drop(proxy);

    assert_eq!(client.receive().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(Client::tcp(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}
