//! YAML into a tree. It accepts one document of maps, lists and scalars. It rejects anchors,
//! aliases and tags, so a file cannot expand beyond its size.
//!
//! Scalars follow YAML 1.2: `no` and `off` are texts, and `007` is a number. The meaning of a
//! number is checked elsewhere.

use std::borrow::Cow;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span};

use super::node::{Budget, MapEntry, Node, Value, check_keys};
use super::problem::{Position, Problems};

pub(crate) fn parse(text: &str) -> Result<Node<'_>, Problems> {
    parse_within(text, Budget::default())
}

fn parse_within(text: &str, budget: Budget) -> Result<Node<'_>, Problems> {
    let mut builder = TreeBuilder { budget, ..TreeBuilder::default() };
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, span) =
            event.map_err(|error| Problems::one(at(*error.marker()), error.info(), None))?;
        builder.take(event, span)?;
    }
    builder.root.ok_or_else(|| Problems::one(Position::START, "the file is empty", None))
}

#[derive(Default)]
struct TreeBuilder<'t> {
    root: Option<Node<'t>>,
    open: Vec<OpenCollection<'t>>,
    documents: usize,
    budget: Budget,
}

/// A list or map whose end has not come yet.
struct OpenCollection<'t> {
    at: Position,
    inside: Collection<'t>,
}

enum Collection<'t> {
    List(Vec<Node<'t>>),
    Map { entries: Vec<MapEntry<'t>>, key: Option<(Cow<'t, str>, Position)> },
}

impl<'t> TreeBuilder<'t> {
    fn take(&mut self, event: Event<'t>, span: Span) -> Result<(), Problems> {
        let at = at(span.start);
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                refuse_marks(at, anchor, tag.is_some())?;
                self.scalar(at, text, style)
            }
            Event::SequenceStart(anchor, tag) => {
                refuse_marks(at, anchor, tag.is_some())?;
                self.begin(at, Collection::List(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                refuse_marks(at, anchor, tag.is_some())?;
                self.begin(at, Collection::Map { entries: Vec::new(), key: None })
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(_) => {
                let hint = "write the value out".to_owned();
                Err(Problems::one(at, "aliases are not read here", Some(hint)))
            }
            Event::DocumentStart(_) => {
                self.documents = self.documents.saturating_add(1);
                if self.documents > 1 {
                    let hint = "use `domains` for several".to_owned();
                    return Err(Problems::one(at, "a second document", Some(hint)));
                }
                Ok(())
            }
            Event::DocumentEnd | Event::StreamStart | Event::StreamEnd | Event::Nothing => Ok(()),
        }
    }

    fn scalar(
        &mut self,
        at: Position,
        text: Cow<'t, str>,
        style: ScalarStyle,
    ) -> Result<(), Problems> {
        if let Some(OpenCollection { inside: Collection::Map { key: key @ None, .. }, .. }) =
            self.open.last_mut()
        {
            *key = Some((text, at));
            return Ok(());
        }
        let value = if style == ScalarStyle::Plain { plain(text) } else { Value::Text(text) };
        self.place(Node { at, value })
    }

    fn begin(&mut self, at: Position, inside: Collection<'t>) -> Result<(), Problems> {
        if let Some(OpenCollection { inside: Collection::Map { key: None, .. }, .. }) =
            self.open.last()
        {
            let hint = "quote a text that begins with a bracket".to_owned();
            return Err(Problems::one(at, "a list or map in place of a key", Some(hint)));
        }
        if self.open.len() >= Budget::DEPTH {
            return Err(Budget::too_deep(at));
        }
        self.open.push(OpenCollection { at, inside });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Problems> {
        let Some(OpenCollection { at, inside }) = self.open.pop() else { return Ok(()) };
        let value = match inside {
            Collection::List(items) => Value::List(items),
            Collection::Map { entries, .. } => {
                check_keys(&entries)?;
                Value::Map(entries)
            }
        };
        self.place(Node { at, value })
    }

    /// Adds a finished value to its list or map.
    fn place(&mut self, node: Node<'t>) -> Result<(), Problems> {
        self.budget.spend(node.at)?;
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(OpenCollection { inside: Collection::List(items), .. }) => items.push(node),
            Some(OpenCollection { inside: Collection::Map { entries, key }, .. }) => {
                if let Some((key, at)) = key.take() {
                    entries.push(MapEntry { key, at, node });
                }
            }
        }
        Ok(())
    }
}

fn refuse_marks(at: Position, anchor: usize, tagged: bool) -> Result<(), Problems> {
    let (what, hint) = match (anchor, tagged) {
        (0, false) => return Ok(()),
        (0, true) => ("tags are not read here", "quote a text that begins with `!`"),
        _ => (
            "anchors are not read here",
            "write the value out, or quote a text that begins with `&`",
        ),
    };
    Err(Problems::one(at, what, Some(hint.to_owned())))
}

fn at(marker: Marker) -> Position {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Position { line: number(marker.line()).max(1), column: number(marker.col()).saturating_add(1) }
}

/// The value of an unquoted scalar, by the core schema of YAML 1.2.
pub(crate) fn plain(text: Cow<'_, str>) -> Value<'_> {
    match text.as_ref() {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        other if is_number(other) => Value::Number(text),
        _ => Value::Text(text),
    }
}

fn is_number(text: &str) -> bool {
    let all = |digits: &str, radix| {
        !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix))
    };
    if let Some(digits) = text.strip_prefix("0x") {
        return all(digits, 16);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return all(digits, 8);
    }
    let bare = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(bare, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    let (mantissa, exponent) = match bare.split_once(['e', 'E']) {
        None => (bare, None),
        Some((mantissa, exponent)) => {
            (mantissa, Some(exponent.strip_prefix(['-', '+']).unwrap_or(exponent)))
        }
    };
    let (whole, decimals) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let digits = |part: &str| part.is_empty() || all(part, 10);
    let some = !whole.is_empty() || (mantissa.contains('.') && !decimals.is_empty());
    some && digits(whole) && digits(decimals) && exponent.is_none_or(|part| all(part, 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted() {
        assert!(parse_within("[a, b, {c: d}]", Budget::of(5)).is_ok());

        let problems = parse_within("[a, b, {c: d}]", Budget::of(4)).unwrap_err();

        assert!(problems.to_string().contains("more than 4000000 values"), "{problems}");
    }

    #[test]
    fn numbers_are_told_from_texts() {
        for number in
            ["0", "-0", "+7", "1.2", "1.", ".5", "1e400", "1E-3", "0x1f", "0o17", ".nan", "-.inf"]
        {
            assert!(is_number(number), "{number}");
        }
        for text in [
            "",
            ".",
            "-",
            "e5",
            "1m",
            "5 per 1m",
            "203.0.113.7",
            "10.0.0.0/8",
            "1_000",
            "0x",
            "1e",
            "nan",
        ] {
            assert!(!is_number(text), "{text}");
        }
    }
}
