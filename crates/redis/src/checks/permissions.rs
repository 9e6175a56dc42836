//! The check of permissions: tries the commands of the scripts on two keys of its own.
//!
//! `ACL DRYRUN` would check without executing, but a user with the recommended permissions may not run
//! it.
//!
//! The permissions of locks are checked only where [`Config::locks`] says that locks are used. Their
//! commands are tried on the check's own keys, and the names on an unused lock, its record and its
//! channel. `SUBSCRIBE` is not tried, as it would turn the connection into a subscriber.

use super::Warning;
use crate::config::Config;
use crate::link::{Connection, ConnectionClosed, Value, command};
use crate::lock::names::{CHANNEL, RELEASE_RECORD};
use crate::random;

/// Each command that the scripts for limits use, once. A script that begins to use another one adds it here, and
/// the line that is recommended to administrators follows.
const LIMIT_COMMANDS: &[&str] = &[
    "time",
    "set $1 0 px 1000",
    "get $1",
    "mget $1",
    "zadd $2 0 a",
    "pexpire $2 1000",
    "zcard $2",
    "zrange $2 0 0 withscores",
    "zcount $2 0 0",
    "zrangebyscore $2 0 0",
    "zrevrangebyscore $2 0 0",
    "zrem $2 b",
    "zremrangebyrank $2 1 1",
    "zremrangebyscore $2 1 1",
    "unlink $1 $2",
];
/// Each command that only scripts of locks use, once; in an order that leaves nothing behind.
const LOCK_COMMANDS: &[&str] = &[
    "hset $1 f 0",
    "persist $1",
    "pexpire $1 1000",
    "hincrby $1 f 1",
    "hget $1 f",
    "hgetall $1",
    "hlen $1",
    "pttl $1",
    "type $1",
    "strlen $2",
    "scan 0 match $1 count 1",
    "del $1",
    "publish $3 0",
    "pubsub numsub $3",
];
/// Commands of the scripts for limits that those for locks use too.
const SHARED_COMMANDS: &[&str] = &["time", "set", "get", "mget", "pexpire", "unlink"];
/// Commands that locks use outside of scripts.
const LOCK_LINK_COMMANDS: &[&str] = &["subscribe", "unsubscribe", "wait"];
/// Commands that the link itself uses.
const LINK_COMMANDS: &[&str] = &["ping", "eval", "evalsha", "info"];

const SCRIPT: &str = include_str!("permissions.lua");

pub(super) async fn check(
    connection: &Connection,
    config: &Config,
) -> Result<Vec<Warning>, ConnectionClosed> {
    let mut found = PermissionProbe::default();
    found.note("ping", &connection.request(command(&[b"PING"])).await?);
    // No script has this name, so an answer other than NOSCRIPT says something about the user.
    let nothing = "0".repeat(40);
    let evalsha = command(&[b"EVALSHA", nothing.as_bytes(), b"0"]);
    found.note("evalsha", &connection.request(evalsha).await?);

    let id = random::bits();
    let [first, second] = own_keys(id);
    found.note_all(&connection.request(eval(&[&first, &second], LIMIT_COMMANDS)).await?);
    let mut warnings = found.warnings(config);
    if let Some(names) = &config.locks {
        warnings.extend(check_locks(connection, config, names).await?);
    }
    Ok(warnings)
}

async fn check_locks(
    connection: &Connection,
    config: &Config,
    names: &str,
) -> Result<Option<Warning>, ConnectionClosed> {
    let mut found = PermissionProbe::default();
    let id = random::bits();
    let [first, second] = own_keys(id);
    let channel = format!("{CHANNEL}:{{tg-check-{id:x}}}");
    found.note_all(&connection.request(eval(&[&first, &second, &channel], LOCK_COMMANDS)).await?);
    // A name without `*` may be a lock that is held: it is only read.
    let lock = names.replace('*', &format!("tg-check-{id:x}"));
    let touch = if lock == names { "pttl $1" } else { "unlink $1" };
    let record = format!("{RELEASE_RECORD}:{{tg-check-{id:x}}}:0");
    found.note_all(&connection.request(eval(&[&lock, &record], &[touch, "unlink $2"])).await?);
    found.note("wait", &connection.request(command(&[b"WAIT", b"0", b"1"])).await?);
    Ok(found.lock_warning(config))
}

/// Returns two keys that nobody else has.
fn own_keys(id: u64) -> [String; 2] {
    [1, 2].map(|number| format!("tg:{{check}}:{id:x}:{number}"))
}

fn eval(keys: &[&str], lines: &[&str]) -> Vec<u8> {
    let count = keys.len().to_string();
    let head = ["EVAL", SCRIPT, count.as_str()];
    let words = head.iter().chain(keys).chain(lines).map(|word| word.as_bytes());
    command(&words.collect::<Vec<_>>())
}

#[derive(Debug, Default, PartialEq, Eq)]
struct PermissionProbe {
    commands: Vec<String>,
    keys: bool,
    channels: bool,
    other: Option<String>,
}

impl PermissionProbe {
    /// Notes the reply of the script.
    fn note_all(&mut self, answer: &Value) {
        let Value::Array(failed) = answer else { return self.note("eval", answer) };
        for pair in failed.chunks_exact(2) {
            if let [Value::String(name), Value::String(error)] = pair {
                let error = String::from_utf8_lossy(error);
                self.note_error(&String::from_utf8_lossy(name), &error);
            }
        }
    }

    fn note(&mut self, command: &str, answer: &Value) {
        if let Value::Error(error) = answer {
            self.note_error(command, &error.to_string());
        }
    }

    /// Notes an error. Its words differ between Redis 6.2, 7.0 and later, and within a script.
    fn note_error(&mut self, command: &str, error: &str) {
        let says = |part| error.contains(part);
        if says("NOSCRIPT") {
            // The user may run scripts, which is all that was tried.
        } else if says("can't access at least one of the keys")
            || says("to access a key")
            || says("to access one of the keys")
        {
            self.keys = true;
        } else if says("can't publish to the channel")
            || says("to access a channel")
            || says("to access one of the channels")
        {
            self.channels = true;
        } else if says("can't run this command") || says("NOPERM") || says("no permissions to run")
        {
            if !self.commands.iter().any(|known| known == command) {
                self.commands.push(command.to_owned());
            }
        } else {
            // A replica or a full memory refuses some commands to everybody.
            self.other.get_or_insert_with(|| error.to_owned());
        }
    }

    fn warnings(self, config: &Config) -> Vec<Warning> {
        let mut warnings = Vec::new();
        if self.keys || !self.commands.is_empty() {
            let (commands, keys) = (self.commands, self.keys);
            warnings.push(Warning::MissingPermissions { commands, keys, acl: acl(config) });
        }
        if let Some(answer) = self.other {
            warnings.push(Warning::Unchecked { what: "the user's permissions", answer });
        }
        warnings
    }

    fn lock_warning(self, config: &Config) -> Option<Warning> {
        let Self { commands, keys, channels, .. } = self;
        let lacks = keys || channels || !commands.is_empty();
        lacks.then(|| {
            let acl = lock_acl(config);
            Warning::MissingLockPermissions { commands, keys, channels, acl }
        })
    }
}

/// Returns the ACL line for a user with exactly the permissions that limits need.
fn acl(config: &Config) -> String {
    acl_line(config, "~tg:*", "", LINK_COMMANDS.iter().chain(LIMIT_COMMANDS))
}

/// Returns the ACL line for a user with exactly the permissions that locks need. Scripts name the
/// channel among their keys, as Redisson's do, to keep it in the same slot: it must be allowed as a
/// key, too.
fn lock_acl(config: &Config) -> String {
    let names = config.locks.as_deref().unwrap_or("*");
    let keys = format!("~tg:lock:* ~tg:{{check}}:* ~{names} ~{RELEASE_RECORD}:* ~{CHANNEL}:*");
    let only = LOCK_COMMANDS.iter().filter(|line| !line.starts_with("pexpire"));
    let commands =
        LINK_COMMANDS.iter().chain(SHARED_COMMANDS).chain(only).chain(LOCK_LINK_COMMANDS);
    acl_line(config, &keys, &format!(" &{CHANNEL}:*"), commands)
}

fn acl_line<'a>(
    config: &Config,
    keys: &str,
    channels: &str,
    commands: impl Iterator<Item = &'a &'static str>,
) -> String {
    let user = config.user.as_deref().unwrap_or("tollgate");
    let mut line =
        format!("ACL SETUSER {user} on ><password> resetkeys {keys} resetchannels{channels} -@all");
    let select = (config.db != 0).then_some(&"select");
    for command in commands.chain(select) {
        let name = command.split_once(' ').map_or(*command, |(name, _)| name);
        line.push_str(" +");
        line.push_str(if name == "pubsub" { "pubsub|numsub" } else { name });
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_each_command_once() {
        let config = Config::new("redis://alice:hush@localhost/2").unwrap();

        assert_eq!(
            acl(&config),
            "ACL SETUSER alice on ><password> resetkeys ~tg:* resetchannels -@all +ping +eval \
             +evalsha +info +time +set +get +mget +zadd +pexpire +zcard +zrange +zcount \
             +zrangebyscore +zrevrangebyscore +zrem +zremrangebyrank +zremrangebyscore +unlink \
             +select"
        );
    }

    fn called(script: &str) -> Vec<String> {
        let calls = script.split("call('").skip(1);
        let names = calls.filter_map(|rest| rest.split_once('\''));
        names.map(|(name, _)| name.to_lowercase()).collect()
    }

    fn first_words<'a>(lines: &[&'a str]) -> Vec<&'a str> {
        lines.iter().filter_map(|line| line.split(' ').next()).collect()
    }

    #[test]
    fn every_command_of_the_script_is_tried() {
        let mut used = called(crate::script::SCRIPT);
        used.sort();
        used.dedup();
        let mut tried = first_words(LIMIT_COMMANDS);
        tried.sort_unstable();

        assert_eq!(used, tried);
    }

    #[test]
    fn every_command_of_the_locks_is_tried() {
        let steps = crate::script::Step::ALL.iter();
        let mut used: Vec<String> = steps.flat_map(|step| called(step.text())).collect();
        // `publish` is an argument of a script, and the link removes release records.
        used.extend(["publish", "unlink"].map(str::to_owned));
        used.sort();
        used.dedup();
        let mut tried = [first_words(LOCK_COMMANDS), SHARED_COMMANDS.to_vec()].concat();
        tried.sort_unstable();
        tried.dedup();

        assert_eq!(used, tried);
        let limits = first_words(LIMIT_COMMANDS);
        assert!(
            SHARED_COMMANDS.iter().all(|name| limits.contains(name)),
            "these were tried before"
        );
    }

    /// The line that the documents show.
    #[test]
    fn the_line_for_locks_is_that_of_the_documents() {
        let config = Config::new("redis://localhost").unwrap().locks("order:*");
        let line = lock_acl(&config);
        assert_eq!(
            line,
            "ACL SETUSER tollgate on ><password> resetkeys ~tg:lock:* ~tg:{check}:* ~order:* \
             ~redisson_unlock_latch:* ~redisson_lock__channel:* resetchannels \
             &redisson_lock__channel:* -@all +ping +eval +evalsha +info +time +set +get +mget +pexpire +unlink +hset +persist +hincrby +hget \
             +hgetall +hlen +pttl +type +strlen +scan +del +publish +pubsub|numsub +subscribe \
             +unsubscribe +wait"
        );
        let security = include_str!("../../../../SECURITY.md");
        let words = security.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&line), "SECURITY.md shows another line");
    }

    #[test]
    fn refusals_are_recognised_in_the_words_of_every_version() {
        let commands = [
            "NOPERM this user has no permissions to run the 'eval' command or its subcommand",
            "NOPERM User a has no permissions to run the 'eval' command",
            "ERR The user executing the script can't run this command or subcommand",
            "ERR ACL failure in script: User a has no permissions to run the 'eval' command",
        ];
        let keys = [
            "NOPERM this user has no permissions to access one of the keys used as arguments",
            "NOPERM No permissions to access a key",
            "ERR The user executing the script can't access at least one of the keys mentioned",
            "ERR ACL failure in script: No permissions to access a key",
        ];
        let channels = [
            "NOPERM this user has no permissions to access one of the channels used as arguments",
            "ERR The user executing the script can't publish to the channel mentioned in the command",
            "ERR ACL failure in script: No permissions to access a channel",
        ];
        let lacks = |commands: &[&str], keys, channels| PermissionProbe {
            commands: commands.iter().map(ToString::to_string).collect(),
            keys,
            channels,
            other: None,
        };
        for (errors, expected) in [
            (&commands[..], lacks(&["eval"], false, false)),
            (&keys, lacks(&[], true, false)),
            (&channels, lacks(&[], false, true)),
        ] {
            for error in errors {
                let mut found = PermissionProbe::default();
                found.note_error("eval", error);
                assert_eq!(found, expected, "{error}");
            }
        }
    }
}
