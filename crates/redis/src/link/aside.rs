//! A connection beside the link, for what is no decision: settings that are looked at now and then, and
//! messages that say when.
//!
//! Unlike a link it does not come back by itself: whoever asks is told that it has ended, and dials again
//! when it pleases. It lives on the runtime of its caller.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use tollgate_core::StoreError;

use super::answer::Refusal;
use super::command::Script;
use super::dial::{Dialer, Dialled};
use super::resp::{self, Value};
use super::wire::Wire;
use crate::config::Config;
use crate::error::{Cause, ConnectError};

/// A connection of its own, for commands or for messages. It ends when this is dropped.
///
/// ```no_run
/// use std::time::Duration;
/// use tollgate_redis::{Aside, Config, Said};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::new("redis://127.0.0.1:6379")?;
/// let aside = Aside::dial(&config, 1 << 20, Duration::from_secs(1)).await?;
/// assert_eq!(aside.ask(&[b"ECHO", b"hello"]).await?, Said::Text(b"hello".into()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Aside {
    wire: Wire,
    driver: JoinSet<()>,
    patience: Duration,
}

/// What Redis says. A status is a text; an error is a [`StoreError`] or, within a list, nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// Nothing.
    Nil,
    /// A number.
    Number(i64),
    /// Bytes.
    Text(Vec<u8>),
    /// Several of these.
    List(Vec<Self>),
}

impl Aside {
    /// Connects and logs in, for commands. What has more than `most` bytes is not taken, and ends the
    /// connection; nothing is waited for longer than `patience`.
    ///
    /// # Errors
    ///
    /// When there is no connection to be had.
    pub async fn dial(
        config: &Config,
        most: usize,
        patience: Duration,
    ) -> Result<Self, ConnectError> {
        let Dialled { wire, driver, .. } = Dialer::new(config)?.at_most(most).dial().await?;
        Ok(Self { wire, driver, patience })
    }

    /// The same, for the messages of one channel. `hear` is told each, on the thread of the
    /// connection, and must not keep it.
    ///
    /// # Errors
    ///
    /// When there is no connection to be had, or this user may not hear that channel.
    pub async fn hear(
        config: &Config,
        most: usize,
        patience: Duration,
        channel: &[u8],
        mut hear: impl FnMut(&[u8]) + Send + 'static,
    ) -> Result<Self, ConnectError> {
        let hear = Box::new(move |_: &[u8], content: &[u8]| hear(content));
        let dialer = Dialer::new(config)?.at_most(most);
        let Dialled { wire, driver, .. } = dialer.dial_to_hear(hear).await?;
        let aside = Self { wire, driver, patience };
        let subscribed = aside.ask(&[b"SUBSCRIBE", channel]).await;
        subscribed.map(|_| aside).map_err(|error| {
            ConnectError::unreachable("the channel cannot be subscribed").with_source(error)
        })
    }

    /// What Redis says to a command.
    ///
    /// # Errors
    ///
    /// When it refuses, does not answer in time, or the connection ended. Only in the first case it is
    /// certain that nothing was done.
    pub async fn ask(&self, words: &[&[u8]]) -> Result<Said, StoreError> {
        match self.value(words).await? {
            Value::Error(error) => Err(Refusal::new(error).into_error()),
            value => Ok(said(value)),
        }
    }

    /// Runs a script, by its text if Redis does not know it.
    ///
    /// # Errors
    ///
    /// As [`Aside::ask`].
    pub async fn run(
        &self,
        text: &'static str,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<Said, StoreError> {
        let script = Script::new(text);
        let count = keys.len().to_string();
        for (verb, name) in [("EVALSHA", script.sha.as_str()), ("EVAL", text)] {
            let head = [verb.as_bytes(), name.as_bytes(), count.as_bytes()];
            let words: Vec<&[u8]> = head.iter().chain(keys).chain(args).copied().collect();
            match self.value(&words).await? {
                Value::Error(error) if error.code == "NOSCRIPT" => {}
                Value::Error(error) => return Err(Refusal::new(error).into_error()),
                value => return Ok(said(value)),
            }
        }
        Err(Cause::MalformedReply.unavailable())
    }

    async fn value(&self, words: &[&[u8]]) -> Result<Value, StoreError> {
        match timeout(self.patience, self.wire.ask(resp::command(words))).await {
            Ok(answered) => answered.map_err(|_| Cause::Lost.timeout()),
            Err(_) => Err(Cause::NoReply.timeout()),
        }
    }

    /// Returns when the connection has ended.
    pub async fn ended(&mut self) {
        self.driver.join_next().await;
    }

    /// Whether the connection has ended.
    pub fn has_ended(&mut self) -> bool {
        self.driver.try_join_next().is_some() || self.driver.is_empty()
    }
}

fn said(value: Value) -> Said {
    match value {
        Value::Nil | Value::Error(_) => Said::Nil,
        Value::Number(number) => Said::Number(number),
        Value::Status(text) | Value::String(text) => Said::Text(text),
        Value::Array(values) => Said::List(values.into_iter().map(said).collect()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tollgate_harness::RedisServer;

    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn it_asks_runs_and_hears() {
        let redis = RedisServer::start().unwrap();
        let config = Config::new(&redis.url()).unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hear = Arc::clone(&heard);
        let mut ear = Aside::hear(&config, 1 << 10, SOON, b"c", move |content| {
            hear.lock().unwrap().push(content.to_vec());
        })
        .await
        .unwrap();
        let aside = Aside::dial(&config, 1 << 10, SOON).await.unwrap();

        let script = "return { KEYS[1], ARGV[1], 7, false }";
        let list = [Said::Text(b"k".into()), Said::Text(b"a".into()), Said::Number(7), Said::Nil];
        for _ in 0..2 {
            let ran = aside.run(script, &[b"k"], &[b"a"]).await.unwrap();
            assert_eq!(ran, Said::List(list.to_vec()));
        }
        assert!(aside.ask(&[b"NO-SUCH"]).await.is_err());
        assert_eq!(aside.ask(&[b"PUBLISH", b"c", b"news"]).await.unwrap(), Said::Number(1));
        // Whatever was published before it is heard before this is answered.
        ear.ask(&[b"PING"]).await.unwrap();
        assert_eq!(*heard.lock().unwrap(), [b"news"]);

        let long = [b'x'; 2 << 10];
        aside.ask(&[b"PUBLISH", b"c", &long]).await.unwrap();
        ear.ended().await;
        assert!(ear.has_ended(), "a message that is too long ends the connection");
        assert!(aside.ask(&[b"ECHO", &long]).await.is_err(), "and so does an answer");
    }
}
