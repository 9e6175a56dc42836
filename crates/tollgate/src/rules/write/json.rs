//! A tree as JSON. Long lists and maps take several lines.

use super::quote::{SupplementaryEscape, quoted};
use super::{InLine, ONE_LINE, OutputTree, is_spread};

const IN_LINE: InLine = InLine { key: text, text, between: ": " };

pub(super) fn print(root: &OutputTree) -> String {
    let mut out = String::new();
    lines(&mut out, root, 0, Spread::Always);
    out.push('\n');
    out
}

/// The lists and maps that take several lines.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spread {
    Always,
    /// Its items are, where they are lists or maps; itself as well.
    Items,
    WhenLong,
}

fn lines(out: &mut String, tree: &OutputTree, indent: usize, spread: Spread) {
    let short = spread == Spread::WhenLong && IN_LINE.print(tree).chars().count() <= ONE_LINE;
    if short || tree.is_empty() {
        out.push_str(&IN_LINE.print(tree));
        return;
    }
    let inner = indent.saturating_add(2);
    let separate = |out: &mut String, index: usize| {
        out.push_str(if index == 0 { "\n" } else { ",\n" });
        out.push_str(&" ".repeat(inner));
    };
    match tree {
        OutputTree::List(items) => {
            let of_items = if spread == Spread::Items { Spread::Always } else { Spread::WhenLong };
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                separate(out, index);
                lines(out, item, inner, of_items);
            }
            out.push_str(&format!("\n{}]", " ".repeat(indent)));
        }
        OutputTree::Map(entries) => {
            out.push('{');
            for (index, (key, value)) in entries.iter().enumerate() {
                separate(out, index);
                out.push_str(&format!("{}: ", text(key)));
                lines(out, value, inner, spread_of(key));
            }
            out.push_str(&format!("\n{}}}", " ".repeat(indent)));
        }
        scalar => out.push_str(&IN_LINE.print(scalar)),
    }
}

fn spread_of(key: &str) -> Spread {
    match key {
        "domains" | "rules" => Spread::Items,
        key if is_spread(key) => Spread::Always,
        _ => Spread::WhenLong,
    }
}

fn text(text: &str) -> String {
    quoted(text, SupplementaryEscape::SurrogatePair)
}
