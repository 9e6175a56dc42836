//! The Redis protocol: `CL.THROTTLE`, `TG.*`, and as much of Redis as ordinary clients need.
//!
//! Served by threads of its own, each with a runtime and buffers that no other thread touches: a
//! command is read, decided and answered without a lock, a task or an allocation of its own.
//!
//! | File | Holds |
//! |---|---|
//! | `parse`, `reply` | bytes in, bytes out |
//! | `session`, `connection_commands` | commands |
//! | `throttle` | the arguments of `CL.THROTTLE` and its reply |
//! | `store_command` | commands that ask the store |
//! | `connection`, `remote` | reading and writing, on the embedded store and on others |
//! | `deadlines` | deadlines |

mod connection;
mod connection_commands;
mod deadlines;
pub mod parse;
mod remote;
pub mod reply;
mod session;
mod store_command;
pub mod throttle;

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch as signal};

use crate::accept::{self, BoundListener, OpenConnection};
use crate::listener::{Listener, ListenerTask};
use crate::state::ServerState;
use crate::store::AnyStore;
use connection::Connection;
use deadlines::{ConnectionActivity, ConnectionTable};
use session::Session;

/// Connections handed to a thread that it has not looked at yet.
const HANDED: usize = 128;

/// Connections that a thread surely serves in one pause of its end.
const A_TURN: usize = 64;

/// Starts the threads of the Redis protocol. They end after the stop, when connections are drained.
///
/// # Errors
///
/// When there is no thread or runtime to be had.
pub(crate) async fn start(bound: BoundListener) -> std::io::Result<ListenerTask> {
    let BoundListener { socket, server, stop, local, .. } = bound;
    let count = server.settings.resp_threads.max(1);
    let ids = Arc::new(AtomicU64::new(1));
    let mut handing = Vec::new();
    // Nothing is sent: it is closed when the last thread has ended.
    let (running, mut ended) = mpsc::channel::<()>(1);
    let run = |name: String, work: Work| -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let worker = Worker {
            server: Arc::clone(&server),
            watch: Arc::default(),
            stop: stop.clone(),
            ids: Arc::clone(&ids),
            local,
        };
        let running = running.clone();
        std::thread::Builder::new().name(name).spawn(move || {
            runtime.block_on(worker.run(work));
            drop(runtime);
            drop(running);
        })?;
        Ok(())
    };
    for number in 1..count {
        let (hand, handed) = mpsc::channel(HANDED);
        handing.push(hand);
        run(format!("tollgate-resp-{number}"), Work::Handed(handed))?;
    }
    run("tollgate-resp-0".to_owned(), Work::Accept(socket, handing))?;
    drop(running);
    Ok(ListenerTask::new(async move { while ended.recv().await.is_some() {} }))
}

/// Source of a thread's connections.
enum Work {
    /// It accepts them, and hands every other one on.
    Accept(std::net::TcpListener, Vec<mpsc::Sender<std::net::TcpStream>>),
    /// It is handed them.
    Handed(mpsc::Receiver<std::net::TcpStream>),
}

struct Worker {
    server: Arc<ServerState>,
    watch: Arc<ConnectionTable>,
    stop: signal::Receiver<bool>,
    ids: Arc<AtomicU64>,
    local: bool,
}

impl Worker {
    async fn run(mut self, work: Work) {
        let (watch, server) = (Arc::clone(&self.watch), Arc::clone(&self.server));
        tokio::spawn(async move { watch.run(&server.connections[Listener::Resp]).await });
        let mut stop = self.stop.clone();
        tokio::select! {
            _ = stop.wait_for(|stopped| *stopped) => {}
            () = self.take(work) => {}
        }
        self.drain().await;
    }

    async fn take(&mut self, work: Work) {
        match work {
            Work::Handed(mut handed) => {
                while let Some(stream) = handed.recv().await {
                    if let Ok(stream) = TcpStream::from_std(stream) {
                        self.serve(stream);
                    }
                }
            }
            Work::Accept(listener, others) => {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                let mut turn = 0_usize;
                loop {
                    let stream = accept::next(&listener).await;
                    turn = if turn < others.len() { turn.saturating_add(1) } else { 0 };
                    match others.get(turn) {
                        None => self.serve(stream),
                        Some(other) => {
                            if let Ok(stream) = stream.into_std() {
                                let _ = other.send(stream).await;
                            }
                        }
                    }
                }
            }
        }
    }

    fn serve(&self, stream: TcpStream) {
        let Some(open) = OpenConnection::admit(&self.server, Listener::Resp) else {
            return turn_away(stream);
        };
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let session = Session::new(id, stream.peer_addr().ok(), &self.server, self.local);
        let entry: Arc<ConnectionActivity> = Arc::default();
        let watched = ConnectionGuard { id, watch: Arc::clone(&self.watch), _open: open };
        let (server, said) = (Arc::clone(&self.server), Arc::clone(&entry));
        let task = tokio::spawn(async move {
            let _watched = watched;
            // A broken connection needs no report.
            let _ = match server.limiter.store() {
                AnyStore::Embedded(_) => {
                    Connection::new(stream, session, Arc::clone(&server), said).serve().await
                }
                AnyStore::Redis(..) => {
                    remote::serve(stream, session, Arc::clone(&server), said).await
                }
            };
        });
        self.watch.add(id, entry, task.abort_handle());
    }

    /// Lets connections with pending replies finish, and ends the others.
    async fn drain(&self) {
        let pause = Duration::from_millis(10);
        let mut left = self.server.settings.drain_timeout;
        // Input that has arrived is served first: until a pause without a command, or until every
        // connection had its turn.
        let mut served = None;
        for _ in 0..=self.watch.count().div_ceil(A_TURN).saturating_add(1) {
            tokio::time::sleep(pause).await;
            left = left.saturating_sub(pause);
            if served.replace(self.watch.commands()) == served || left.is_zero() {
                break;
            }
        }
        while !self.watch.dismiss() {
            if left.is_zero() {
                return self.watch.dismiss_all();
            }
            tokio::time::sleep(pause).await;
            left = left.saturating_sub(pause);
        }
    }
}

/// A connection that is open and watched until this is dropped.
struct ConnectionGuard {
    id: u64,
    watch: Arc<ConnectionTable>,
    _open: OpenConnection,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.watch.remove(self.id);
    }
}

/// Answers with an error, if that can be sent at once, and closes.
fn turn_away(stream: TcpStream) {
    if let Ok(mut stream) = stream.into_std() {
        let _ = stream.write_all(b"-ERR max number of clients reached\r\n");
    }
}
