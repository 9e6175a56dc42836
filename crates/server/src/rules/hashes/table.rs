//! Rules that lie in Redis as hashes, found by `SCAN` and read by a script.
//!
//! Only the keys themselves show which rules there are. So all keys are scanned at the start, on
//! `RELOAD_ALL`, and after a connection was lost. Otherwise each reload reads the known hashes again, and
//! continues the scan for new ones by a bounded number of steps.

use std::collections::{BTreeMap, BTreeSet};

use tollgate::RuleSet;
use tollgate::rules::RuleError;
use tollgate::rules::bounds::MAX_RULES;
use tollgate::rules::declaration::{Declaration, Domain};
use tollgate_redis::RedisValue;

use super::rule::{FIELDS, Fields, MAX_FIELD};
use crate::rules::RulesError;
use crate::rules::connection::{RulesConnection, words};
use crate::rules::record::shown;
use crate::rules::stored::ReadMode;

/// Places that one `SCAN` inspects. A step takes Redis a fraction of a millisecond.
const COUNT: &[u8] = b"512";

/// Steps of one reload that continues a scan: some 32 000 keys.
const PARTIAL_SCAN_STEPS: usize = 64;

/// Steps of a scan of all keys: 50 million keys. Rules do not belong into a larger database.
const FULL_SCAN_STEPS: usize = 100_000;

/// Hashes that one run of the script reads.
const AT_ONCE: usize = 100;

/// Errors that are reported of one reload.
const MAX_REPORTED: usize = 20;

const READ: &str = include_str!("../lua/hashes.lua");

/// Rules by the key they lie under.
pub(crate) type Rows = BTreeMap<Vec<u8>, Fields>;

/// Keys of the hashes, and the state of the scan.
#[derive(Debug, Default)]
pub(crate) struct KnownHashes {
    /// Every key that was found and has not vanished, whatever is wrong with it.
    keys: BTreeSet<Vec<u8>>,
    /// Cursor of the scan; empty at its beginning.
    cursor: Vec<u8>,
    /// Set if a scan was completed, and the connection was not lost since.
    is_scan_complete: bool,
}

impl KnownHashes {
    /// Reads the hashes that exist now.
    pub(crate) async fn read(
        &mut self,
        connection: &mut RulesConnection,
        pattern: &str,
        mode: ReadMode,
    ) -> Result<Rows, RulesError> {
        let rows = self.scan_and_read(connection, pattern, mode).await;
        if matches!(rows, Err(RulesError::Unreachable(_))) {
            self.is_scan_complete = false;
        }
        rows
    }

    async fn scan_and_read(
        &mut self,
        connection: &mut RulesConnection,
        pattern: &str,
        mode: ReadMode,
    ) -> Result<Rows, RulesError> {
        let full = mode == ReadMode::Everything || !self.is_scan_complete;
        if full {
            self.cursor.clear();
        }
        let steps = if full { FULL_SCAN_STEPS } else { PARTIAL_SCAN_STEPS };
        for step in 0..steps {
            let from = if self.cursor.is_empty() { b"0" } else { self.cursor.as_slice() };
            let scan = [b"SCAN", from, b"MATCH", pattern.as_bytes(), b"COUNT", COUNT];
            let (next, found) = scan_reply(connection.command(&scan).await?)?;
            self.keys.extend(found);
            if self.keys.len() > MAX_RULES {
                self.keys.clear();
                self.is_scan_complete = false;
                return Err(RulesError::Unreadable(format!(
                    "{}: more than {MAX_RULES} keys in Redis match",
                    shown(pattern.as_bytes())
                )));
            }
            if next == b"0" {
                self.cursor.clear();
                self.is_scan_complete = true;
                break;
            }
            if full && step.saturating_add(1) == steps {
                return Err(RulesError::Unreadable(
                    "the database has too many keys to scan for rules".into(),
                ));
            }
            self.cursor = next;
        }
        self.read_known(connection).await
    }

    async fn read_known(&mut self, connection: &mut RulesConnection) -> Result<Rows, RulesError> {
        let keys: Vec<Vec<u8>> = self.keys.iter().cloned().collect();
        let most = MAX_FIELD.to_string();
        let args: Vec<&[u8]> =
            std::iter::once(most.as_str()).chain(FIELDS).map(str::as_bytes).collect();
        let (mut rows, mut wrong) = (Rows::new(), Vec::new());
        for part in keys.chunks(AT_ONCE) {
            let names: Vec<&[u8]> = part.iter().map(Vec::as_slice).collect();
            let RedisValue::List(found) = connection.run(READ, &names, &args).await? else {
                return Err(RulesError::Unreadable("unexpected reply from Redis".into()));
            };
            for (key, reply) in part.iter().zip(found) {
                match row(words(reply)) {
                    Ok(Some(fields)) => drop(rows.insert(key.clone(), fields)),
                    Ok(None) => drop(self.keys.remove(key)),
                    Err(why) => wrong.push(format!("{} in Redis: {why}", shown(key))),
                }
            }
        }
        if wrong.is_empty() { Ok(rows) } else { Err(joined(wrong)) }
    }
}

/// Decodes a reply of `SCAN`: the next cursor, and keys.
fn scan_reply(reply: RedisValue) -> Result<(Vec<u8>, Vec<Vec<u8>>), RulesError> {
    if let RedisValue::List(parts) = reply
        && let [RedisValue::Text(next), RedisValue::List(found)] = parts.as_slice()
    {
        let text = |value: &RedisValue| match value {
            RedisValue::Text(text) => Some(text.clone()),
            _ => None,
        };
        return Ok((next.clone(), found.iter().filter_map(text).collect()));
    }
    Err(RulesError::Unreadable("unexpected reply from Redis".into()))
}

/// Decodes the fields of one key; none if it is gone.
fn row(words: Vec<Option<Vec<u8>>>) -> Result<Option<Fields>, String> {
    let mut words = words.into_iter();
    let kind = words.next().flatten().unwrap_or_default();
    match kind.as_slice() {
        b"none" => Ok(None),
        b"hash" => match Fields::of_hash(words.collect())? {
            fields if fields.are_empty() => Err("it has no field of a rule".into()),
            fields => Ok(Some(fields)),
        },
        b"long" => {
            let field = words.next().flatten().unwrap_or_default();
            Err(format!("`{}` has more than {MAX_FIELD} bytes", shown(&field)))
        }
        _ => Err(format!("it is a {}, not a hash", shown(&kind))),
    }
}

/// Our rules of all rows, checked whole.
///
/// # Errors
///
/// All errors, each with its key.
pub(crate) fn rule_set(
    rows: &Rows,
    pattern: &str,
    domain: &str,
    version: u64,
) -> Result<RuleSet, RulesError> {
    let prefix = pattern.split('*').next().unwrap_or_default();
    let mut domain = Domain::new(domain);
    let mut wrong = Vec::new();
    for (key, fields) in rows {
        let name = String::from_utf8_lossy(key);
        let end = name.strip_prefix(prefix).unwrap_or(&name);
        match fields.rule(end) {
            Ok(rule) => domain.rules.push(rule),
            Err(why) => wrong.push(format!("{} in Redis: {why}", shown(key))),
        }
        if wrong.len() > MAX_REPORTED {
            break;
        }
    }
    if !wrong.is_empty() {
        return Err(joined(wrong));
    }
    let declared = Declaration { version, domains: vec![domain] };
    RuleSet::new(declared)
        .map_err(|errors| joined(errors.iter().map(|error| placed(error, rows)).collect()))
}

/// An error of the whole, at the key of the rule that it is about.
fn placed(error: &RuleError, rows: &Rows) -> String {
    let key = error.place().rule.and_then(|at| rows.keys().nth(at));
    match (key, error.hint()) {
        (Some(key), Some(hint)) => format!("{} in Redis: {}; {hint}", shown(key), error.message()),
        (Some(key), None) => format!("{} in Redis: {}", shown(key), error.message()),
        (None, _) => error.to_string(),
    }
}

/// All errors in one, up to [`MAX_REPORTED`].
fn joined(mut wrong: Vec<String>) -> RulesError {
    if wrong.len() > MAX_REPORTED {
        wrong.truncate(MAX_REPORTED);
        wrong.push("and more".to_owned());
    }
    RulesError::Unreadable(wrong.join("\n"))
}
