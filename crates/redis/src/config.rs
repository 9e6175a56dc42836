//! Settings: the address of Redis, deadlines and bounds.

mod url;

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::ConnectError;

/// One connection carries some hundred thousand calls a second; more than this many cannot be meant.
const MAX_CONNECTIONS: usize = 64;
/// A call holds a batch in memory; this many are gigabytes.
const MAX_IN_FLIGHT: usize = 1 << 16;
/// Each waiting call holds its requests in memory; this many are some hundred megabytes.
const MAX_WAITING: usize = 1 << 20;
/// Shorter deadlines are below the resolution of the timer.
const MIN_DEADLINE: Duration = Duration::from_millis(1);
/// Nobody waits longer for a decision, and the reply that Redis keeps for a retry lives twice as long.
const MAX_DEADLINE: Duration = Duration::from_secs(60);

/// Settings of a store. Only the URL has no default.
///
/// Its `Debug` shows no password.
///
/// ```
/// use std::time::Duration;
/// use tollgate_redis::Config;
///
/// let config = Config::new("redis://tollgate:hunter2@127.0.0.1:6379/2")?
///     .deadline(Duration::from_millis(50));
///
/// assert!(!format!("{config:?}").contains("hunter2"));
/// # Ok::<(), tollgate_redis::ConnectError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Config {
    pub(crate) address: Address,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) db: u32,
    pub(crate) tls: TlsFiles,
    pub(crate) deadline: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) connections: usize,
    pub(crate) max_in_flight: usize,
    pub(crate) max_waiting: usize,
    pub(crate) breaker: BreakerSettings,
    pub(crate) retry: RetryPolicy,
    pub(crate) locks: Option<String>,
}

impl Config {
    /// Makes settings for the Redis at this URL:
    ///
    /// - `redis://[user][:password]@host[:port][/db]`,
    /// - `rediss://…`, the same over TLS (feature `tls`),
    /// - `unix:///path` or `redis+unix:///path`, with `?db=`, `?user=` and `?pass=`.
    ///
    /// User name and password are percent-encoded. `valkey://` and `valkeys://` are accepted as
    /// well.
    ///
    /// # Errors
    ///
    /// When the URL is none of these. The message names the wrong part and never repeats the URL,
    /// which may hold a password.
    pub fn new(url: &str) -> Result<Self, ConnectError> {
        let parts = url::parse(url)?;
        Ok(Self {
            address: parts.address,
            user: parts.user,
            password: parts.password.map(Secret),
            db: parts.db,
            tls: TlsFiles::default(),
            deadline: Duration::from_millis(20),
            connect_timeout: Duration::from_secs(1),
            connections: 1,
            max_in_flight: 128,
            max_waiting: 1 << 15,
            breaker: BreakerSettings::default(),
            retry: RetryPolicy::Never,
            locks: None,
        })
    }

    /// Sets the ACL user, in place of one in the URL. Without one, Redis's `default`.
    pub fn user(mut self, name: impl Into<String>) -> Self {
        self.user = Some(name.into());
        self
    }

    /// Sets the password, in place of one in the URL: a URL tends to end up in logs and process
    /// lists.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(Secret(password.into()));
        self
    }

    /// Sets the number of the database, 0 unless the URL says otherwise.
    pub const fn db(mut self, number: u32) -> Self {
        self.db = number;
        self
    }

    /// Trusts the authorities of this PEM file only, instead of the system's.
    pub fn tls_ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.tls.ca = Some(path.into());
        self
    }

    /// Presents this certificate, as a server with `tls-auth-clients yes` demands. Both files are
    /// PEM; the first may hold a chain.
    pub fn tls_client_files(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.tls.client = Some((certificate.into(), key.into()));
        self
    }

    /// Sets how long a decision may take before its caller is answered without Redis. 20 ms by
    /// default, clamped to 1 ms to 60 s.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline.clamp(MIN_DEADLINE, MAX_DEADLINE);
        self
    }

    /// Sets how long one attempt to connect and log in may take. 1 s by default, clamped to 1 ms to
    /// 60 s. Callers never wait for it: without a connection they are answered at once.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout.clamp(MIN_DEADLINE, MAX_DEADLINE);
        self
    }

    /// Sets the number of connections. 1 by default, clamped to 1 to 64. One is enough unless
    /// encryption or the kernel, rather than Redis, is the bottleneck of a single connection.
    pub fn connections(mut self, count: usize) -> Self {
        self.connections = count.clamp(1, MAX_CONNECTIONS);
        self
    }

    /// Sets how many calls of [`Store::charge`](tollgate_core::Store::charge) may wait to be sent.
    /// 32 768 by default, clamped to 1 to 1 048 576. One more is refused at once, uncharged.
    pub fn max_waiting(mut self, calls: usize) -> Self {
        self.max_waiting = calls.clamp(1, MAX_WAITING);
        self
    }

    /// Sets how many runs of scripts may be in flight. 128 by default, clamped to 1 to 65 536.
    /// Batches use at most three for each connection.
    pub fn max_in_flight(mut self, calls: usize) -> Self {
        self.max_in_flight = calls.clamp(1, MAX_IN_FLIGHT);
        self
    }

    /// Declares that locks of these names are used, so that the checks at the start include the
    /// permissions they need: a name, or an ACL pattern in which `*` is any text, such as
    /// `order:*`. Locks work without this.
    pub fn locks(mut self, names: impl Into<String>) -> Self {
        self.locks = Some(names.into());
        self
    }

    /// Sets when the breaker opens, and how often Redis is probed then.
    pub fn breaker(mut self, settings: BreakerSettings) -> Self {
        self.breaker = settings;
        self
    }

    /// Sets what happens to a call whose connection was lost; [`RetryPolicy::Never`] by default.
    pub const fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }
}

/// The handling of a call whose connection was lost after it may have been written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetryPolicy {
    /// Fail with `Timeout`: the call may have been executed.
    #[default]
    Never,
    /// Send the call once more, if a connection is back before the deadline. The script recognises
    /// a call it has executed and repeats its reply, so nothing is charged twice. This costs Redis
    /// one more key per batch.
    Once,
}

/// Settings of the breaker, which stops calls while Redis does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct BreakerSettings {
    pub(crate) failures: u32,
    pub(crate) span: Duration,
    pub(crate) probe: RangeInclusive<Duration>,
}

impl BreakerSettings {
    /// Sets how many calls in a row must fail. 3 by default, at least 1.
    pub fn failures(mut self, count: u32) -> Self {
        self.failures = count.max(1);
        self
    }

    /// Sets the least time between the first and the last of these failures. 50 ms by default. A
    /// hiccup that fails a hundred calls at once is shorter than that.
    pub const fn span(mut self, span: Duration) -> Self {
        self.span = span;
        self
    }

    /// Sets the range from which the pause between two probes is drawn. 50 to 200 ms by default,
    /// both clamped to 1 ms to 60 s. Random pauses keep the probes of a fleet apart.
    pub fn probe(mut self, shortest: Duration, longest: Duration) -> Self {
        let shortest = shortest.clamp(MIN_DEADLINE, MAX_DEADLINE);
        self.probe = shortest..=longest.clamp(shortest, MAX_DEADLINE);
        self
    }
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            failures: 3,
            span: Duration::from_millis(50),
            probe: Duration::from_millis(50)..=Duration::from_millis(200),
        }
    }
}

/// The address of Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp { host: String, port: u16 },
    Tls { host: String, port: u16 },
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Tls { host, port } => write!(f, "{host}:{port} (TLS)"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct TlsFiles {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) client: Option<(PathBuf, PathBuf)>,
}

/// A password. It has no `Display`, and its `Debug` shows nothing of it, not even its length.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_the_user_and_no_password() {
        for config in [
            Config::new("redis://alice:hush%21@localhost").unwrap(),
            Config::new("unix:///run/redis.sock?user=alice&pass=hush!").unwrap(),
            Config::new("redis://localhost").unwrap().user("alice").password("hush!"),
        ] {
            let shown = format!("{config:?} {config:#?}");

            assert_eq!(config.password.as_ref().map(Secret::expose), Some("hush!"));
            assert!(shown.contains("alice"), "{shown}");
            assert!(!shown.contains("hush"), "{shown}");
        }
    }

    #[test]
    fn settings_out_of_bounds_are_brought_in() {
        let config = Config::new("redis://localhost").unwrap();

        let low = config.clone().connections(0).max_in_flight(0).deadline(Duration::ZERO);
        let high = config.connections(usize::MAX).max_in_flight(usize::MAX);

        assert_eq!((low.connections, low.max_in_flight), (1, 1));
        assert_eq!(low.deadline, MIN_DEADLINE);
        assert_eq!((high.connections, high.max_in_flight), (MAX_CONNECTIONS, MAX_IN_FLIGHT));
        let breaker = BreakerSettings::default().failures(0).probe(Duration::ZERO, Duration::ZERO);
        assert_eq!((breaker.failures, breaker.probe), (1, MIN_DEADLINE..=MIN_DEADLINE));
    }

    #[test]
    fn nothing_is_waited_for_without_end() {
        let config = Config::new("redis://localhost").unwrap();

        let config = config.deadline(Duration::MAX).connect_timeout(Duration::MAX);
        let breaker = BreakerSettings::default().probe(Duration::MAX, Duration::MAX);

        assert_eq!((config.deadline, config.connect_timeout), (MAX_DEADLINE, MAX_DEADLINE));
        assert_eq!(breaker.probe, MAX_DEADLINE..=MAX_DEADLINE);
    }
}
