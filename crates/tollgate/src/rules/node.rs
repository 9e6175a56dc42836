//! The tree that every format is parsed into: values with their places.
//!
//! Numbers stay text, so that none is rounded before it is checked. [`super::read`] gives fields
//! their meaning.

use std::borrow::Cow;

use super::problem::{Position, Problems, quoted};

/// A value of a rule file, with its place.
#[derive(Clone, Debug)]
pub(crate) struct Node<'t> {
    pub(crate) at: Position,
    pub(crate) value: Value<'t>,
}

#[derive(Clone, Debug)]
pub(crate) enum Value<'t> {
    Null,
    Bool(bool),
    /// The number as written: `5`, `1.2`, `1e400`, `.nan`.
    Number(Cow<'t, str>),
    Text(Cow<'t, str>),
    List(Vec<Node<'t>>),
    Map(Vec<MapEntry<'t>>),
}

/// A key of a map and its value. Entries are in the order of the file, with unique keys.
#[derive(Clone, Debug)]
pub(crate) struct MapEntry<'t> {
    pub(crate) key: Cow<'t, str>,
    pub(crate) at: Position,
    pub(crate) node: Node<'t>,
}

impl<'t> Node<'t> {
    /// The value of this key; `None` if this is not a map, or the key is absent.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|entry| &entry.node)
    }

    pub(crate) fn entry(&self, key: &str) -> Option<&MapEntry<'t>> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == key),
            _ => None,
        }
    }

    /// The item at this index; `None` if this is not a list, or the list is shorter.
    pub(crate) fn item(&self, index: usize) -> Option<&Self> {
        match &self.value {
            Value::List(items) => items.get(index),
            _ => None,
        }
    }

    /// Its description in messages.
    pub(crate) fn described(&self) -> String {
        match &self.value {
            Value::Null => "nothing".to_owned(),
            Value::Bool(flag) => format!("`{flag}`"),
            Value::Number(text) => format!("the number {}", quoted(text)),
            Value::Text(text) => format!("the text {}", quoted(text)),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        }
    }
}

/// A map whose keys are all known.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'n, 't> {
    pub(crate) at: Position,
    pub(crate) entries: &'n [MapEntry<'t>],
}

impl<'n, 't> Fields<'n, 't> {
    pub(crate) fn get(&self, name: &str) -> Option<&'n Node<'t>> {
        self.entry(name).map(|entry| &entry.node)
    }

    pub(crate) fn entry(&self, name: &str) -> Option<&'n MapEntry<'t>> {
        self.entries.iter().find(|entry| entry.key == name)
    }

    /// A field; `None` if it is absent or null.
    pub(crate) fn get_filled(&self, name: &str) -> Option<&'n Node<'t>> {
        self.get(name).filter(|node| !matches!(node.value, Value::Null))
    }
}

/// The limits of a tree: its depth and its number of values.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    nodes: usize,
}

impl Budget {
    /// The deepest nesting of lists and maps. A rule set needs eight levels.
    pub(crate) const DEPTH: usize = 32;

    /// The most values in a file: 100 000 rules of forty values each. A value takes about fifty
    /// bytes of memory, even if its text is short.
    pub(crate) const NODES: usize = 4_000_000;

    /// Counts one more value, or reports that it is one too many.
    pub(crate) fn spend(&mut self, at: Position) -> Result<(), Problems> {
        self.nodes += 1;
        if self.nodes > Self::NODES {
            let hint = "split the rules into several domains on several nodes".to_owned();
            return Err(Problems::one(
                at,
                format!("more than {} values in one file", Self::NODES),
                Some(hint),
            ));
        }
        Ok(())
    }

    /// A budget that this many values exhaust.
    #[cfg(test)]
    pub(crate) const fn of(values: usize) -> Self {
        Self { nodes: Self::NODES.saturating_sub(values) }
    }

    pub(crate) fn too_deep(at: Position) -> Problems {
        Problems::one(at, format!("nested deeper than {} levels", Self::DEPTH), None)
    }
}

/// The longest key, in bytes: the longest name of an attribute. A YAML parser limits keys to 1024
/// characters, escapes included, unless they are marked with `?`.
const MAX_KEY: usize = 128;

/// Rejects a duplicate key in a map, where most parsers drop the first value, and a key that is too
/// long.
pub(crate) fn check_keys(entries: &[MapEntry<'_>]) -> Result<(), Problems> {
    let mut problems = Problems::default();
    for entry in entries.iter().filter(|entry| entry.key.len() > MAX_KEY) {
        let message = format!("the key {} is longer than {MAX_KEY} bytes", quoted(&entry.key));
        problems.add(entry.at, message, None);
    }
    let mut sorted: Vec<&MapEntry<'_>> = entries.iter().collect();
    sorted.sort_by(|a, b| a.key.cmp(&b.key).then(a.at.cmp(&b.at)));
    let mut twice: Vec<_> = sorted
        .iter()
        .zip(sorted.iter().skip(1))
        .filter(|(first, second)| first.key == second.key)
        .collect();
    twice.sort_by_key(|(_, second)| second.at);
    for (first, second) in twice {
        let hint = format!("the first is at {}:{}", first.at.line, first.at.column);
        problems.add(
            second.at,
            format!("the key {} is here twice", quoted(&second.key)),
            Some(hint),
        );
    }
    problems.none_or(())
}

/// Turns offsets in a text into places without counting from the beginning each time.
pub(crate) struct LineIndex<'t> {
    text: &'t str,
    /// The place of the first character at or behind each multiple of [`LineIndex::STEP`] bytes.
    marks: Vec<(usize, Position)>,
}

impl<'t> LineIndex<'t> {
    const STEP: usize = 128;

    pub(crate) fn new(text: &'t str) -> Self {
        let mut marks = Vec::with_capacity(text.len().div_ceil(Self::STEP));
        let mut at = Position::START;
        for (offset, letter) in text.char_indices() {
            if offset >= marks.len() * Self::STEP {
                marks.push((offset, at));
            }
            at = at.after(letter);
        }
        Self { text, marks }
    }

    /// The place of a byte; of the end, for an offset behind it.
    pub(crate) fn at(&self, offset: usize) -> Position {
        let behind = self.marks.partition_point(|(mark, _)| *mark <= offset);
        let Some((mark, at)) = behind.checked_sub(1).map(|last| self.marks[last]) else {
            return Position::START;
        };
        let letters = self.text[mark..].char_indices();
        let before = letters.take_while(|(index, _)| mark + index < offset);
        before.fold(at, |at, (_, letter)| at.after(letter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ruler_counts_lines_and_characters() {
        let text = format!("aé\n{}x", "ü".repeat(500));
        let lines = LineIndex::new(&text);

        assert_eq!(lines.at(0), Position { line: 1, column: 1 });
        assert_eq!(lines.at(3), Position { line: 1, column: 3 });
        assert_eq!(lines.at(4), Position { line: 2, column: 1 });
        assert_eq!(lines.at(4 + 1000), Position { line: 2, column: 501 });
        assert_eq!(lines.at(9999), Position { line: 2, column: 502 }, "the end");
        assert_eq!(lines.at(6), Position { line: 2, column: 2 }, "back again");
        assert_eq!(LineIndex::new("").at(7), Position::START);
    }
}
