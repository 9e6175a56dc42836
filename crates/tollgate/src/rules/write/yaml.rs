//! A tree as YAML: blocks where people read down, braces where they read across.

use super::super::node::Value;
use super::super::yaml::plain;
use super::quote::{SupplementaryEscape, quoted};
use super::{InLine, ONE_LINE, OutputTree, is_multiline};

const IN_LINE: InLine = InLine { key: scalar, text: scalar, between: ": " };

pub(super) fn print(root: &OutputTree) -> String {
    let mut out = String::new();
    if let OutputTree::Map(entries) = root {
        map(&mut out, entries, 0);
    }
    out
}

fn map(out: &mut String, entries: &[(String, OutputTree)], indent: usize) {
    for (index, (key, value)) in entries.iter().enumerate() {
        if index > 0 {
            out.push_str(&" ".repeat(indent));
        }
        out.push_str(&scalar(key));
        out.push(':');
        // A line that is not wanted is not made: whole rule sets hang on some of these keys.
        let multiline = is_multiline(key) && !value.is_empty();
        let line = if multiline { None } else { Some(IN_LINE.print(value)) };
        let line = line.filter(|line| line.chars().count() <= ONE_LINE || is_flat(value));
        match (line, value) {
            (Some(line), _) => out.push_str(&format!(" {line}\n")),
            (None, OutputTree::List(items)) => {
                list(out, items, indent.saturating_add(2), matches!(&**key, "rules" | "domains"));
            }
            (None, OutputTree::Map(inner)) => {
                let indent = indent.saturating_add(2);
                out.push_str(&format!("\n{}", " ".repeat(indent)));
                map(out, inner, indent);
            }
            (None, scalar) => out.push_str(&format!(" {}\n", IN_LINE.print(scalar))),
        }
    }
}

/// True if it is never spread over several lines.
const fn is_flat(tree: &OutputTree) -> bool {
    tree.is_empty()
        || matches!(tree, OutputTree::Bool(_) | OutputTree::Number(_) | OutputTree::Text(_))
}

fn list(out: &mut String, items: &[OutputTree], indent: usize, multiline: bool) {
    out.push('\n');
    for item in items {
        out.push_str(&format!("{}- ", " ".repeat(indent)));
        match item {
            OutputTree::Map(entries) if multiline && !entries.is_empty() => {
                map(out, entries, indent.saturating_add(2));
            }
            _ => out.push_str(&format!("{}\n", IN_LINE.print(item))),
        }
    }
}

/// A text, without quotes if every YAML parser of any version reads it as that text.
fn scalar(text: &str) -> String {
    if is_plain(text) { text.to_owned() } else { quoted(text, SupplementaryEscape::EightDigits) }
}

fn is_plain(text: &str) -> bool {
    let begins = |c: char| c.is_ascii_alphanumeric() || c == '/';
    let letter = |c: char| begins(c) || "_.-".contains(c);
    let words = text.split(' ').all(|word| word.starts_with(begins) && word.chars().all(letter));
    // What YAML 1.1 reads as a truth, a number or a date.
    let truth = ["y", "n", "yes", "no", "on", "off"].iter().any(|t| text.eq_ignore_ascii_case(t));
    let digits = text.starts_with(|c: char| c.is_ascii_digit())
        && !text.contains(|c: char| "dhmpsuw/".contains(c))
        && text.matches('.').count() < 2;
    let is_text = matches!(plain(text.into()), Value::Text(_));
    words && is_text && !truth && !digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_where_some_reader_would_take_them_for_something_else() {
        for text in ["5 per 1m", "30s", "/login", "10.0.0.0/8", "203.0.113.7", "header.x-user"] {
            assert_eq!(scalar(text), text);
        }
        for text in [
            "off",
            "No",
            "1_000",
            "2001-01-01",
            "1e3",
            "null",
            "/orders/{id}",
            "a*",
            "a: b",
            "a #b",
            " a",
            "a -",
            "",
            "-",
            "::1",
        ] {
            assert_eq!(scalar(text), format!("\"{text}\""));
        }
    }
}
