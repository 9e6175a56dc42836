//! C22: what HTTP/2 floods are made of, as bytes on a real socket to the real program. Each ends with
//! GOAWAY or is refused, memory stays flat, and others are served meanwhile.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::process::Program;
use crate::program::{SHOP, file};
use crate::server::{TempDir, connect};
use crate::support::{Client, d, told};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

const CALM: u32 = 11;

/// Memory that the program may have gained after a flood: buffers of some connections.
const FLAT_KIB: u64 = 32 * 1024;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A field that goes into no table. Short enough for one byte of length.
fn field(name: &str, value: &str) -> Vec<u8> {
    let length = |text: &str| u8::try_from(text.len()).ok().filter(|it| *it < 127).unwrap();
    let mut bytes = vec![0, length(name)];
    bytes.extend_from_slice(name.as_bytes());
    bytes.push(length(value));
    bytes.extend_from_slice(value.as_bytes());
    bytes
}

fn head() -> Vec<u8> {
    [
        field(":method", "POST"),
        field(":scheme", "http"),
        field(":path", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"),
        field(":authority", "a"),
        field("content-type", "application/grpc"),
        field("te", "trailers"),
    ]
    .concat()
}

/// `domain: shop`, one descriptor `two=a`, framed as gRPC has it.
fn message() -> Vec<u8> {
    let entry = b"\x0a\x03two\x12\x01a";
    let mut descriptor = vec![0x0a, u8::try_from(entry.len()).unwrap()];
    descriptor.extend_from_slice(entry);
    let mut message = b"\x0a\x04shop\x12".to_vec();
    message.push(u8::try_from(descriptor.len()).unwrap());
    message.extend(descriptor);
    let mut framed = vec![0, 0, 0, 0, u8::try_from(message.len()).unwrap()];
    framed.extend(message);
    framed
}

fn greeting(settings: &[u8]) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, settings));
    bytes
}

/// A connection with a call whose message never comes.
pub(crate) fn begun() -> Vec<u8> {
    [greeting(&[]), frame(HEADERS, END_HEADERS, 1, &head())].concat()
}

/// True if an answer begins in these bytes.
pub(crate) fn has_head(bytes: &[u8]) -> bool {
    frames(bytes).iter().any(|(kind, ..)| *kind == HEADERS)
}

/// Streams of a client are odd.
fn stream(number: u32) -> u32 {
    number * 2 + 1
}

/// One frame that came back: its kind, stream and payload.
type ReceivedFrame = (u8, u32, Vec<u8>);

/// The answer, and whether the server cut the connection before it had read all.
struct FloodResult {
    frames: Vec<ReceivedFrame>,
    cut: bool,
}

impl FloodResult {
    /// With GOAWAY and an error; or so fast that its GOAWAY was lost with the connection, as happens
    /// to whoever closes with something unread.
    fn is_refused(&self) -> bool {
        match goaway(&self.frames) {
            Some(code) => code != 0,
            None => self.cut,
        }
    }
}

/// Sends bytes, part by part as long as the server takes them, and reads until it closes.
fn flood(
    address: SocketAddr,
    settings: &[u8],
    parts: impl Iterator<Item = Vec<u8>> + Send + 'static,
) -> FloodResult {
    let mut socket = connect(address);
    let mut writing = socket.try_clone().unwrap();
    let first = greeting(settings);
    let writer = std::thread::spawn(move || {
        let mut sent = writing.write_all(&first);
        for part in parts {
            if sent.is_err() {
                return true;
            }
            sent = writing.write_all(&part);
        }
        // A connection that is still open now says that it is done.
        let _ = writing.shutdown(std::net::Shutdown::Write);
        sent.is_err()
    });
    let mut reply = Vec::new();
    let mut buffer = [0; 64 * 1024];
    let reset = loop {
        match socket.read(&mut buffer) {
            Ok(0) => break false,
            Ok(read) => reply.extend_from_slice(&buffer[..read]),
            Err(_) => break true,
        }
    };
    let _ = socket.shutdown(std::net::Shutdown::Both);
    let unsent = writer.join().unwrap();
    FloodResult { frames: frames(&reply), cut: reset || unsent }
}

fn frames(mut bytes: &[u8]) -> Vec<ReceivedFrame> {
    let mut frames = Vec::new();
    while bytes.len() >= 9 {
        let length = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
        let stream = u32::from_be_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]);
        let Some(payload) = bytes.get(9..9 + length) else { break };
        frames.push((bytes[3], stream, payload.to_vec()));
        bytes = &bytes[9 + length..];
    }
    frames
}

/// The code of the last GOAWAY, if there was one.
fn goaway(frames: &[ReceivedFrame]) -> Option<u32> {
    let (.., payload) = frames.iter().rev().find(|(kind, ..)| *kind == GOAWAY)?;
    Some(u32::from_be_bytes(payload.get(4..8)?.try_into().unwrap()))
}

struct FloodedServer {
    program: Program,
    before: u64,
    _dir: TempDir,
}

impl FloodedServer {
    fn new() -> Self {
        let dir = TempDir::new();
        let program = Program::serve(&["--envoy-rules", &file(&dir, "shop.yaml", SHOP)], 7);
        let before = program.resident_kib();
        Self { program, before, _dir: dir }
    }

    /// It still serves, and is no larger.
    async fn is_well(&self) {
        let mut client = Client::at(self.program.grpc).await;
        assert_eq!(told(&client.shop(&[d("free=a")]).await), "OK: OK 4294967295");
        let now = self.program.resident_kib();
        assert!(now < self.before + FLAT_KIB, "{} KiB, then {now}", self.before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rapid_resets_end_the_connection() {
    let victim = FloodedServer::new();
    let pairs = (0..100).map(|part: u32| {
        let pair = |number| {
            let opened = frame(HEADERS, END_HEADERS, stream(number), &head());
            [opened, frame(RST_STREAM, 0, stream(number), &8_u32.to_be_bytes())].concat()
        };
        (part * 1_000..(part + 1) * 1_000).flat_map(pair).collect()
    });

    let ended = flood(victim.program.grpc, &[], pairs);

    assert!(ended.is_refused(), "{:?}", ended.frames.last());
    assert!(goaway(&ended.frames).is_none_or(|code| code == CALM), "{:?}", ended.frames.last());
    victim.is_well().await;
}

/// MadeYouReset: the client breaks streams so that the server resets them.
#[tokio::test(flavor = "multi_thread")]
async fn streams_that_are_broken_on_purpose_end_the_connection() {
    let victim = FloodedServer::new();
    let broken = (0..10_000).map(|number| {
        let opened = frame(HEADERS, END_HEADERS, stream(number), &head());
        [opened, frame(WINDOW_UPDATE, 0, stream(number), &[0; 4])].concat()
    });

    let ended = flood(victim.program.grpc, &[], broken);

    assert!(ended.is_refused(), "{:?}", ended.frames.last());
    victim.is_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_without_end_end_the_connection() {
    for piece in [0, 1, 16_000] {
        let victim = FloodedServer::new();
        let begun = frame(HEADERS, 0, 1, &head());
        // Fields that go into no table, cut anywhere.
        let fields: Vec<u8> =
            field("x", &"a".repeat(100)).into_iter().cycle().take(piece).collect();
        let more = (0..200_000).map(move |_| frame(CONTINUATION, 0, 1, &fields));

        let ended = flood(victim.program.grpc, &[], std::iter::once(begun).chain(more));

        assert!(ended.is_refused(), "{piece}: {:?}", ended.frames.last());
        victim.is_well().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_million_frames_that_ask_nothing_end_the_connection() {
    for (kind, flags, number, payload) in [
        (SETTINGS, 0, 0, &[][..]),
        (PING, 0, 0, &[7; 8]),
        (PING, 1, 0, &[7; 8]),
        (WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
        (2, 0, 1, &[0, 0, 0, 0, 1]),
        (0xfa, 0, 0, b"unknown"),
    ] {
        let victim = FloodedServer::new();
        let thousand = frame(kind, flags, number, payload).repeat(1_000);
        let ended = flood(victim.program.grpc, &[], (0..1_000).map(move |_| thousand.clone()));
        assert!(ended.is_refused(), "{kind}: {:?}", ended.frames.last());
        victim.is_well().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_unpacks_to_megabytes_is_refused() {
    let victim = FloodedServer::new();
    // A field of 4000 bytes into the table, and then nothing but its number: 62.
    let mut block = head();
    block.extend([0x40, 1, b'x', 0x7f]);
    // 4000 - 127 = 3873, seven bits at a time.
    block.extend([0xa1, 0x1e]);
    block.extend(std::iter::repeat_n(b'a', 4_000));
    block.extend(std::iter::repeat_n(0xbe, 10_000));
    let bomb = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block);

    let told = flood(victim.program.grpc, &[], std::iter::once(bomb)).frames;

    // 431, a reset or the end of the connection; nothing that was judged.
    assert!(told.iter().any(|(kind, ..)| [HEADERS, RST_STREAM, GOAWAY].contains(kind)), "{told:?}");
    victim.is_well().await;
    let offered = "tollgate_requests_offered_total{protocol=\"grpc\"}";
    assert_eq!(crate::server::metric(victim.program.admin, offered), 1, "the well client's");
}

/// A client that opens no window gets heads, and holds no more streams than it may.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_not_taken_are_bounded() {
    let victim = FloodedServer::new();
    let mut socket = connect(victim.program.grpc);
    let no_window = [0, 4, 0, 0, 0, 0];
    let mut bytes = greeting(&no_window);
    for number in 0..300 {
        bytes.extend(frame(HEADERS, END_HEADERS, stream(number), &head()));
        bytes.extend(frame(DATA, END_STREAM, stream(number), &message()));
    }
    socket.write_all(&bytes).unwrap();

    let (mut reply, mut buffer) = (Vec::new(), [0; 64 * 1024]);
    // A stream that is refused may be reset again, for the data that came after.
    let of = |reply: &[u8], wanted| {
        let streams = frames(reply).into_iter().filter(|(kind, ..)| *kind == wanted);
        streams.map(|(_, stream, _)| stream).collect::<HashSet<u32>>().len()
    };
    while of(&reply, HEADERS) + of(&reply, RST_STREAM) < 300 {
        let read = socket.read(&mut buffer).unwrap();
        assert!(read > 0, "{:?}", frames(&reply).last());
        reply.extend_from_slice(&buffer[..read]);
    }

    assert_eq!((of(&reply, HEADERS), of(&reply, RST_STREAM)), (256, 44));
    assert_eq!(of(&reply, DATA), 0);
    victim.is_well().await;
}

/// Twelve kilobytes of a message that goes on, and never does.
struct EndlessBody(Option<Bytes>);

impl Body for EndlessBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.0.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None => Poll::Pending,
        }
    }
}

/// A client that keeps to the windows, and holds what they let it: two megabytes, and no more.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_never_end_are_bounded() {
    let victim = FloodedServer::new();
    let stream = tokio::net::TcpStream::connect(victim.program.grpc).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let begun = [&[0, 0, 0x0f, 0xff, 0xff][..], &[0; 12_000]].concat();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..250 {
        let request = http::Request::post(
            "http://a/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        )
        .header("content-type", "application/grpc")
        .body(EndlessBody(Some(begun.clone().into())));
        let mut sender = sender.clone();
        calls.spawn(async move { sender.send_request(request.unwrap()).await });
    }

    let first = calls.join_next().await.unwrap().unwrap().unwrap();

    assert_eq!(first.headers().get("grpc-status").unwrap(), "8", "RESOURCE_EXHAUSTED");
    victim.is_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_protocols_are_refused() {
    let victim = FloodedServer::new();
    for bytes in [
        &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03aaaaaaaaaaaaaaaaaaaaaa",
        b"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPING\r\n",
    ] {
        let reply = crate::server::raw(victim.program.grpc, bytes);
        assert!(!reply.starts_with(b"HTTP/1.1 200"), "{}", reply.escape_ascii());
    }
    victim.is_well().await;
}
