//! Checks of the server at the first connection: things that work today and hurt later. No caller waits
//! for them.

mod permissions;
mod version;

use std::fmt;

use tokio::time::timeout;

use self::version::Server;
use crate::config::Config;
use crate::error::{ConnectError, ConnectErrorKind};
use crate::link::{Connection, ConnectionClosed, Value, command};

/// A finding about the server: it works, but not as it should. `Display` says what is wrong, why it
/// matters and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The server evicts keys when its memory is full, and the limits with them.
    Evicts {
        /// `maxmemory-policy`.
        policy: String,
        /// `maxmemory` in bytes.
        maxmemory: u64,
    },
    /// By its version, the server's Lua interpreter has known vulnerabilities.
    VulnerableLua {
        /// The server's name and version, such as `redis 7.0.15`.
        server: String,
    },
    /// The user lacks permissions that the scripts need. Most calls will be refused.
    MissingPermissions {
        /// Commands the user may not use, in lower case.
        commands: Vec<String>,
        /// The keys `tg:*` are forbidden too.
        keys: bool,
        /// An ACL line with the missing permissions.
        acl: String,
    },
    /// The user lacks permissions that locks need. Checked only with [`Config::locks`].
    MissingLockPermissions {
        /// Commands the user may not use, in lower case.
        commands: Vec<String>,
        /// The keys of locks or of their release records are forbidden too.
        keys: bool,
        /// The channels of locks are forbidden: releases are not announced, and waiters poll.
        channels: bool,
        /// An ACL line with the missing permissions.
        acl: String,
    },
    /// Something could not be checked. Managed services tend to forbid it.
    Unchecked {
        /// The thing that remains unknown.
        what: &'static str,
        /// The server's reply.
        answer: String,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Evicts { policy, maxmemory } => write!(
                f,
                "at {maxmemory} bytes this redis evicts keys by {policy}: a counter that is \
                 evicted starts anew and admits too much; set maxmemory-policy to noeviction, or \
                 give the limits a redis of their own"
            ),
            Self::VulnerableLua { server } => write!(
                f,
                "{server} has known holes in its Lua interpreter (CVE-2024-46981, CVE-2025-46817, \
                 -46818, -46819, -49844) through which a user who may run scripts can run code; they are \
                 fixed in redis 6.2.20, 7.2.11, 7.4.6, 8.0.4 and 8.2.2 and valkey 7.2.11, \
                 8.0.6 and 8.1.4. A distribution may have fixed them without changing the number: \
                 then its changelog names them, and this can be ignored"
            ),
            Self::MissingPermissions { commands, keys, acl } => write!(
                f,
                "the user may not {}, without which no limit can be decided; this ACL line is \
                 enough: {acl}",
                missing(commands, &[(*keys, "touch keys tg:*")])
            ),
            Self::MissingLockPermissions { commands, keys, channels, acl } => write!(
                f,
                "the user may not {}, which locks need; this ACL line is enough: {acl}",
                missing(
                    commands,
                    &[(*keys, "touch the keys of locks"), (*channels, "use the channels of locks")]
                )
            ),
            Self::Unchecked { what, answer } => write!(
                f,
                "{what} could not be checked: the server says {answer:?}; check it yourself"
            ),
        }
    }
}

/// Lists missing permissions: the commands, and those of the others that are missing.
fn missing(commands: &[String], others: &[(bool, &str)]) -> String {
    let commands = (!commands.is_empty()).then(|| format!("use {}", commands.join(", ")));
    let others =
        others.iter().filter(|(is_missing, _)| *is_missing).map(|(_, text)| text.to_string());
    commands.into_iter().chain(others).collect::<Vec<_>>().join(" nor ")
}

/// Runs all checks.
///
/// # Errors
///
/// When the server is too old for the scripts, or stops answering.
pub(crate) async fn run(
    connection: &Connection,
    config: &Config,
) -> Result<Vec<Warning>, ConnectError> {
    let address = &config.address;
    let silent = || {
        ConnectError::unreachable(format!("redis at {address} stopped answering during the checks"))
    };
    let checks = check(connection, config, |ConnectionClosed| silent());
    timeout(config.connect_timeout, checks).await.unwrap_or_else(|_| Err(silent()))
}

async fn check(
    connection: &Connection,
    config: &Config,
    silent: impl Fn(ConnectionClosed) -> ConnectError,
) -> Result<Vec<Warning>, ConnectError> {
    let mut warnings = Vec::new();
    match info(connection, "server").await.map_err(&silent)? {
        Ok(text) => match Server::read(&text) {
            Some(server) if server.is_too_old() => {
                let message = format!(
                    "{server} at {} is too old: the scripts use commands of redis 6.2",
                    config.address
                );
                return Err(ConnectError::new(ConnectErrorKind::Unsupported, message));
            }
            Some(server) if server.is_vulnerable() => {
                warnings.push(Warning::VulnerableLua { server: server.to_string() });
            }
            Some(_) => {}
            None => warnings.push(unchecked("the version", "no version".to_owned())),
        },
        Err(answer) => warnings.push(unchecked("the version", answer)),
    }
    match info(connection, "memory").await.map_err(&silent)? {
        Ok(text) => warnings.extend(eviction(&text)),
        Err(answer) => warnings.push(unchecked("the eviction of keys", answer)),
    }
    warnings.extend(permissions::check(connection, config).await.map_err(&silent)?);
    Ok(warnings)
}

fn unchecked(what: &'static str, answer: String) -> Warning {
    Warning::Unchecked { what, answer }
}

/// Returns a section of `INFO`, or the error reply.
async fn info(
    connection: &Connection,
    section: &str,
) -> Result<Result<String, String>, ConnectionClosed> {
    Ok(match connection.request(command(&[b"INFO", section.as_bytes()])).await? {
        Value::String(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
        Value::Error(error) => Err(error.to_string()),
        _ => return Err(ConnectionClosed),
    })
}

/// Returns the value of a field of `INFO`.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
}

fn eviction(info: &str) -> Option<Warning> {
    let (Some(policy), Some(maxmemory)) =
        (field(info, "maxmemory_policy"), field(info, "maxmemory"))
    else {
        return Some(unchecked("the eviction of keys", "no policy".to_owned()));
    };
    let maxmemory = maxmemory.parse().unwrap_or(0);
    // All our keys have a time to live, so `volatile-…` finds them as well.
    let evicts = policy.starts_with("allkeys-") || policy.starts_with("volatile-");
    (evicts && maxmemory > 0).then(|| Warning::Evicts { policy: policy.to_owned(), maxmemory })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_full_memory_evicts() {
        let info = |policy: &str, maxmemory: u64| {
            format!("# Memory\r\nmaxmemory:{maxmemory}\r\nmaxmemory_policy:{policy}\r\n")
        };
        let evicts =
            |policy: &str| Some(Warning::Evicts { policy: policy.to_owned(), maxmemory: 9 });

        assert_eq!(eviction(&info("allkeys-lru", 9)), evicts("allkeys-lru"));
        assert_eq!(eviction(&info("volatile-ttl", 9)), evicts("volatile-ttl"));
        assert_eq!(eviction(&info("volatile-ttl", 0)), None);
        assert_eq!(eviction(&info("noeviction", 9)), None);
        assert!(matches!(eviction("# Memory\r\n"), Some(Warning::Unchecked { .. })));
    }

    #[test]
    fn a_warning_says_what_is_missing() {
        let missing = |commands: &[&str], keys| Warning::MissingPermissions {
            commands: commands.iter().map(ToString::to_string).collect(),
            keys,
            acl: "ACL".to_owned(),
        };
        let end = ", without which no limit can be decided; this ACL line is enough: ACL";

        assert_eq!(
            missing(&["get", "set"], true).to_string(),
            format!("the user may not use get, set nor touch keys tg:*{end}")
        );
        assert_eq!(
            missing(&[], true).to_string(),
            format!("the user may not touch keys tg:*{end}")
        );
    }
}
