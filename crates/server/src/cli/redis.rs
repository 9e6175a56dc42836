//! The Redis that locks are kept in, for the commands that use it without a server in between.

use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tollgate::LockError;
use tollgate::redis::{Config, RedisStore, Warning};
use tollgate::{StoreError, StoreErrorKind};

use super::{Failure, complain};
use crate::settings::secret;
use crate::settings::value::{DurationText, Secret};

/// Time limit for one connection attempt, unless the deadline is longer.
const CONNECT: Duration = Duration::from_secs(1);

/// Redis that stores locks.
#[derive(Args, Clone, Debug)]
pub(super) struct LockStoreArgs {
    /// URL of the Redis or Valkey that stores locks; `embedded` does not work across processes
    #[arg(long, global = true, env = "TOLLGATE_STORE", hide_env_values = true, value_name = "URL")]
    store: Option<Secret>,
    /// File that holds the store URL, for a URL with a password
    #[arg(long, global = true, env = "TOLLGATE_STORE_FILE", value_name = "FILE")]
    store_file: Option<PathBuf>,
    /// Password of Redis, instead of one in the URL
    #[arg(
        long,
        global = true,
        env = "TOLLGATE_STORE_PASSWORD",
        hide_env_values = true,
        value_name = "TEXT"
    )]
    store_password: Option<Secret>,
    /// File that holds the password of Redis
    #[arg(long, global = true, env = "TOLLGATE_STORE_PASSWORD_FILE", value_name = "FILE")]
    store_password_file: Option<PathBuf>,
    /// Time limit for an operation on a lock before it is retried, at least 250ms [default: 250ms]
    #[arg(long, global = true, env = "TOLLGATE_STORE_DEADLINE", value_name = "TIME")]
    store_deadline: Option<DurationText>,
}

impl LockStoreArgs {
    /// Connects, and reports missing rights for locks of these names. A Redis that cannot be reached is an
    /// error only at the first operation on a lock.
    pub(super) async fn open(&self, names: Option<&str>) -> Result<RedisStore, Failure> {
        let url = secret("store", &self.store, &self.store_file)?;
        let url = url.filter(|url| url.expose() != "embedded").ok_or(
            "locks across processes need Redis, not the embedded store: set --store \
             redis://127.0.0.1:6379 or TOLLGATE_STORE",
        )?;
        let mut config = Config::new(url.expose())?;
        let password = secret("store-password", &self.store_password, &self.store_password_file)?;
        if let Some(password) = password {
            config = config.password(password.expose());
        }
        if let Some(DurationText(deadline)) = self.store_deadline {
            config = config.deadline(deadline).connect_timeout(deadline.max(CONNECT));
        }
        if let Some(names) = names {
            config = config.locks(names);
        }
        let store = RedisStore::connect(config).await?;
        let lacks = |warning: &&Warning| matches!(warning, Warning::MissingLockPermissions { .. });
        for warning in store.warnings().iter().filter(lacks) {
            complain(&plain(&warning.to_string()));
        }
        Ok(store)
    }
}

/// An error of locks and its causes, in one line.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = words(error);
    let mut source = error.source();
    while let Some(cause) = source {
        // Writing into a string does not fail.
        let _ = write!(text, ": {}", words(cause));
        source = cause.source();
    }
    text
}

/// One error in words that fit a lock: a store speaks of charges, and a library of its types.
fn words(error: &(dyn Error + 'static)) -> String {
    if let Some(LockError::Foreign(name)) = error.downcast_ref() {
        let name = plain(name.as_str());
        return format!(
            "the key of \"{name}\" does not hold a lock of this kind: choose another name"
        );
    }
    if let Some(LockError::TooDeep(name)) = error.downcast_ref() {
        let name = plain(name.as_str());
        return format!("the owner has entered \"{name}\" 256 times: is each entry released?");
    }
    match error.downcast_ref().map(StoreError::kind) {
        Some(StoreErrorKind::Timeout) => "no answer in time".to_owned(),
        Some(StoreErrorKind::Unavailable) => "the store is unreachable or refuses".to_owned(),
        _ => error.to_string(),
    }
}

/// User, host and process, as labels of locks and in the log.
pub(super) fn whoami() -> String {
    let uid = rustix::process::getuid().as_raw();
    let name = ["USER", "LOGNAME"].into_iter().find_map(|variable| std::env::var(variable).ok());
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let name = name.map_or_else(String::new, |name| format!("{name} "));
    plain(&format!("{name}(uid {uid}) at {host}, pid {}", std::process::id()))
}

/// A foreign text without control characters.
pub(super) fn plain(text: &str) -> String {
    let escape = |c: char| c.is_control() || matches!(c, '\u{200b}'..='\u{206f}' | '\u{feff}');
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        if escape(c) {
            out.extend(c.escape_default())
        } else {
            out.push(c)
        }
        out
    })
}
