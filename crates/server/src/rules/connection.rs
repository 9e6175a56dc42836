//! The connection to the Redis that holds the rules. It is not the store's connection, because long and
//! slow answers must not hold up decisions.

use std::time::Duration;

use tollgate::redis::{AuxiliaryConnection, Config, ConnectError, RedisValue};
use tollgate::{StoreError, StoreErrorKind};

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
    aside: Option<AuxiliaryConnection>,
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
        Self { config, aside: None }
    }

    /// Runs a script.
    pub(super) async fn run(
        &mut self,
        script: &'static str,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<RedisValue, RulesError> {
        let said = self.aside().await?.run_script(script, keys, args).await;
        self.judge(said)
    }

    /// Runs a command.
    pub(super) async fn ask(&mut self, words: &[&[u8]]) -> Result<RedisValue, RulesError> {
        let said = self.aside().await?.command(words).await;
        self.judge(said)
    }

    async fn aside(&mut self) -> Result<&AuxiliaryConnection, RulesError> {
        if self.aside.as_mut().is_some_and(AuxiliaryConnection::is_closed) {
            self.aside = None;
        }
        let aside = match self.aside.take() {
            Some(aside) => aside,
            None => AuxiliaryConnection::connect(&self.config, MAX_ANSWER, PATIENCE)
                .await
                .map_err(|error| {
                    RulesError::Unreachable(format!("cannot read the rules in Redis: {error}"))
                })?,
        };
        Ok(self.aside.insert(aside))
    }

    fn judge(&mut self, said: Result<RedisValue, StoreError>) -> Result<RedisValue, RulesError> {
        said.map_err(|error| {
            // One that answers late would answer the next question with this one's answer.
            if error.kind() == StoreErrorKind::Timeout {
                self.aside = None;
            }
            let why =
                std::error::Error::source(&error).map_or(error.to_string(), |why| why.to_string());
            RulesError::Unreachable(format!("cannot use the rules in Redis: {why}"))
        })
    }
}

/// Words of a list, as scripts return them.
pub(super) fn words(said: RedisValue) -> Vec<Option<Vec<u8>>> {
    let RedisValue::List(list) = said else { return Vec::new() };
    let word = |said| match said {
        RedisValue::Text(text) => Some(text),
        RedisValue::Number(number) => Some(number.to_string().into_bytes()),
        RedisValue::Nil | RedisValue::List(_) => None,
    };
    list.into_iter().map(word).collect()
}
