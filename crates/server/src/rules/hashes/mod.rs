//! Rules that another system keeps in Redis as hashes, one for each rule, and announces on a channel: the
//! layout `rate_limit_config:*` of tutorials on rate limiting with Redis, with the fields `id`, `ruleName`,
//! `limitType`, `limitTarget`, `limitCount`, `timeWindow`, `enabled` and `strategy`.
//!
//! The server follows the hashes and never writes them. A message is `RELOAD_ALL`, or one rule as JSON
//! that is applied at once; the next reload of the hashes overrides it. As hashes have no version, servers
//! agree on one: a set of the same rules has the same version on all of them.

mod rule;
mod table;

use std::sync::Arc;

use tokio::sync::Mutex;
use tollgate::redis::Config;
use tollgate::rules::Format;
use tollgate_redis::RedisValue;

use self::rule::{Fields, unquoted};
use self::table::{KnownHashes, Rows, rule_set};
use super::connection::RulesConnection;
use super::record::shown;
use super::stored::{ReadMode, blocking};
use super::{RulesChange, RulesError};
use crate::settings::rules_from::RulesFrom;
use crate::state::ServerState;

const AGREE: &str = include_str!("../lua/agree.lua");

/// Hashes that are followed.
#[derive(Debug)]
pub(crate) struct Hashes {
    pattern: String,
    channel: String,
    domain: String,
    agreed: String,
    state: Mutex<HashesState>,
}

#[derive(Debug)]
struct HashesState {
    connection: RulesConnection,
    table: KnownHashes,
    /// Rows that were checked last, so that the same ones are not checked again.
    last_checked: Option<Rows>,
    /// Set if `last_checked` includes a message that the hashes have not confirmed yet.
    unconfirmed: bool,
}

impl Hashes {
    pub(super) fn new(from: &RulesFrom, config: Config) -> Self {
        Self {
            pattern: from.pattern.clone(),
            channel: from.channel.clone(),
            domain: from.domain.clone(),
            agreed: format!("tg:{{rules:{}}}:1:agreed", from.name),
            state: Mutex::new(HashesState {
                connection: RulesConnection::new(config),
                table: KnownHashes::default(),
                last_checked: None,
                unconfirmed: false,
            }),
        }
    }

    pub(super) fn pattern(&self) -> &str {
        &self.pattern
    }

    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// Reads the hashes, and applies them if they are new and valid.
    pub(super) async fn reload(
        &self,
        server: &Arc<ServerState>,
        mode: ReadMode,
    ) -> Result<Option<RulesChange>, RulesError> {
        let mut state = self.state.lock().await;
        let HashesState { connection, table, last_checked, unconfirmed } = &mut *state;
        let unconfirmed = std::mem::take(unconfirmed);
        let before = last_checked.take().filter(|_| mode == ReadMode::Changes && !unconfirmed);
        let rows = table.read(connection, &self.pattern, mode).await?;
        *last_checked = Some(rows.clone());
        if before.as_ref() == Some(&rows) {
            return Ok(None);
        }
        if rows.is_empty() {
            // A flush of Redis must not lift every limit. `enabled: false` ends a rule.
            return Err(RulesError::Unreadable(format!(
                "no key in Redis matches {}",
                shown(self.pattern.as_bytes())
            )));
        }
        self.apply_if_changed(server, connection, rows).await
    }

    /// Handles a message. An invalid one changes nothing.
    pub(super) async fn handle_message(
        &self,
        server: &Arc<ServerState>,
        message: &[u8],
    ) -> Result<Option<RulesChange>, RulesError> {
        let text = unquoted(&String::from_utf8_lossy(message));
        if text.trim() == "RELOAD_ALL" {
            return self.reload(server, ReadMode::Everything).await;
        }
        let place =
            |why: String| RulesError::Message(format!("a message on {}: {why}", self.channel));
        let fields = Fields::of_json(&text).map_err(place)?;
        let id = fields.id().ok_or_else(|| place("`id` is missing".into()))?.to_owned();
        let mut state = self.state.lock().await;
        let HashesState { connection, last_checked, unconfirmed, .. } = &mut *state;
        let Some(mut rows) = last_checked.clone() else {
            drop(state);
            return self.reload(server, ReadMode::Changes).await;
        };
        let known = rows.iter().find(|(_, row)| row.id() == Some(&id)).map(|(key, _)| key.clone());
        let key = known.unwrap_or_else(|| self.pattern.replacen('*', &id, 1).into_bytes());
        rows.insert(key, fields);
        let applied = self.apply_if_changed(server, connection, rows.clone()).await;
        if applied.is_ok() {
            (*last_checked, *unconfirmed) = (Some(rows), true);
        }
        applied.map_err(|error| match error {
            RulesError::Unreadable(why) => place(why),
            other => other,
        })
    }

    async fn apply_if_changed(
        &self,
        server: &Arc<ServerState>,
        connection: &mut RulesConnection,
        rows: Rows,
    ) -> Result<Option<RulesChange>, RulesError> {
        let current = server.limiter.rules();
        let (pattern, domain) = (self.pattern.clone(), self.domain.clone());
        // The version does not matter yet: this only finds errors.
        let (rows, set) =
            blocking(server, move |_| rule_set(&rows, &pattern, &domain, 1).map(|set| (rows, set)))
                .await?;
        if set.declaration().domains == current.declaration().domains && current.version() > 0 {
            return blocking(server, |server| {
                server.rules.note_applied(&server.limiter);
                Ok(None)
            })
            .await;
        }
        let version = self.version(connection, &set, current.version()).await?;
        let (pattern, domain) = (self.pattern.clone(), self.domain.clone());
        let applied = blocking(server, move |server| {
            let set = rule_set(&rows, &pattern, &domain, version)?;
            server.rules.apply_if_changed(&server.limiter, set)
        })
        .await?;
        if let Some(RulesChange { from, to }) = applied {
            tracing::info!(
                audit = true,
                from,
                version = to,
                by = "hashes",
                "applied rules from Redis"
            );
        }
        Ok(applied)
    }

    /// The version of a set, on which all servers agree.
    async fn version(
        &self,
        connection: &mut RulesConnection,
        set: &tollgate::RuleSet,
        current: u64,
    ) -> Result<u64, RulesError> {
        let text = tollgate::rules::write(set.declaration(), Format::Yaml);
        let digest = sha1_smol::Sha1::from(text).digest().to_string();
        let least = current.saturating_add(1).to_string();
        let args = [digest.as_bytes(), least.as_bytes()];
        match connection.run(AGREE, &[self.agreed.as_bytes()], &args).await {
            Ok(RedisValue::Text(text)) => number(&text),
            Ok(_) => Err(unexpected_reply()),
            // A user who may only read: each server counts by the clock of Redis.
            Err(_) => {
                let words = super::connection::words(connection.command(&[b"TIME"]).await?);
                let seconds =
                    number(words.first().and_then(Option::as_ref).ok_or_else(unexpected_reply)?)?;
                Ok(seconds.saturating_mul(1_000).max(current.saturating_add(1)))
            }
        }
    }
}

fn number(text: &[u8]) -> Result<u64, RulesError> {
    String::from_utf8_lossy(text).parse().map_err(|_| unexpected_reply())
}

fn unexpected_reply() -> RulesError {
    RulesError::Unreadable("unexpected reply from Redis".into())
}

/// Reads the hashes of a Redis once, as rules of ours.
///
/// # Errors
///
/// When they cannot be read, or are wrong.
pub(crate) async fn import(
    config: Config,
    pattern: &str,
    domain: &str,
    version: u64,
) -> Result<String, RulesError> {
    let mut connection = RulesConnection::new(config);
    let rows = KnownHashes::default().read(&mut connection, pattern, ReadMode::Everything).await?;
    if rows.is_empty() {
        return Err(RulesError::Unreadable(format!("no key in Redis matches {pattern}")));
    }
    let set = rule_set(&rows, pattern, domain, version)?;
    Ok(tollgate::rules::write(set.declaration(), Format::Yaml))
}
