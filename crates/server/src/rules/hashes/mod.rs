//! Rules that another system keeps in Redis as hashes, one for each rule, and announces on a channel: the
//! layout of the articles (`rate_limit_config:*`).
//!
//! The server follows the hashes and never writes them. A message is `RELOAD_ALL`, or one rule as JSON
//! that is applied at once; the next look at the hashes overrides it. As hashes have no version, servers
//! agree on one: a set of the same rules has the same version on all of them.

mod rule;
mod table;

use std::sync::Arc;

use tokio::sync::Mutex;
use tollgate::redis::{Config, RedisValue};
use tollgate::rules::Format;

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
    line: RulesConnection,
    table: KnownHashes,
    /// Rows that were checked last, so that the same ones are not checked again.
    judged: Option<Rows>,
    /// Set if `judged` includes a message that the hashes have not confirmed yet.
    heard: bool,
}

impl Hashes {
    pub(super) fn new(from: &RulesFrom, config: Config) -> Self {
        Self {
            pattern: from.pattern.clone(),
            channel: from.channel.clone(),
            domain: from.domain.clone(),
            agreed: format!("tg:{{rules:{}}}:1:agreed", from.name),
            state: Mutex::new(HashesState {
                line: RulesConnection::new(config),
                table: KnownHashes::default(),
                judged: None,
                heard: false,
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
    pub(super) async fn look(
        &self,
        server: &Arc<ServerState>,
        how: ReadMode,
    ) -> Result<Option<RulesChange>, RulesError> {
        let mut state = self.state.lock().await;
        let HashesState { line, table, judged, heard } = &mut *state;
        let heard = std::mem::take(heard);
        let before = judged.take().filter(|_| how == ReadMode::Changes && !heard);
        let rows = table.read(line, &self.pattern, how).await?;
        *judged = Some(rows.clone());
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
        self.take(server, line, rows).await
    }

    /// Handles a message. An invalid one changes nothing.
    pub(super) async fn hear(
        &self,
        server: &Arc<ServerState>,
        message: &[u8],
    ) -> Result<Option<RulesChange>, RulesError> {
        let text = unquoted(&String::from_utf8_lossy(message));
        if text.trim() == "RELOAD_ALL" {
            return self.look(server, ReadMode::Everything).await;
        }
        let place =
            |why: String| RulesError::Message(format!("a message on {}: {why}", self.channel));
        let fields = Fields::of_json(&text).map_err(place)?;
        let id = fields.id().ok_or_else(|| place("`id` is missing".into()))?.to_owned();
        let mut state = self.state.lock().await;
        let HashesState { line, judged, heard, .. } = &mut *state;
        let Some(mut rows) = judged.clone() else {
            drop(state);
            return self.look(server, ReadMode::Changes).await;
        };
        let known = rows.iter().find(|(_, row)| row.id() == Some(&id)).map(|(key, _)| key.clone());
        let key = known.unwrap_or_else(|| self.pattern.replacen('*', &id, 1).into_bytes());
        rows.insert(key, fields);
        let taken = self.take(server, line, rows.clone()).await;
        if taken.is_ok() {
            (*judged, *heard) = (Some(rows), true);
        }
        taken.map_err(|error| match error {
            RulesError::Unreadable(why) => place(why),
            other => other,
        })
    }

    async fn take(
        &self,
        server: &Arc<ServerState>,
        line: &mut RulesConnection,
        rows: Rows,
    ) -> Result<Option<RulesChange>, RulesError> {
        let applies = server.limiter.rules();
        let (pattern, domain) = (self.pattern.clone(), self.domain.clone());
        // With a version that any set may have, only to see what is wrong.
        let (rows, set) =
            blocking(server, move |_| rule_set(&rows, &pattern, &domain, 1).map(|set| (rows, set)))
                .await?;
        if set.declaration().domains == applies.declaration().domains && applies.version() > 0 {
            return blocking(server, |server| {
                server.rules.settled(&server.limiter);
                Ok(None)
            })
            .await;
        }
        let version = self.version(line, &set, applies.version()).await?;
        let (pattern, domain) = (self.pattern.clone(), self.domain.clone());
        let taken = blocking(server, move |server| {
            let set = rule_set(&rows, &pattern, &domain, version)?;
            server.rules.take(&server.limiter, set)
        })
        .await?;
        if let Some(RulesChange { from, to }) = taken {
            tracing::info!(
                audit = true,
                from,
                version = to,
                by = "hashes",
                "applied rules from Redis"
            );
        }
        Ok(taken)
    }

    /// The version of a set, on which all servers agree.
    async fn version(
        &self,
        line: &mut RulesConnection,
        set: &tollgate::RuleSet,
        applies: u64,
    ) -> Result<u64, RulesError> {
        let text = tollgate::rules::write(set.declaration(), Format::Yaml);
        let digest = sha1_smol::Sha1::from(text).digest().to_string();
        let least = applies.saturating_add(1).to_string();
        let args = [digest.as_bytes(), least.as_bytes()];
        match line.run(AGREE, &[self.agreed.as_bytes()], &args).await {
            Ok(RedisValue::Text(text)) => number(&text),
            Ok(_) => Err(senseless()),
            // A user who may only read: each server counts by the clock of Redis.
            Err(_) => {
                let words = super::connection::words(line.ask(&[b"TIME"]).await?);
                let seconds =
                    number(words.first().and_then(Option::as_ref).ok_or_else(senseless)?)?;
                Ok(seconds.saturating_mul(1_000).max(applies.saturating_add(1)))
            }
        }
    }
}

fn number(text: &[u8]) -> Result<u64, RulesError> {
    String::from_utf8_lossy(text).parse().map_err(|_| senseless())
}

fn senseless() -> RulesError {
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
    let mut line = RulesConnection::new(config);
    let rows = KnownHashes::default().read(&mut line, pattern, ReadMode::Everything).await?;
    if rows.is_empty() {
        return Err(RulesError::Unreadable(format!("no key in Redis matches {pattern}")));
    }
    let set = rule_set(&rows, pattern, domain, version)?;
    Ok(tollgate::rules::write(set.declaration(), Format::Yaml))
}
