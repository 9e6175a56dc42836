//! A tree as TOML: domains, rules and lists as tables, all other values on one line.

use super::quote::{SupplementaryEscape, quoted};
use super::{InLine, ONE_LINE, OutputTree};

const IN_LINE: InLine = InLine { key: bare_or_quoted, text, between: " = " };

pub(super) fn print(root: &OutputTree) -> String {
    let mut out = String::new();
    table(&mut out, root, "");
    out
}

/// Writes the fields of a table, then the tables within it. After the header of an inner table,
/// TOML has no way back to the fields of its parent.
fn table(out: &mut String, tree: &OutputTree, path: &str) {
    let OutputTree::Map(entries) = tree else { return };
    let (tables, fields): (Vec<_>, Vec<_>) =
        entries.iter().partition(|(key, value)| is_table(key, value));
    for (key, value) in fields {
        out.push_str(&format!("{} = {}\n", bare_or_quoted(key), field(value)));
    }
    for (key, value) in tables {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match value {
            OutputTree::List(items) => {
                for item in items {
                    out.push_str(&format!("\n[[{path}]]\n"));
                    table(out, item, &path);
                }
            }
            inner => {
                out.push_str(&format!("\n[{path}]\n"));
                table(out, inner, &path);
            }
        }
    }
}

fn is_table(key: &str, value: &OutputTree) -> bool {
    !value.is_empty() && matches!(key, "domains" | "rules" | "lists")
}

/// A value on one line. A long list takes one line for each item, which TOML allows for lists only.
fn field(tree: &OutputTree) -> String {
    let line = IN_LINE.print(tree);
    match tree {
        OutputTree::List(items) if line.chars().count() > ONE_LINE => {
            let items: String =
                items.iter().map(|item| format!("  {},\n", IN_LINE.print(item))).collect();
            format!("[\n{items}]")
        }
        _ => line,
    }
}

fn text(text: &str) -> String {
    quoted(text, SupplementaryEscape::EightDigits)
}

fn bare_or_quoted(key: &str) -> String {
    let bare = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if !key.is_empty() && key.bytes().all(bare) { key.to_owned() } else { text(key) }
}
