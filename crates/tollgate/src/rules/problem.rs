//! Problems of a rule file: the place, the message, and a hint.

use std::fmt;

use tollgate_core::rule::edit_distance;

/// A place in a text. Lines and columns count from 1; a column is a character.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

impl Position {
    pub(crate) const START: Self = Self { line: 1, column: 1 };

    /// The place after this character.
    pub(crate) const fn after(self, letter: char) -> Self {
        match letter {
            '\n' => Self { line: self.line + 1, column: 1 },
            _ => Self { column: self.column + 1, ..self },
        }
    }
}

/// A problem of a rule file.
///
/// It prints as `12:7: unknown field `limit`; did you mean `limits`?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    at: Position,
    message: String,
    hint: Option<String>,
}

impl Problem {
    /// Creates a problem. Messages may come from parsers and repeat text of a client, so each is
    /// reduced to one line of bounded length.
    fn new(at: Position, message: String, hint: Option<String>) -> Self {
        Self { at, message: one_line(message), hint: hint.map(one_line) }
    }

    /// The line, counted from 1.
    pub const fn line(&self) -> u32 {
        self.at.line
    }

    /// The column in characters, counted from 1.
    pub const fn column(&self) -> u32 {
        self.at.column
    }

    /// The message, with the value. Long values are shortened.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// A hint about the fix, if there is one.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.at.line, self.at.column, self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

/// All problems of a rule file, in the order of the file; at least one.
///
/// At most [`Problems::MAX`] are kept, since one mistake can cause a thousand.
///
/// ```
/// use tollgate::rules::{self, Format};
///
/// let problems = rules::read("version: 1\ndomain: shop\nrule: []\n", Format::Yaml).unwrap_err();
///
/// assert_eq!(
///     problems.in_file("rules.yaml").to_string(),
///     "rules.yaml:3:1: unknown field `rule`; did you mean `rules`?"
/// );
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    file: Option<String>,
    found: Vec<Problem>,
    dropped: bool,
}

impl Problems {
    /// The most problems that are kept.
    pub const MAX: usize = 20;

    /// Returns the problems with the name of the file, which is printed in front of each place.
    #[must_use]
    pub fn in_file(mut self, name: impl Into<String>) -> Self {
        self.file = Some(name.into());
        self
    }

    /// The problems, by place.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.found.iter()
    }

    /// True if there were more problems than are kept.
    pub const fn has_more(&self) -> bool {
        self.dropped
    }

    pub(crate) fn one(at: Position, message: impl Into<String>, hint: Option<String>) -> Self {
        let found = vec![Problem::new(at, message.into(), hint)];
        Self { file: None, found, dropped: false }
    }

    pub(crate) fn add(&mut self, at: Position, message: impl Into<String>, hint: Option<String>) {
        if self.found.len() < Self::MAX {
            self.found.push(Problem::new(at, message.into(), hint));
        } else {
            self.dropped = true;
        }
    }

    /// Returns the value if there are no problems, else all of them by place.
    pub(crate) fn none_or<T>(self, value: T) -> Result<T, Self> {
        if self.found.is_empty() { Ok(value) } else { Err(self.sorted()) }
    }

    pub(crate) fn sorted(mut self) -> Self {
        self.found.sort_by_key(|problem| problem.at);
        self
    }
}

impl<'p> IntoIterator for &'p Problems {
    type Item = &'p Problem;
    type IntoIter = std::slice::Iter<'p, Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.found.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            if let Some(file) = &self.file {
                write!(f, "{file}:")?;
            }
            problem.fmt(f)?;
        }
        if self.dropped {
            f.write_str("\nand more")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// The text without line breaks and other control characters, shortened if it is long.
fn one_line(text: String) -> String {
    const LONGEST: usize = 500;
    if text.len() <= LONGEST && !text.contains(char::is_control) {
        return text;
    }
    shortened(&text, LONGEST, char::is_control)
}

/// The beginning of a text, in backquotes, for one line of a message.
pub(crate) fn quoted(text: &str) -> String {
    const SHOWN: usize = 40;
    format!("`{}`", shortened(text, SHOWN, |letter| !['\'', '"', '\\'].contains(&letter)))
}

/// The first `longest` characters of a text, some of them escaped.
fn shortened(text: &str, longest: usize, is_escaped: fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len().min(longest));
    for letter in text.chars().take(longest) {
        match is_escaped(letter) {
            true => shown.extend(letter.escape_debug()),
            false => shown.push(letter),
        }
    }
    if text.chars().nth(longest).is_some() {
        shown.push('…');
    }
    shown
}

/// The hint `did you mean …?`, if one of the names is similar to the text.
pub(crate) fn did_you_mean<'n>(
    written: &str,
    names: impl IntoIterator<Item = &'n str>,
) -> Option<String> {
    // Longer words are no slip of any of ours.
    if written.len() > 32 {
        return None;
    }
    let plain: String =
        written.chars().map(|c| if c == '_' { '-' } else { c.to_ascii_lowercase() }).collect();
    let dashed = |name: &str| name.replace('_', "-");
    let allowed = match plain.len() {
        0..=2 => 1,
        3..=5 => 2,
        _ => 3,
    };
    let (distance, name) = names
        .into_iter()
        .map(|name| (edit_distance(&plain, &dashed(name)), name))
        .min_by_key(|(d, _)| *d)?;
    let close = distance <= allowed && distance < name.len();
    close.then(|| format!("did you mean `{name}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        let names = ["limits", "on-outage", "by"];

        assert_eq!(did_you_mean("limit", names), Some("did you mean `limits`?".to_owned()));
        assert_eq!(did_you_mean("on_Outage", names), Some("did you mean `on-outage`?".to_owned()));
        assert_eq!(did_you_mean("bye", names), Some("did you mean `by`?".to_owned()));
        assert_eq!(did_you_mean("colour", names), None);
        assert_eq!(did_you_mean("x", names), None);
    }

    #[test]
    fn a_message_shows_the_beginning_of_a_value_on_one_line() {
        assert_eq!(quoted("a\nb"), "`a\\nb`");
        assert_eq!(quoted(&"x".repeat(1000)).chars().count(), 43);
    }
}
