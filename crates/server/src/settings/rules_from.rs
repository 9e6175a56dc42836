//! Settings of rules that come from Redis: their form, server and names.

use super::value::Secret;
use super::{Options, SettingsError};

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
    pub(super) fn new(from: &Secret, options: &mut Options) -> Result<Self, SettingsError> {
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
            // The value may hold a password, so it is not repeated.
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
            name: options.rules_name.take().unwrap_or(defaults.name),
            pattern: options.rules_pattern.take().unwrap_or(defaults.pattern),
            channel: options.rules_channel.take().unwrap_or(defaults.channel),
            domain: options.rules_domain.take().unwrap_or(defaults.domain),
        };
        from.checked()
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
        let from = RulesFrom::new(&text.parse().unwrap(), &mut Options::default())?;
        Ok((from.layout, from.url.map(|url| url.expose().to_owned())))
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
            let mut options = Options { rules_name: Some(name.into()), ..Options::default() };
            let from = RulesFrom::new(&"redis".parse().unwrap(), &mut options);
            assert_eq!(from.is_ok(), good, "{name:?}");
        }
    }
}
