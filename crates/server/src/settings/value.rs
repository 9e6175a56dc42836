//! Types of settings: secrets, durations, listeners, and words.
//!
//! Each is read from text in one way, from a flag, a variable or a string in a file.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::str::FromStr;
use std::time::Duration;

use crate::enum_text::{impl_deserialize, impl_from_str, text_enum};

/// A text that must reach no log. Its `Debug` hides it, and it has no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text itself, to send it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// True if a client's token is this one, compared in constant time.
    pub fn matches(&self, token: &[u8]) -> bool {
        use subtle::ConstantTimeEq as _;
        bool::from(self.0.as_bytes().ct_eq(token))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

impl FromStr for Secret {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Files usually end with a newline, which is not part of the secret.
        let text = text.trim_end_matches(['\r', '\n']);
        if text.is_empty() {
            Err("a secret needs at least one character")
        } else {
            Ok(Self(text.to_owned()))
        }
    }
}

/// Duration in text: `500ms`, `10s`, `2m`, `1h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationText(pub Duration);

impl FromStr for DurationText {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const SHAPE: &str = "not a duration: write a whole number and ms, s, m or h, such as `10s`";
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| SHAPE)?;
        let millis = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err(SHAPE),
        };
        Ok(Self(Duration::from_millis(number.saturating_mul(millis))))
    }
}

/// Address of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// At this address; port 0 takes a free one.
    At(SocketAddr),
    /// Nowhere.
    Off,
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let found = text.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
        found
            .map(Self::At)
            .ok_or_else(|| format!("{text:?} is not an address: write host:port, or `off`"))
    }
}

text_enum! {
    /// Answer to requests before rules are loaded.
    #[derive(Default)]
    pub enum WithoutRules {
        /// Requests pass, as in a domain without rules.
        #[default]
        Admit = "admit",
        /// Requests are refused as unavailable.
        Refuse = "refuse",
    }
}

text_enum! {
    /// Format of log lines.
    pub enum LogFormat {
        /// One JSON object a line.
        Json = "json",
        /// For people.
        Text = "text",
    }
}

text_enum! {
    /// Least severe level that is logged, by tracing's names.
    #[derive(Default)]
    pub enum LogLevel {
        /// Nothing.
        Off = "off",
        /// Needs an operator.
        Error = "error",
        /// May need an operator.
        Warn = "warn",
        /// Changes of state.
        #[default]
        Info = "info",
        /// Every request over HTTP.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}

/// `name=header`: an attribute of a request, and the header in which a trusted proxy sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeHeader {
    /// The attribute.
    pub name: String,
    /// The header.
    pub header: http::HeaderName,
}

impl FromStr for AttributeHeader {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shape = || format!("{text:?} is not `attribute=header`, such as `user=x-user`");
        let (name, header) = text.split_once('=').ok_or_else(shape)?;
        let header = header.parse().map_err(|_| shape())?;
        if name.is_empty() { Err(shape()) } else { Ok(Self { name: name.to_owned(), header }) }
    }
}

impl_deserialize!(
    Secret,
    DurationText,
    ListenAddress,
    WithoutRules,
    LogFormat,
    LogLevel,
    AttributeHeader
);
impl_from_str!(WithoutRules, LogFormat, LogLevel);
