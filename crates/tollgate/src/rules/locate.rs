//! From a place in a declaration to a place in the text it was read from.

use tollgate_core::rule::Place;

use super::node::{Node, Value};
use super::problem::Position;

/// The place in the text; for an absent field, the place where it would be.
pub(super) fn locate(root: &Node<'_>, place: Place) -> Position {
    let mut node = root;
    if let Some(index) = place.domain
        && let Some(domain) = root.get("domains").and_then(|domains| domains.item(index))
    {
        node = domain;
    }
    let steps = [("rules", place.rule), ("limits", place.limit)];
    for (list, index) in steps {
        let Some(index) = index else { continue };
        match node.get(list).and_then(|items| items.item(index)) {
            Some(inner) => node = inner,
            None => return node.at,
        }
    }
    let Some(field) = place.field else { return node.at };
    let entry = match (place.rule, field) {
        (None, "name") => node.entry("domain"),
        (None, "exempt" | "block") => node.get("lists").and_then(|lists| lists.entry(field)),
        _ => node.entry(field),
    };
    match (entry, place.item) {
        (None, _) => node.at,
        (Some(entry), None) => entry.node.at,
        (Some(entry), Some(item)) => item_at(&entry.node, item, place.value),
    }
}

/// The place of an item of a list or a map, or of one of the values of that item.
fn item_at(node: &Node<'_>, item: usize, value: Option<usize>) -> Position {
    match &node.value {
        Value::List(items) => items.get(item).map_or(node.at, |item| item.at),
        Value::Map(entries) => match (entries.get(item), value) {
            (None, _) => node.at,
            (Some(entry), None) => entry.at,
            (Some(entry), Some(value)) => {
                entry.node.item(value).map_or(entry.node.at, |value| value.at)
            }
        },
        _ => node.at,
    }
}
