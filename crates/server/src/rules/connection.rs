//! The connection to the Redis that holds the rules. It is not the store's connection, because long and
//! slow answers must not hold up decisions.

use std::time::Duration;

use tollgate::redis::{Config, ConnectError};
use tollgate::{StoreError, StoreErrorKind};
use tollgate_redis::{AuxiliaryConnection, RedisValue};

use super::RulesError;
use super::stored::MAX_STORED;
use crate::settings::Settings;
use crate::settings::rules_from::RulesFrom;

/// Time limit for an answer of Redis. Rules of megabytes take a while.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// The longest answer: a whole set with its framing.
const MAX_ANSWER: usize = MAX_STORED.saturating_add(1 << 16);

/// A connection that is made when it is needed.
#[derive(Debug)]
pub(crate) struct RulesConnection {
    config: Config,
    connection: Option<AuxiliaryConnection>,
}

/// Connection settings for the Redis that holds the rules.
pub(super) fn config(settings: &Settings, from: &RulesFrom) -> Result<Config, ConnectError> {
    if let Some(url) = &from.url {
        return Config::new(url.expose());
    }
    let config = Config::new(settings.store.expose())?;
    Ok(match &settings.store_password {
        Some(password) => config.password(password.expose()),
        None => config,
    })
}

impl RulesConnection {
    pub(crate) const fn new(config: Config) -> Self {
        Self { config, connection: None }
    }

    /// Runs a script.
    pub(super) async fn run(
        &mut self,
        script: &'static str,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<RedisValue, RulesError> {
        let reply = self.connection().await?.run_script(script, keys, args).await;
        self.check_reply(reply)
    }

    /// Runs a command.
    pub(super) async fn command(&mut self, words: &[&[u8]]) -> Result<RedisValue, RulesError> {
        let reply = self.connection().await?.command(words).await;
        self.check_reply(reply)
    }

    /// The open connection, which is made if there is none.
    async fn connection(&mut self) -> Result<&AuxiliaryConnection, RulesError> {
        if self.connection.as_mut().is_some_and(AuxiliaryConnection::is_closed) {
            self.connection = None;
        }
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => AuxiliaryConnection::connect(&self.config, MAX_ANSWER, PATIENCE)
                .await
                .map_err(|error| {
                    RulesError::Unreachable(format!("cannot read the rules in Redis: {error}"))
                })?,
        };
        Ok(self.connection.insert(connection))
    }

    /// Converts the error of a command, and drops the connection after a timeout.
    fn check_reply(
        &mut self,
        reply: Result<RedisValue, StoreError>,
    ) -> Result<RedisValue, RulesError> {
        reply.map_err(|error| {
            // A late reply would be taken for the reply to the next command.
            if error.kind() == StoreErrorKind::Timeout {
                self.connection = None;
            }
            let why =
                std::error::Error::source(&error).map_or(error.to_string(), |why| why.to_string());
            RulesError::Unreachable(format!("cannot use the rules in Redis: {why}"))
        })
    }
}

/// Words of a list, as scripts return them.
pub(super) fn words(reply: RedisValue) -> Vec<Option<Vec<u8>>> {
    let RedisValue::List(list) = reply else { return Vec::new() };
    let word = |value| match value {
        RedisValue::Text(text) => Some(text),
        RedisValue::Number(number) => Some(number.to_string().into_bytes()),
        RedisValue::Nil | RedisValue::List(_) => None,
    };
    list.into_iter().map(word).collect()
}
