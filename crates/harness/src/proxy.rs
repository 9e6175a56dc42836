//! The fault proxy: a TCP proxy with the faults of networks.
//!
//! Two threads for each connection, one for each direction, and one that accepts. This file has the
//! connections and their ends; `pump.rs` applies faults to bytes.

mod pump;

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use self::pump::{Pump, PumpEnd};
use crate::lock;
use crate::scratch::Port;

/// The longest time a server may take to accept a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// The interval at which a waiting thread checks that the connection is still open.
const TICK: Duration = Duration::from_millis(50);
/// The number of ports to try if one that was free is taken.
const PORTS: u32 = 10;

/// One of the two directions through a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Requests.
    ToServer,
    /// Replies.
    ToClient,
}

/// A fault on the bytes of one direction. The other direction is unaffected, unless the connection
/// ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Bytes pass unchanged.
    #[default]
    Pass,
    /// Each byte arrives this much later. Bytes in flight do not wait for one another.
    Latency(Duration),
    /// Bytes vanish, and so does the end of the connection: the other side sees it open. As a fault
    /// towards the client only, commands are executed and their replies lost.
    BlackHole,
    /// The next byte resets the connection (RST) on both sides.
    Reset,
    /// After this many more bytes of each connection, it is closed on both sides. Zero closes it at
    /// the next byte.
    CutAfter(usize),
    /// Bytes arrive in pieces of this size, at least one, with a short pause between them.
    Slice(usize),
    /// Every bit is inverted.
    Corrupt,
}

/// Traffic of one direction since the proxy was started, over all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that arrived and got the fault of their time.
    pub received: usize,
    /// Bytes that were passed on.
    pub delivered: usize,
    /// The pieces in which they were passed on.
    pub pieces: usize,
}

/// A proxy on a port of 127.0.0.1 in front of a server that may be up or down.
///
/// While the server is down, a connection is accepted and then reset;
/// [`refuse_new`](Self::refuse_new) refuses it outright. Dropping the proxy closes every
/// connection.
#[derive(Debug)]
pub struct FaultProxy {
    shared: Arc<ProxyState>,
    listener: Arc<TcpListener>,
    accept_thread: Mutex<Option<JoinHandle<()>>>,
    port: Port,
}

impl FaultProxy {
    /// Starts a proxy in front of `server` that passes everything.
    pub fn start(server: SocketAddr) -> io::Result<Self> {
        let (port, listener) = Self::bind()?;
        let shared = ProxyState {
            server,
            directions: [DirectionState::default(), DirectionState::default()],
            accepted: AtomicUsize::new(0),
            open: Mutex::new(Some(Vec::new())),
        };
        let proxy = Self {
            shared: Arc::new(shared),
            listener: Arc::new(listener),
            accept_thread: Mutex::new(None),
            port,
        };
        *lock(&proxy.accept_thread) = Some(proxy.start_accepting());
        Ok(proxy)
    }

    /// Binds a port by number, so that the kernel leaves it to the harness while the proxy refuses.
    ///
    /// A port that was found free may be held for a moment by a child that another thread is
    /// starting, until it executes its program. Then the next port is tried.
    fn bind() -> io::Result<(Port, TcpListener)> {
        let mut tries = 1..PORTS;
        loop {
            let port = Port::free()?;
            match TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())) {
                Err(_) if tries.next().is_some() => {}
                bound => return Ok((port, bound?)),
            }
        }
    }

    /// The address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port.number()).into()
    }

    /// The URL `redis://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Applies `fault` to every byte that arrives from now on, on open and new connections. Bytes
    /// that are already delayed keep their time.
    pub fn set(&self, direction: Direction, fault: Fault) {
        let mut current = lock(&self.shared.direction_state(direction).fault);
        *current = (current.0.wrapping_add(1), fault);
    }

    /// Refuses connections from now on, as if nothing listened. Open ones go on.
    pub fn refuse_new(&self) -> io::Result<()> {
        if let Some(accept_thread) = lock(&self.accept_thread).take() {
            rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both)?;
            let _ = accept_thread.join();
        }
        Ok(())
    }

    /// Accepts connections again, on the same port.
    pub fn accept_new(&self) -> io::Result<()> {
        let mut accept_thread = lock(&self.accept_thread);
        if accept_thread.is_none() {
            rustix::net::listen(&*self.listener, 128)?;
            *accept_thread = Some(self.start_accepting());
        }
        Ok(())
    }

    /// Resets every open connection now, without waiting for a byte.
    pub fn reset_open(&self) {
        for connection in lock(&self.shared.open).iter().flatten().filter_map(Weak::upgrade) {
            connection.reset();
        }
    }

    /// Connections accepted since the start.
    pub fn connections(&self) -> usize {
        self.shared.accepted.load(SeqCst)
    }

    /// The traffic of this direction.
    pub fn traffic(&self, direction: Direction) -> Traffic {
        let direction_state = self.shared.direction_state(direction);
        Traffic {
            received: direction_state.received.load(SeqCst),
            delivered: direction_state.delivered.load(SeqCst),
            pieces: direction_state.pieces.load(SeqCst),
        }
    }

    fn start_accepting(&self) -> JoinHandle<()> {
        let (listener, shared) = (Arc::clone(&self.listener), Arc::clone(&self.shared));
        thread::spawn(move || {
            loop {
                match listener.accept() {
                    Ok((client, _)) => {
                        shared.accepted.fetch_add(1, SeqCst);
                        let shared = Arc::clone(&shared);
                        thread::spawn(move || shared.connect(client));
                    }
                    // No longer listening: `refuse_new` shut it down.
                    Err(error) if error.kind() == ErrorKind::InvalidInput => return,
                    // Out of descriptors, say. It must not become a busy loop.
                    Err(_) => thread::sleep(Duration::from_millis(1)),
                }
            }
        })
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        let _ = self.refuse_new();
        // Taken, so that a thread still connecting to the server finds the proxy gone.
        let open = lock(&self.shared.open).take();
        for connection in open.iter().flatten().filter_map(Weak::upgrade) {
            connection.close();
        }
    }
}

#[derive(Debug)]
struct ProxyState {
    server: SocketAddr,
    directions: [DirectionState; 2],
    accepted: AtomicUsize,
    /// The open connections; `None` after the proxy was dropped.
    open: Mutex<Option<Vec<Weak<Connection>>>>,
}

#[derive(Debug, Default)]
struct DirectionState {
    /// The fault, and a number that changes with every setting.
    fault: Mutex<(u64, Fault)>,
    received: AtomicUsize,
    delivered: AtomicUsize,
    pieces: AtomicUsize,
}

impl ProxyState {
    fn direction_state(&self, direction: Direction) -> &DirectionState {
        let [to_server, to_client] = &self.directions;
        match direction {
            Direction::ToServer => to_server,
            Direction::ToClient => to_client,
        }
    }

    fn connect(self: &Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect_timeout(&self.server, CONNECT_PATIENCE) else {
            let _ = set_socket_linger(&client, Some(Duration::ZERO));
            return;
        };
        for stream in [&client, &server] {
            let _ = stream.set_nodelay(true);
            let _ = stream.set_write_timeout(Some(TICK));
        }
        let connection = Arc::new(Connection { client, server, over: AtomicBool::new(false) });
        {
            let mut open = lock(&self.open);
            let Some(open) = open.as_mut() else { return };
            open.retain(|other| other.strong_count() > 0);
            open.push(Arc::downgrade(&connection));
        }
        let (shared, replies) = (Arc::clone(self), Arc::clone(&connection));
        thread::spawn(move || replies.pump(&shared, Direction::ToClient));
        connection.pump(self, Direction::ToServer);
    }
}

#[derive(Debug)]
struct Connection {
    client: TcpStream,
    server: TcpStream,
    over: AtomicBool,
}

impl Connection {
    fn pump(&self, shared: &ProxyState, direction: Direction) {
        let (from, to) = match direction {
            Direction::ToServer => (&self.client, &self.server),
            Direction::ToClient => (&self.server, &self.client),
        };
        let direction_state = shared.direction_state(direction);
        let end = Pump::new(from, to, direction_state, &self.over).run();
        if lock(&direction_state.fault).1 == Fault::BlackHole {
            return;
        }
        match end {
            // After a reset of ours this is no end to pass on: it would arrive before the RST.
            Ok(PumpEnd::Eof) if self.over.load(SeqCst) => {}
            Ok(PumpEnd::Eof) => drop(to.shutdown(Shutdown::Write)),
            Ok(PumpEnd::Close) => self.close(),
            // An error on one side reaches the other as one.
            Ok(PumpEnd::Reset) | Err(_) => self.reset(),
        }
    }

    fn close(&self) {
        if !self.over.swap(true, SeqCst) {
            let _ = self.client.shutdown(Shutdown::Both);
            let _ = self.server.shutdown(Shutdown::Both);
        }
    }

    /// Resets the socket: with a linger time of zero, closing it does so. Both pumps release it
    /// when their reads end; shutting down the reading side causes that without a message to the
    /// peer.
    fn reset(&self) {
        if !self.over.swap(true, SeqCst) {
            for stream in [&self.client, &self.server] {
                let _ = set_socket_linger(stream, Some(Duration::ZERO));
                let _ = stream.shutdown(Shutdown::Read);
            }
        }
    }
}
