//! The rules record: one version of the rules as it is stored in Redis, and its errors.
//!
//! Pure: bytes in, a rule set or an error with its place out. `docs/keys.md` describes the hash,
//! `lua/read.lua` and `lua/put.lua` are its other readers; change them together.

use tollgate::RuleSet;
use tollgate::rules::{self, Format};

use super::RulesError;

/// One version of the rules with its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RulesRecord {
    pub(super) version: u64,
    pub(super) sum: String,
    pub(super) format: Format,
    /// Time of the write, in microseconds since 1970 by the clock of Redis; 0 if unknown.
    pub(super) at_us: u64,
    /// Author, as the writer named itself.
    pub(super) by: String,
    pub(super) text: String,
}

/// Result of reading the set from Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RulesRecordLookup {
    Nothing,
    /// The record that is known already.
    Same,
    Record(Box<RulesRecord>),
}

/// The largest version: scripts count with doubles.
const MAX_VERSION: u64 = (1 << 53) - 1;

/// Decodes the reply of `lua/read.lua`. Errors name `key`.
pub(super) fn read(
    key: &str,
    words: Vec<Option<Vec<u8>>>,
) -> Result<RulesRecordLookup, RulesError> {
    let wrong = |why: String| RulesError::Unreadable(format!("{key} in Redis: {why}"));
    let mut words = words.into_iter();
    let mut next = || words.next().flatten();
    match next().as_deref() {
        Some(b"none") => return Ok(RulesRecordLookup::Nothing),
        Some(b"same") => return Ok(RulesRecordLookup::Same),
        Some(b"kind") => {
            let kind = shown(&next().unwrap_or_default());
            return Err(wrong(format!("it is a {kind}, not a hash")));
        }
        Some(b"long") => {
            let (field, length) = (next().unwrap_or_default(), next().unwrap_or_default());
            let (field, length) = (shown(&field), shown(&length));
            return Err(wrong(format!("`{field}` has too many bytes: {length}")));
        }
        Some(b"set") => {}
        _ => return Err(wrong("unexpected reply of the script".into())),
    }
    let mut field = |name: &str| {
        let bytes = next().ok_or_else(|| wrong(format!("`{name}` is missing")))?;
        match rules::decode(&bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(problems) => {
                Err(RulesError::Invalid(problems.in_file(format!("{key} in Redis, `{name}`"))))
            }
        }
    };
    let (version, sum, format) = (field("version")?, field("sum")?, field("format")?);
    let (at, by, text) = (field("at"), field("by"), field("text")?);
    let record = RulesRecord {
        version: number(&version)
            .ok_or_else(|| wrong(format!("`version` is {version:?}: not a version")))?,
        format: format_of(&format)
            .ok_or_else(|| wrong(format!("`format` is {format:?}: not yaml, json or toml")))?,
        at_us: at.ok().and_then(|at| at.parse().ok()).unwrap_or(0),
        by: by.unwrap_or_default(),
        sum,
        text,
    };
    if record.sum != sum_of(record.version, record.format, &record.text) {
        return Err(wrong(
            "`sum` does not match: the text was truncated, or edited by hand".into(),
        ));
    }
    Ok(RulesRecordLookup::Record(Box::new(record)))
}

/// The rules of a record, checked whole.
pub(super) fn load(key: &str, record: &RulesRecord) -> Result<RuleSet, RulesError> {
    let set = rules::load(&record.text, record.format)
        .map_err(|problems| RulesError::Invalid(problems.in_file(format!("{key} in Redis"))))?;
    if set.version() != record.version {
        return Err(RulesError::Unreadable(format!(
            "{key} in Redis: `version` is {}, but its text says {}",
            record.version,
            set.version()
        )));
    }
    Ok(set)
}

/// A checksum, so that a truncated text is not taken for a whole one.
pub(super) fn sum_of(version: u64, format: Format, text: &str) -> String {
    let mut sum = sha1_smol::Sha1::new();
    sum.update(format!("{version} {}\n", name_of(format)).as_bytes());
    sum.update(text.as_bytes());
    sum.digest().to_string()
}

pub(super) const fn name_of(format: Format) -> &'static str {
    match format {
        Format::Json => "json",
        Format::Toml => "toml",
        _ => "yaml",
    }
}

fn format_of(name: &str) -> Option<Format> {
    [Format::Yaml, Format::Json, Format::Toml].into_iter().find(|format| name_of(*format) == name)
}

fn number(text: &str) -> Option<u64> {
    let plain = !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|version| plain && (1..=MAX_VERSION).contains(version))
}

/// Foreign bytes as a short text on one line.
pub(super) fn shown(bytes: &[u8]) -> String {
    const MOST: usize = 80;
    let text = String::from_utf8_lossy(bytes);
    let mut short: String = text.chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "version: 7\ndomain: shop\nrules: [{ name: all, limits: [9 per 1s] }]\n";

    fn stored(changes: &[(usize, Option<&[u8]>)]) -> Vec<Option<Vec<u8>>> {
        let sum = sum_of(7, Format::Yaml, TEXT);
        let mut words: Vec<Option<Vec<u8>>> =
            ["set", "7", &sum, "yaml", "1700000000000000", "ann", TEXT]
                .iter()
                .map(|word| Some(word.as_bytes().to_vec()))
                .collect();
        for (at, word) in changes {
            words[*at] = word.map(<[u8]>::to_vec);
        }
        words
    }

    #[test]
    fn a_record_is_read_and_loaded() {
        let Ok(RulesRecordLookup::Record(record)) = read("k", stored(&[])) else {
            panic!("it is well")
        };
        assert_eq!((record.version, record.at_us, &*record.by), (7, 1_700_000_000_000_000, "ann"));
        assert_eq!(load("k", &record).unwrap().version(), 7);
        let nobody = read("k", stored(&[(4, None), (5, Some(b"\xff"))]));
        assert!(matches!(nobody, Ok(RulesRecordLookup::Record(record)) if record.by.is_empty()));
    }

    #[test]
    fn whatever_is_wrong_is_told_with_its_place() {
        let of = |words: &[&str]| words.iter().map(|word| Some(word.as_bytes().to_vec())).collect();
        for (words, why) in [
            (stored(&[(1, None)]), "k in Redis: `version` is missing"),
            (stored(&[(1, Some(b"07"))]), "k in Redis: `version` is \"07\": not a version"),
            (stored(&[(1, Some(b"-7"))]), "k in Redis: `version` is \"-7\": not a version"),
            (stored(&[(1, Some(b"9007199254740992"))]), "not a version"),
            (stored(&[(2, None)]), "k in Redis: `sum` is missing"),
            (stored(&[(2, Some(b"00"))]), "k in Redis: `sum` does not match"),
            (stored(&[(3, Some(b"xml"))]), "`format` is \"xml\": not yaml, json or toml"),
            (stored(&[(6, Some(&TEXT.as_bytes()[..20]))]), "the text was truncated"),
            (stored(&[(6, Some(b"a: \xff"))]), "k in Redis, `text`:1:4: a byte that is not UTF-8"),
            (stored(&[(6, None)]), "k in Redis: `text` is missing"),
            (of(&["kind", "zset"]), "k in Redis: it is a zset, not a hash"),
            (of(&["long", "text", "104857600"]), "`text` has too many bytes: 104857600"),
            (of(&["else"]), "unexpected reply"),
            (vec![], "unexpected reply"),
        ] {
            let error = read("k", words).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn the_version_is_that_of_the_text() {
        let record = RulesRecord {
            version: 8,
            sum: String::new(),
            format: Format::Yaml,
            at_us: 0,
            by: String::new(),
            text: TEXT.into(),
        };
        let error = load("k", &record).unwrap_err().to_string();
        assert_eq!(error, "k in Redis: `version` is 8, but its text says 7");
        let broken = RulesRecord { text: "version: 8\ndomain: shop\nrule: []\n".into(), ..record };
        let error = load("k", &broken).unwrap_err().to_string();
        assert!(error.starts_with("k in Redis:3:1: unknown field `rule`"), "{error}");
    }
}
