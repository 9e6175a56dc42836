//! What is wrong with a rule file, where, and what to write instead.

use std::fmt;

/// Where something stands in a text. Lines and columns count from 1; a column is a character.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

impl Position {
    pub(crate) const START: Self = Self { line: 1, column: 1 };
}

/// One thing that is wrong with a rule file.
///
/// Prints as `12:7: unknown field `limit`; did you mean `limits`?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    at: Position,
    message: String,
    hint: Option<String>,
}

impl Problem {
    /// Messages may come from others and repeat what a client wrote: each becomes one line of
    /// bounded length.
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

    /// What is wrong, with what value. Values are cut short: a message never repeats a megabyte.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What to write instead, where that can be said.
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

/// Everything found wrong with a rule file, in the order of the file; never nothing.
///
/// At most [`Problems::MAX`] are kept: one slip can make a thousand.
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
    /// How many are kept.
    pub const MAX: usize = 20;

    /// The same, printed with the name of the file in front of each place.
    #[must_use]
    pub fn in_file(mut self, name: impl Into<String>) -> Self {
        self.file = Some(name.into());
        self
    }

    /// Each of them, by place.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.found.iter()
    }

    /// Whether there were more than are kept.
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

    /// Ok if there are none, else all of them by place.
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

/// The text without line breaks and other control characters, cut where it gets out of hand.
fn one_line(text: String) -> String {
    const LONGEST: usize = 500;
    if text.len() <= LONGEST && !text.contains(char::is_control) {
        return text;
    }
    let mut line = String::with_capacity(text.len().min(LONGEST));
    for letter in text.chars().take(LONGEST) {
        if letter.is_control() {
            line.extend(letter.escape_debug());
        } else {
            line.push(letter);
        }
    }
    if text.chars().nth(LONGEST).is_some() {
        line.push('…');
    }
    line
}

/// The beginning of a text, in backquotes, fit for one line of a message.
pub(crate) fn quoted(text: &str) -> String {
    const SHOWN: usize = 40;
    let mut shown = String::with_capacity(SHOWN);
    for letter in text.chars().take(SHOWN) {
        match letter {
            '\'' | '"' | '\\' => shown.push(letter),
            letter => shown.extend(letter.escape_debug()),
        }
    }
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}

/// `did you mean …?`, when one of the names is close to what was written.
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
        .map(|name| (edits(&plain, &dashed(name)), name))
        .min_by_key(|(d, _)| *d)?;
    let close = distance <= allowed && distance < name.len();
    close.then(|| format!("did you mean `{name}`?"))
}

/// How many letters must be added, dropped or changed to make one word of the other.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i.saturating_add(1);
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (cell, other) in row.iter_mut().skip(1).zip(&b) {
            let changed = diagonal.saturating_add(usize::from(letter != *other));
            diagonal = *cell;
            left = changed.min(left.saturating_add(1)).min(cell.saturating_add(1));
            *cell = left;
        }
    }
    row.last().copied().unwrap_or(0)
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
