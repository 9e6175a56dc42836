//! Rules that come from Redis: in which form, from which server, under which names.

use super::SettingsError;
use super::value::Secret;

/// Rules that come from Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesFrom {
    /// Layout in Redis.
    pub layout: RulesLayout,
    /// URL; the store's own Redis if none.
    pub url: Option<Secret>,
    /// Name of the set, so that one Redis can hold several.
    pub name: String,
    /// Key pattern of [`RulesLayout::Hashes`].
    pub pattern: String,
    /// Change channel of [`RulesLayout::Hashes`].
    pub channel: String,
    /// Domain of the rules of [`RulesLayout::Hashes`].
    pub domain: String,
}

/// Layout of rules in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulesLayout {
    /// As one text with a version.
    Set,
    /// As a hash for each rule, written by another system.
    Hashes,
}

/// Options about rules in Redis.
#[derive(Debug, Default)]
pub(super) struct RulesFromOptions {
    pub(super) from: Option<Secret>,
    pub(super) name: Option<String>,
    pub(super) pattern: Option<String>,
    pub(super) channel: Option<String>,
    pub(super) domain: Option<String>,
}

/// The longest name, pattern or channel: it is repeated in every command.
const MAX_NAME: usize = 256;

impl Default for RulesFrom {
    fn default() -> Self {
        Self {
            layout: RulesLayout::Set,
            url: None,
            name: "default".to_owned(),
            pattern: "rate_limit_config:*".to_owned(),
            channel: "rate_limit_config_channel".to_owned(),
            domain: "default".to_owned(),
        }
    }
}

impl RulesFrom {
    /// From `redis`, `hashes`, or one of them with a URL: `redis://…`, `hashes:redis://…`.
    pub(super) fn new(said: RulesFromOptions) -> Result<Option<Self>, SettingsError> {
        let Some(from) = said.from else { return Ok(None) };
        let defaults = Self::default();
        let (layout, url) = match from.expose().strip_prefix("hashes") {
            Some("") => (RulesLayout::Hashes, None),
            Some(rest) => (RulesLayout::Hashes, rest.strip_prefix(':')),
            None if from.expose() == "redis" => (RulesLayout::Set, None),
            None => (RulesLayout::Set, Some(from.expose())),
        };
        let url = match url {
            None if matches!(from.expose(), "redis" | "hashes") => None,
            Some(url) if url.contains("://") => url.parse().ok(),
            // What was said may hold a password, so it is not repeated.
            _ => {
                return Err(SettingsError(
                    "--rules-from must be `redis`, `hashes`, or a URL such as redis://host or \
                     hashes:redis://host; name a file with --rules"
                        .into(),
                ));
            }
        };
        let from = Self {
            layout,
            url,
            name: said.name.unwrap_or(defaults.name),
            pattern: said.pattern.unwrap_or(defaults.pattern),
            channel: said.channel.unwrap_or(defaults.channel),
            domain: said.domain.unwrap_or(defaults.domain),
        };
        from.checked().map(Some)
    }

    fn checked(self) -> Result<Self, SettingsError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if self.name.is_empty() || self.name.len() > 64 || !self.name.bytes().all(plain) {
            return Err(SettingsError(format!(
                "--rules-name is {:?}: it must have 1 to 64 letters, digits, dots, dashes or underscores",
                self.name
            )));
        }
        for (what, text) in [
            ("rules-pattern", &self.pattern),
            ("rules-channel", &self.channel),
            ("rules-domain", &self.domain),
        ] {
            if text.is_empty() || text.len() > MAX_NAME {
                return Err(SettingsError(format!("--{what} must have 1 to {MAX_NAME} bytes")));
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(text: &str) -> Result<(RulesLayout, Option<String>), SettingsError> {
        let said = RulesFromOptions { from: text.parse().ok(), ..RulesFromOptions::default() };
        RulesFrom::new(said).map(|from| {
            let from = from.unwrap();
            (from.layout, from.url.map(|url| url.expose().to_owned()))
        })
    }

    #[test]
    fn where_rules_come_from_is_one_word_or_a_url() {
        let there = || Some("redis://h/1".to_owned());
        assert_eq!(from("redis"), Ok((RulesLayout::Set, None)));
        assert_eq!(from("redis://h/1"), Ok((RulesLayout::Set, there())));
        assert_eq!(from("hashes"), Ok((RulesLayout::Hashes, None)));
        assert_eq!(from("hashes:redis://h/1"), Ok((RulesLayout::Hashes, there())));
        for wrong in ["rules.yaml", "hashes:", "hashes-redis://h", "redis:", "hashes:x"] {
            let error = from(wrong).unwrap_err().to_string();
            assert!(error.contains("--rules"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_name_is_plain() {
        for (name, good) in [("a.B-9_", true), ("", false), ("a}b", false), ("a b", false)] {
            let said = RulesFromOptions {
                from: "redis".parse().ok(),
                name: Some(name.to_owned()),
                ..RulesFromOptions::default()
            };
            assert_eq!(RulesFrom::new(said).is_ok(), good, "{name:?}");
        }
    }
}
