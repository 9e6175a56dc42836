//! TOML into a tree.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::node::{Budget, LineIndex, MapEntry, Node, Value, check_keys};
use super::problem::{Position, Problems};

pub(super) fn parse(text: &str) -> Result<Node<'_>, Problems> {
    let lines = LineIndex::new(text);
    // The parser builds a tree of its own, which must be bounded before it is built: every value
    // but the first has one of these in front of it.
    let values = text.bytes().filter(|byte| b",=[{".contains(byte)).count();
    if values > Budget::NODES {
        let message = format!("more than {} values in one file", Budget::NODES);
        return Err(Problems::one(Position::START, message, None));
    }
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(Position::START, |span| lines.at(span.start));
        Problems::one(at, error.message().replace('\n', ", "), None)
    })?;
    TomlConverter { lines }.table(Position::START, table.into_inner(), 0)
}

struct TomlConverter<'t> {
    lines: LineIndex<'t>,
}

impl<'t> TomlConverter<'t> {
    fn node(&self, value: Spanned<DeValue<'t>>, depth: usize) -> Result<Node<'t>, Problems> {
        let at = self.lines.at(value.span().start);
        let value = match value.into_inner() {
            DeValue::String(text) => Value::Text(text),
            DeValue::Integer(number) if number.radix() == 10 => {
                Value::Number(Cow::Owned(number.as_str().to_owned()))
            }
            DeValue::Integer(number) => Value::Number(Cow::Owned(number.to_string())),
            DeValue::Float(number) => Value::Number(Cow::Owned(number.as_str().to_owned())),
            DeValue::Boolean(flag) => Value::Bool(flag),
            DeValue::Datetime(_) => {
                let hint = "no field is one".to_owned();
                return Err(Problems::one(at, "a date or time of day", Some(hint)));
            }
            DeValue::Array(items) => return self.list(at, items, depth),
            DeValue::Table(table) => return self.table(at, table, depth),
        };
        Ok(Node { at, value })
    }

    fn list(&self, at: Position, items: DeArray<'t>, depth: usize) -> Result<Node<'t>, Problems> {
        let inner = deeper(at, depth)?;
        let items = items.into_iter().map(|item| self.node(item, inner));
        Ok(Node { at, value: Value::List(items.collect::<Result<_, _>>()?) })
    }

    fn table(&self, at: Position, table: DeTable<'t>, depth: usize) -> Result<Node<'t>, Problems> {
        let inner = deeper(at, depth)?;
        let mut entries = Vec::with_capacity(table.len());
        for (key, value) in table {
            let at = self.lines.at(key.span().start);
            entries.push(MapEntry { key: key.into_inner(), at, node: self.node(value, inner)? });
        }
        // The parser sorts by name; conditions are kept in the order of the file.
        entries.sort_by_key(|entry| entry.at);
        check_keys(&entries)?;
        Ok(Node { at, value: Value::Map(entries) })
    }
}

fn deeper(at: Position, depth: usize) -> Result<usize, Problems> {
    if depth >= Budget::DEPTH { Err(Budget::too_deep(at)) } else { Ok(depth.saturating_add(1)) }
}
