//! Log lines: JSON for machines, text for people, and a level that can be changed while it runs.
//!
//! Messages hold no text of clients; values that come from outside are fields, which both
//! formats escape. No field holds a secret, a key or the value of an attribute.

use std::io::IsTerminal as _;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, fmt, reload};

use crate::settings::value::{LogFormat, LogLevel};

/// Changes the level.
#[derive(Clone, Debug, Default)]
pub struct LevelHandle(Option<reload::Handle<LevelFilter, Registry>>);

impl LevelHandle {
    /// Sets the level; `false` if the program has a logger of its own.
    pub fn set(&self, level: LogLevel) -> bool {
        self.0.as_ref().is_some_and(|handle| handle.reload(filter(level)).is_ok())
    }

    /// Current level.
    pub fn get(&self) -> Option<String> {
        let level = self.0.as_ref()?.clone_current()?;
        Some(level.to_string())
    }
}

/// Starts to log to stderr, unless the program has a logger already.
pub fn start(level: LogLevel, format: Option<LogFormat>) -> LevelHandle {
    let terminal = std::io::stderr().is_terminal();
    let default = if terminal { LogFormat::Text } else { LogFormat::Json };
    let (filter, handle) = reload::Layer::new(filter(level));
    let lines = fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    let started = match format.unwrap_or(default) {
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
        // Colours would take a feature of the subscriber, which complains if it is asked without.
        LogFormat::Text => registry.with(lines.with_ansi(false)).try_init(),
    };
    LevelHandle(started.is_ok().then_some(handle))
}

fn filter(level: LogLevel) -> LevelFilter {
    level.name().parse().unwrap_or(LevelFilter::INFO)
}
