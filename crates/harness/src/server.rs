//! A `redis-server` process of one test.
//!
//! It listens on a free port of 127.0.0.1 and on a unix socket in a directory of its own, and saves
//! nothing. The harness checks that it is ready over the unix socket, which cannot belong to
//! another server. Redis opens it only after its ports, so an answer there means that they are open
//! as well.

use std::fmt::{self, Display};
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::clock::ServerClock;
use crate::scratch::{Port, TempDir};
use crate::{Client, Reply, lock, process};

/// The attempts to reach a server that starts: 3000, 10 ms apart. It takes a few milliseconds; the
/// rest is for busy machines.
const TRIES: u32 = 3_000;
const PAUSE: Duration = Duration::from_millis(10);
/// The number of ports to try if another program is faster.
const PORTS: u32 = 10;
/// The harness's own user, so that `command` works even if a test changes passwords.
const USER: &str = "tollgate-harness";

/// A running `redis-server`, killed when dropped and when this process dies.
///
/// ```
/// use tollgate_harness::{RedisServer, Reply};
///
/// let server = RedisServer::start().unwrap();
/// assert_eq!(server.command(&[b"SET", b"key", b"1"]).unwrap(), Reply::Status("OK".into()));
/// ```
#[derive(Debug)]
pub struct RedisServer {
    launch: RedisServerBuilder,
    child: Mutex<Child>,
    client: Mutex<Option<Client<UnixStream>>>,
    port: Port,
    #[cfg(feature = "tls")]
    tls: Option<crate::TlsEndpoint>,
    dir: TempDir,
}

/// Settings of a [`RedisServer`] before it starts.
#[derive(Clone, Debug, Default)]
#[must_use = "a builder starts nothing until `start`"]
pub struct RedisServerBuilder {
    binary: Option<String>,
    config: String,
    args: Vec<String>,
    port: Option<u16>,
    clock: Option<ServerClock>,
    #[cfg(feature = "tls")]
    tls: bool,
}

impl RedisServerBuilder {
    /// Adds a line to the configuration, such as `maxmemory 2mb` or `user alice on >pw ~* +@all`.
    /// Later lines override earlier ones and the harness's own.
    pub fn config(mut self, line: impl Display) -> Self {
        self.config.push_str(&format!("{line}\n"));
        self
    }

    /// Adds an argument after the configuration file, such as `--sentinel`.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Listens on this port instead of a free one. Not needed for [`RedisServer::restart`], which
    /// always keeps the port.
    pub fn fixed_port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Runs this program instead of `$TOLLGATE_REDIS_SERVER`, or else `redis-server`.
    pub fn binary(mut self, program: impl Into<String>) -> Self {
        self.binary = Some(program.into());
        self
    }

    /// Lets the server read its time from `clock`, which several servers may share.
    pub fn clock(mut self, clock: &ServerClock) -> Self {
        self.clock = Some(clock.clone());
        self
    }

    /// Opens a second port that speaks TLS: [`RedisServer::tls`].
    #[cfg(feature = "tls")]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    ///
    /// When the program is missing, with the package to install; when it ends or stays silent, with
    /// its log.
    pub fn start(self) -> Result<RedisServer, StartError> {
        for _ in 1..PORTS {
            match self.launch() {
                Err(error) if self.port.is_none() && error.0.contains("already in use") => {}
                result => return result,
            }
        }
        self.launch()
    }

    fn launch(&self) -> Result<RedisServer, StartError> {
        let port = self.port.map_or_else(Port::free, Port::fixed)?;
        let dir = TempDir::new()?;
        let number = port.number();
        let home = dir.path().display();
        let mut config = format!(
            "bind 127.0.0.1\nport {number}\nunixsocket \"{home}/sock\"\ndir \"{home}\"\n\
             save \"\"\nappendonly no\nuser {USER} on nopass ~* &* +@all\n"
        );
        #[cfg(feature = "tls")]
        let tls = self.tls.then(|| crate::TlsEndpoint::prepare(&dir)).transpose();
        #[cfg(feature = "tls")]
        let tls = tls.map_err(|error| StartError(format!("no certificates: {error}")))?;
        #[cfg(feature = "tls")]
        config.push_str(tls.as_ref().map_or("", |(_, lines)| lines));
        config.push_str(&self.config);
        std::fs::write(dir.file("redis.conf"), config)?;

        let server = RedisServer {
            child: Mutex::new(self.spawn(&dir)?),
            launch: self.clone(),
            client: Mutex::new(None),
            port,
            #[cfg(feature = "tls")]
            tls: tls.map(|(side, _)| side),
            dir,
        };
        server.wait_until_ready()?;
        Ok(server)
    }

    fn spawn(&self, dir: &TempDir) -> Result<Child, StartError> {
        let chosen = self.binary.clone().or_else(|| std::env::var("TOLLGATE_REDIS_SERVER").ok());
        let name = chosen.as_deref().unwrap_or("redis-server");
        let binary = process::find(name).ok_or_else(|| {
            StartError(format!(
                "{name} was not found; on Debian and Ubuntu: apt-get install redis-server\n\
                 (or name another program in TOLLGATE_REDIS_SERVER)"
            ))
        })?;
        let log = File::options().create(true).append(true).open(dir.file("log"))?;
        let mut command: Command = process::dying_with_parent(&binary);
        command.arg(dir.file("redis.conf")).args(&self.args);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        if let Some(clock) = &self.clock {
            clock.govern(&mut command);
        }
        Ok(process::spawn(command)?)
    }
}

impl RedisServer {
    /// Settings for a server before it starts.
    pub fn builder() -> RedisServerBuilder {
        RedisServerBuilder::default()
    }

    /// Starts a server with the default settings.
    pub fn start() -> Result<Self, StartError> {
        Self::builder().start()
    }

    /// The URL `redis://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// The URL `unix:///path`, without a user: with `requirepass`, a client must add its own.
    pub fn unix_url(&self) -> String {
        format!("unix://{}", self.dir.file("sock").display())
    }

    /// The address it listens on, for a client or a [`FaultProxy`](crate::FaultProxy).
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port.number()).into()
    }

    /// Its TCP port, which it keeps through restarts.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The TLS side, if it was enabled.
    #[cfg(feature = "tls")]
    pub fn tls(&self) -> Option<&crate::TlsEndpoint> {
        self.tls.as_ref()
    }

    /// The process that was started last. After [`kill`](Self::kill) another process may have the
    /// number.
    pub fn pid(&self) -> u32 {
        lock(&self.child).id()
    }

    /// The log of the server so far.
    pub fn log(&self) -> String {
        std::fs::read(self.dir.file("log"))
            .map_or_else(|error| error.to_string(), |log| String::from_utf8_lossy(&log).into())
    }

    /// Runs one command on the harness's own connection, as a user with all rights.
    ///
    /// # Errors
    ///
    /// When the connection fails, or after 30 s of silence, for example from a stopped server. The
    /// next call connects again.
    pub fn command(&self, parts: &[&[u8]]) -> io::Result<Reply> {
        let mut slot = lock(&self.client);
        let mut client = match slot.take() {
            Some(client) => client,
            None => self.connect()?,
        };
        let reply = client.command(parts)?;
        *slot = Some(client);
        Ok(reply)
    }

    /// Freezes the process (SIGSTOP), and returns when it stands still. Its sockets stay open.
    pub fn stop(&self) -> io::Result<()> {
        let pid = self.signal(Signal::STOP)?;
        let event = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), event)?;
        Ok(())
    }

    /// Lets a stopped process go on (SIGCONT). It answers the commands that arrived meanwhile.
    pub fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT).map(drop)
    }

    /// Ends the process at once (SIGKILL). Its port stays reserved for [`restart`](Self::restart).
    pub fn kill(&self) -> io::Result<()> {
        end(&mut lock(&self.child))?;
        *lock(&self.client) = None;
        Ok(())
    }

    /// Kills the process if it still runs, and starts another on the same port and socket with the
    /// same configuration. It is empty, unless that configuration makes it save. A cluster node
    /// keeps its `nodes.conf`, and with it its name.
    pub fn restart(&self) -> Result<(), StartError> {
        {
            let mut child = lock(&self.child);
            end(&mut child)?;
            *child = self.launch.spawn(&self.dir)?;
        }
        *lock(&self.client) = None;
        self.wait_until_ready()
    }

    fn signal(&self, signal: Signal) -> io::Result<Pid> {
        let mut child = lock(&self.child);
        // A number that was reaped may belong to a stranger by now.
        if child.try_wait()?.is_some() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the server is not running"));
        }
        let pid = Pid::from_child(&child);
        kill_process(pid, signal)?;
        Ok(pid)
    }

    fn connect(&self) -> io::Result<Client<UnixStream>> {
        let mut client = Client::unix(&self.dir.file("sock"))?;
        match client.command(&[b"AUTH", USER.as_bytes(), b"any"])? {
            Reply::Status(_) => Ok(client),
            refused => Err(io::Error::other(format!("the harness cannot log in: {refused:?}"))),
        }
    }

    fn wait_until_ready(&self) -> Result<(), StartError> {
        for _ in 0..TRIES {
            if let Some(status) = lock(&self.child).try_wait()? {
                return Err(StartError(format!("the server ended, {status}:\n{}", self.log())));
            }
            // Still loading is an answer too, but not this one.
            if matches!(self.command(&[b"PING"]), Ok(Reply::Status(pong)) if pong == "PONG") {
                return Ok(());
            }
            thread::sleep(PAUSE);
        }
        Err(StartError(format!("the server answers no PING:\n{}", self.log())))
    }
}

fn end(child: &mut Child) -> io::Result<()> {
    child.kill()?;
    child.wait().map(drop)
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// The reason why a server did not start, for the reader of the failed test.
pub struct StartError(String);

impl Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Prints the text of `Display`: `unwrap` would escape the line ends of the log.
impl fmt::Debug for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self(format!("the server could not be started: {error}"))
    }
}
