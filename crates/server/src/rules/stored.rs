//! One set of rules in Redis, as the source: one script reads it when its version has changed, another
//! replaces it by compare-and-set.
//!
//! A message on a channel announces a change, and servers poll as well; a message is only a hint.
//! `docs/keys.md` describes the stored form.

use std::sync::Arc;

use tokio::sync::Mutex;
use tollgate::RuleSet;
use tollgate::StaleRules;
use tollgate::redis::Config;
use tollgate::rules::{self, Format};

use super::connection::{self, RulesConnection};
use super::record::{self, RulesRecord, RulesRecordLookup};
use super::{RulesChange, RulesError};
use crate::settings::rules_from::RulesFrom;
use crate::state::ServerState;

/// The longest text that is kept in Redis: as much as the admin API takes.
pub(super) const MAX_STORED: usize = 8 << 20;

const READ: &str = include_str!("lua/read.lua");
const PUT: &str = include_str!("lua/put.lua");

/// A set of rules in Redis.
#[derive(Debug)]
pub(crate) struct StoredSet {
    key: String,
    previous_key: String,
    channel: String,
    /// Held from a read or write to its application, so that no older version is applied afterwards.
    state: Mutex<StoredState>,
}

#[derive(Debug)]
struct StoredState {
    connection: RulesConnection,
    /// Version and sum of the last read, as the script compares them.
    known: Vec<u8>,
}

/// Extent of a read from Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadMode {
    /// Only what differs from the last read.
    Changes,
    /// Everything, as on the first read.
    Everything,
}

impl StoredSet {
    pub(super) fn new(from: &RulesFrom, config: Config) -> Self {
        let name = |part: &str| format!("tg:{{rules:{}}}:1:{part}", from.name);
        Self {
            key: name("set"),
            previous_key: name("before"),
            channel: name("changed"),
            state: Mutex::new(StoredState {
                connection: RulesConnection::new(config),
                known: Vec::new(),
            }),
        }
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// Reads the set, and applies it if it is new and valid.
    pub(super) async fn reload(
        &self,
        server: &Arc<ServerState>,
        mode: ReadMode,
    ) -> Result<Option<RulesChange>, RulesError> {
        let mut state = self.state.lock().await;
        if mode == ReadMode::Everything {
            state.known.clear();
        }
        let known = std::mem::take(&mut state.known);
        let words = self.words(&mut state, &self.key, &known).await?;
        // An invalid set is remembered too, so that it is not read again and again. A missing set is
        // not: when it is back, it is checked anew.
        state.known = match (words.first(), words.get(1), words.get(2)) {
            (Some(Some(word)), Some(Some(version)), Some(Some(sum))) if word == b"set" => {
                [version, &b" "[..], sum].concat()
            }
            (Some(Some(word)), ..) if word == b"same" => known,
            _ => Vec::new(),
        };
        let applied = match record::read(&self.key, words) {
            Ok(RulesRecordLookup::Same) => return Ok(None),
            Ok(RulesRecordLookup::Record(record)) => {
                apply_if_changed(server, &self.key, *record).await
            }
            Ok(RulesRecordLookup::Nothing) => Err(RulesError::Unreadable(format!(
                "no rules at {} in Redis: add some with `tollgate rules put`",
                self.key
            ))),
            Err(error) => Err(error),
        };
        if applied.is_err() && server.rules.are_missing() {
            self.fall_back(server, &mut state).await;
        }
        applied
    }

    /// Applies the previous record, for a server that has never had rules.
    async fn fall_back(&self, server: &Arc<ServerState>, state: &mut StoredState) {
        if let Ok(words) = self.words(state, &self.previous_key, b"").await
            && let Ok(RulesRecordLookup::Record(record)) = record::read(&self.previous_key, words)
            && let Ok(Some(applied)) = apply_if_changed(server, &self.previous_key, *record).await
        {
            tracing::warn!(
                version = applied.to,
                "applied the previous rules, as the current ones cannot be used"
            );
        }
    }

    async fn words(
        &self,
        state: &mut StoredState,
        key: &str,
        known: &[u8],
    ) -> Result<Vec<Option<Vec<u8>>>, RulesError> {
        let most = MAX_STORED.to_string();
        let (keys, args) = ([key.as_bytes()], [known, most.as_bytes()]);
        state.connection.run(READ, &keys, &args).await.map(connection::words)
    }

    /// Replaces the set, if version `expected` is stored.
    pub(super) async fn put(
        &self,
        server: &Arc<ServerState>,
        expected: u64,
        text: String,
        format: Format,
        by: &str,
    ) -> Result<RulesChange, RulesError> {
        let (set, text) = load_checked(server, text, format)
            .await
            .inspect_err(|_| server.rules.count_rejected())?;
        // Before anything is written; it is checked again when the set is applied.
        server.rules.domain_ownership().check_free(&set, None).map_err(RulesError::Taken)?;
        let version = set.version();
        let sum = record::sum_of(version, format, &text);
        let mut state = self.state.lock().await;
        let applies = server.limiter.rules().version();
        let args = [expected.to_string(), applies.to_string(), version.to_string(), sum.clone()];
        let words = [record::name_of(format), by, &text, &self.channel];
        let args: Vec<&[u8]> =
            args.iter().map(String::as_bytes).chain(words.map(str::as_bytes)).collect();
        let keys = [self.key.as_bytes(), self.previous_key.as_bytes()];
        let reply = state.connection.run(PUT, &keys, &args).await.map_err(|error| {
            RulesError::Unwritable(format!(
                "{error}; they may have been written anyway: read them again"
            ))
        })?;
        let mut words = connection::words(reply).into_iter().flatten();
        let word = words.next().unwrap_or_default();
        let shown = String::from_utf8(words.next().unwrap_or_default()).unwrap_or_default();
        match (word.as_slice(), shown.parse::<u64>()) {
            (b"put", Ok(_)) => state.known = format!("{version} {sum}").into_bytes(),
            (b"other", Ok(present)) => return Err(self.conflict(&mut state, present).await),
            (b"stale", Ok(present)) => {
                return Err(RulesError::Stale(StaleRules { present, offered: version }));
            }
            _ => return Err(RulesError::Unwritable("unexpected reply from Redis".into())),
        }
        let from = server.limiter.rules().version();
        let applied =
            blocking(server, move |server| server.rules.apply_if_changed(&server.limiter, set))
                .await?;
        Ok(applied.unwrap_or(RulesChange { from, to: version }))
    }
}

impl StoredSet {
    /// Explains the conflict with version `present`, which the writer does not know. A set that is damaged
    /// applies nowhere, so reading the rules again would not tell its version.
    async fn conflict(&self, state: &mut StoredState, present: u64) -> RulesError {
        let found = match self.words(state, &self.key, b"").await {
            Ok(words) => record::read(&self.key, words),
            Err(_) => return RulesError::Conflict { present },
        };
        let wrong = match found {
            Ok(RulesRecordLookup::Record(record)) => {
                let key = self.key.clone();
                let loading = tokio::task::spawn_blocking(move || record::load(&key, &record));
                loading.await.ok().and_then(Result::err)
            }
            Ok(_) => None,
            Err(error) => Some(error),
        };
        match wrong {
            Some(wrong) => RulesError::Damaged { present, why: wrong.to_string() },
            None => RulesError::Conflict { present },
        }
    }
}

/// Checks rules whole, off the threads that serve.
async fn load_checked(
    server: &Arc<ServerState>,
    text: String,
    format: Format,
) -> Result<(RuleSet, String), RulesError> {
    let length = text.len();
    if length > MAX_STORED {
        let why = format!("rules of {length} bytes are too long for Redis: {MAX_STORED} at most");
        return Err(RulesError::Unwritable(why));
    }
    let load = move || rules::load(&text, format).map(|set| (set, text));
    blocking(server, |_| load().map_err(RulesError::Invalid)).await
}

async fn apply_if_changed(
    server: &Arc<ServerState>,
    key: &str,
    record: RulesRecord,
) -> Result<Option<RulesChange>, RulesError> {
    let key = key.to_owned();
    blocking(server, move |server| {
        let set = record::load(&key, &record)?;
        let applied = server.rules.apply_if_changed(&server.limiter, set);
        if let Ok(Some(change)) = &applied {
            let (from, to, by) = (change.from, change.to, record::shown(record.by.as_bytes()));
            let at_us = record.at_us;
            tracing::info!(audit = true, from, version = to, by, at_us, "applied rules from Redis");
        }
        applied
    })
    .await
}

/// Runs blocking work, off the threads that serve.
pub(super) async fn blocking<T: Send + 'static>(
    server: &Arc<ServerState>,
    work: impl FnOnce(&ServerState) -> Result<T, RulesError> + Send + 'static,
) -> Result<T, RulesError> {
    let server = Arc::clone(server);
    let done = tokio::task::spawn_blocking(move || work(&server)).await;
    done.unwrap_or_else(|_| Err(RulesError::Unreadable("cannot read the rules".into())))
}
