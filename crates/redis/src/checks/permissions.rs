//! Whether the user may do what the scripts do: by doing it, to two keys of the check's own.
//!
//! `ACL DRYRUN` would tell without doing, but is a right that such a user does not have.

use super::Warning;
use crate::chance;
use crate::config::Config;
use crate::link::{Gone, Value, Wire, command};

/// Each command that a script uses, once. A script that begins to use another one adds it here, and
/// the line that is recommended to administrators follows.
const USED: &[&str] = &[
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
/// What the link itself uses.
const LINK: &[&str] = &["ping", "eval", "evalsha", "info"];

const SCRIPT: &str = include_str!("permissions.lua");

pub(super) async fn look(wire: &Wire, config: &Config) -> Result<Vec<Warning>, Gone> {
    let mut found = Found::default();
    found.note("ping", &wire.ask(command(&[b"PING"])).await?);
    // No script has this name, so an answer other than NOSCRIPT says something about the user.
    let nothing = "0".repeat(40);
    let evalsha = command(&[b"EVALSHA", nothing.as_bytes(), b"0"]);
    found.note("evalsha", &wire.ask(evalsha).await?);

    let tag = chance::bits();
    let key = |number| format!("tg:{{check}}:{tag:x}:{number}").into_bytes();
    let [first, second] = [key(1), key(2)];
    let mut eval: Vec<&[u8]> = vec![b"EVAL", SCRIPT.as_bytes(), b"2", &first, &second];
    eval.extend(USED.iter().map(|line| line.as_bytes()));
    match wire.ask(command(&eval)).await? {
        Value::Array(failed) => {
            for pair in failed.chunks_exact(2) {
                if let [Value::String(name), Value::String(error)] = pair {
                    let error = String::from_utf8_lossy(error);
                    found.note_error(&String::from_utf8_lossy(name), &error);
                }
            }
        }
        other => found.note("eval", &other),
    }
    Ok(found.warnings(config))
}

#[derive(Debug, Default)]
struct Found {
    commands: Vec<String>,
    keys: bool,
    other: Option<String>,
}

impl Found {
    fn note(&mut self, command: &str, answer: &Value) {
        if let Value::Error(error) = answer {
            self.note_error(command, &error.to_string());
        }
    }

    /// Redis words it differently in 6.2, 7.0 and since, and inside a script or not.
    fn note_error(&mut self, command: &str, error: &str) {
        let says = |part| error.contains(part);
        if says("NOSCRIPT") {
            // It may run scripts, which is all that was asked.
        } else if says("can't access at least one of the keys")
            || says("to access a key")
            || says("to access one of the keys")
        {
            self.keys = true;
        } else if says("can't run this command") || says("NOPERM") || says("no permissions to run")
        {
            self.commands.push(command.to_owned());
        } else {
            // A replica or a full memory refuses some of this to everybody.
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
            warnings.push(Warning::Unchecked { what: "what the user may do", answer });
        }
        warnings
    }
}

/// The line that creates a user who may do this and nothing else.
fn acl(config: &Config) -> String {
    let user = config.user.as_deref().unwrap_or("tollgate");
    let mut line = format!("ACL SETUSER {user} on ><password> resetkeys ~tg:* resetchannels -@all");
    let select = (config.db != 0).then_some("select");
    for command in LINK.iter().chain(USED).copied().chain(select) {
        let name = command.split_once(' ').map_or(command, |(name, _)| name);
        line.push_str(" +");
        line.push_str(name);
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

    #[test]
    fn every_command_of_the_script_is_tried() {
        let script = crate::script::SCRIPT;
        let calls = script.split("call('").skip(1);
        let mut used: Vec<String> = calls
            .filter_map(|rest| rest.split_once('\''))
            .map(|(name, _)| name.to_lowercase())
            .collect();
        used.sort();
        used.dedup();
        let mut tried: Vec<&str> = USED.iter().filter_map(|line| line.split(' ').next()).collect();
        tried.sort_unstable();

        assert_eq!(used, tried);
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
        for error in commands {
            let mut found = Found::default();
            found.note_error("eval", error);
            assert_eq!((found.commands, found.keys), (vec!["eval".to_owned()], false), "{error}");
        }
        for error in keys {
            let mut found = Found::default();
            found.note_error("eval", error);
            assert_eq!((found.commands, found.keys), (vec![], true), "{error}");
        }
    }
}
