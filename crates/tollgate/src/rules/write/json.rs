//! A tree as JSON. Long lists and maps take several lines.

use super::quote::{SupplementaryEscape, quoted};
use super::{InLine, ONE_LINE, OutputTree, is_multiline};

const IN_LINE: InLine = InLine { key: text, text, between: ": " };

pub(super) fn print(root: &OutputTree) -> String {
    let mut out = String::new();
    lines(&mut out, root, 0, LineBreaks::Always);
    out.push('\n');
    out
}

/// Tells when a list or a map takes several lines.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineBreaks {
    Always,
    /// Always, and its items as well, where they are lists or maps.
    InItems,
    WhenLong,
}

fn lines(out: &mut String, tree: &OutputTree, indent: usize, line_breaks: LineBreaks) {
    let short =
        line_breaks == LineBreaks::WhenLong && IN_LINE.print(tree).chars().count() <= ONE_LINE;
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
            let of_items = if line_breaks == LineBreaks::InItems {
                LineBreaks::Always
            } else {
                LineBreaks::WhenLong
            };
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
                lines(out, value, inner, line_breaks_of(key));
            }
            out.push_str(&format!("\n{}}}", " ".repeat(indent)));
        }
        scalar => out.push_str(&IN_LINE.print(scalar)),
    }
}

fn line_breaks_of(key: &str) -> LineBreaks {
    match key {
        "domains" | "rules" => LineBreaks::InItems,
        key if is_multiline(key) => LineBreaks::Always,
        _ => LineBreaks::WhenLong,
    }
}

fn text(text: &str) -> String {
    quoted(text, SupplementaryEscape::SurrogatePair)
}
