//! Auxiliary connections, beside the link: for settings that are read now and then, and for messages about
//! changes.
//!
//! Unlike a link, such a connection is not made again by itself: calls fail once it has closed, and the
//! caller connects again. It lives on the caller's runtime.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use tollgate_core::StoreError;

use super::command::Script;
use super::connection::Connection;
use super::dial::{Dialer, NewConnection};
use super::resp::{self, Value};
use crate::config::Config;
use crate::error::{Cause, ConnectError};

/// A connection of its own, for commands or for the messages of a channel. It closes when dropped.
///
/// ```no_run
/// use std::time::Duration;
/// use tollgate_redis::{AuxiliaryConnection, Config, RedisValue};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::new("redis://127.0.0.1:6379")?;
/// let auxiliary = AuxiliaryConnection::connect(&config, 1 << 20, Duration::from_secs(1)).await?;
/// assert_eq!(auxiliary.command(&[b"ECHO", b"hello"]).await?, RedisValue::Text(b"hello".into()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AuxiliaryConnection {
    connection: Connection,
    task: JoinSet<()>,
    patience: Duration,
}

/// A reply of Redis. A status is a text. An error is a [`StoreError`], or `Nil` within a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisValue {
    /// No value.
    Nil,
    /// An integer.
    Number(i64),
    /// A string or status, as bytes.
    Text(Vec<u8>),
    /// An array.
    List(Vec<Self>),
}

impl AuxiliaryConnection {
    /// Connects and logs in, for commands. A reply of more than `most` bytes closes the connection.
    /// A call waits for its reply for `patience`.
    ///
    /// # Errors
    ///
    /// When no connection can be made.
    pub async fn connect(
        config: &Config,
        most: usize,
        patience: Duration,
    ) -> Result<Self, ConnectError> {
        let NewConnection { connection, task, .. } = Dialer::new(config, most)?.dial(None).await?;
        Ok(Self { connection, task, patience })
    }

    /// Connects, logs in and subscribes to a channel. `on_message` receives the content of each
    /// message, on the thread of the connection, and must not block. A message of more than `most`
    /// bytes closes the connection.
    ///
    /// # Errors
    ///
    /// When no connection can be made, or this user may not subscribe to the channel.
    pub async fn subscribe(
        config: &Config,
        most: usize,
        patience: Duration,
        channel: &[u8],
        mut on_message: impl FnMut(&[u8]) + Send + 'static,
    ) -> Result<Self, ConnectError> {
        let on_message = Box::new(move |_: &[u8], content: &[u8]| on_message(content));
        let dialer = Dialer::new(config, most)?;
        let NewConnection { connection, task, .. } = dialer.dial(Some(on_message)).await?;
        let auxiliary = Self { connection, task, patience };
        let subscribed = auxiliary.command(&[b"SUBSCRIBE", channel]).await;
        subscribed.map(|_| auxiliary).map_err(|error| {
            ConnectError::unreachable("the channel cannot be subscribed").with_source(error)
        })
    }

    /// Sends a command and returns the reply.
    ///
    /// # Errors
    ///
    /// When Redis refuses, does not reply in time, or the connection closes. Only a refusal means
    /// that nothing was done.
    pub async fn command(&self, words: &[&[u8]]) -> Result<RedisValue, StoreError> {
        match self.value(words).await? {
            Value::Error(error) => Err(error.into_error()),
            value => Ok(redis_value(value)),
        }
    }

    /// Runs a script, by its text if Redis does not know it.
    ///
    /// # Errors
    ///
    /// As [`AuxiliaryConnection::command`].
    pub async fn run_script(
        &self,
        text: &'static str,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<RedisValue, StoreError> {
        let script = Script::new(text);
        let count = keys.len().to_string();
        for (verb, name) in [("EVALSHA", script.sha.as_str()), ("EVAL", text)] {
            let head = [verb.as_bytes(), name.as_bytes(), count.as_bytes()];
            let words: Vec<&[u8]> = head.iter().chain(keys).chain(args).copied().collect();
            match self.value(&words).await? {
                Value::Error(error) if error.code == "NOSCRIPT" => {}
                Value::Error(error) => return Err(error.into_error()),
                value => return Ok(redis_value(value)),
            }
        }
        Err(Cause::MalformedReply.unavailable())
    }

    async fn value(&self, words: &[&[u8]]) -> Result<Value, StoreError> {
        match timeout(self.patience, self.connection.request(resp::command(words))).await {
            Ok(answered) => answered.map_err(|_| Cause::Lost.timeout()),
            Err(_) => Err(Cause::NoReply.timeout()),
        }
    }

    /// Waits until the connection has closed.
    pub async fn closed(&mut self) {
        self.task.join_next().await;
    }

    /// Returns whether the connection has closed.
    pub fn is_closed(&mut self) -> bool {
        self.task.try_join_next().is_some() || self.task.is_empty()
    }
}

fn redis_value(value: Value) -> RedisValue {
    match value {
        Value::Nil | Value::Error(_) => RedisValue::Nil,
        Value::Number(number) => RedisValue::Number(number),
        Value::Status(text) | Value::String(text) => RedisValue::Text(text),
        Value::Array(values) => RedisValue::List(values.into_iter().map(redis_value).collect()),
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
        let on_message = Arc::clone(&heard);
        let mut subscription =
            AuxiliaryConnection::subscribe(&config, 1 << 10, SOON, b"c", move |content| {
                on_message.lock().unwrap().push(content.to_vec());
            })
            .await
            .unwrap();
        let auxiliary = AuxiliaryConnection::connect(&config, 1 << 10, SOON).await.unwrap();

        let script = "return { KEYS[1], ARGV[1], 7, false }";
        let list = [
            RedisValue::Text(b"k".into()),
            RedisValue::Text(b"a".into()),
            RedisValue::Number(7),
            RedisValue::Nil,
        ];
        for _ in 0..2 {
            let ran = auxiliary.run_script(script, &[b"k"], &[b"a"]).await.unwrap();
            assert_eq!(ran, RedisValue::List(list.to_vec()));
        }
        assert!(auxiliary.command(&[b"NO-SUCH"]).await.is_err());
        assert_eq!(
            auxiliary.command(&[b"PUBLISH", b"c", b"news"]).await.unwrap(),
            RedisValue::Number(1)
        );
        // Whatever was published before it is heard before this is answered.
        subscription.command(&[b"PING"]).await.unwrap();
        assert_eq!(*heard.lock().unwrap(), [b"news"]);

        let long = [b'x'; 2 << 10];
        auxiliary.command(&[b"PUBLISH", b"c", &long]).await.unwrap();
        subscription.closed().await;
        assert!(subscription.is_closed(), "a message that is too long ends the connection");
        assert!(auxiliary.command(&[b"ECHO", &long]).await.is_err(), "and so does an answer");
    }
}
