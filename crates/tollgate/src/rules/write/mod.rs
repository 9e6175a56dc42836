//! From a declaration to a tree, and from there to text.
//!
//! Values that equal their defaults are left out, so a file shows only deliberate settings. A
//! declaration that `RuleSet::new` accepts reads back equal from every format.

mod json;
mod quote;
mod toml;
mod tree;
mod yaml;

use tollgate_core::rule::declaration::Declaration;

use super::Format;

/// Writes a declaration in a format.
pub(super) fn declaration(declaration: &Declaration, format: Format) -> String {
    let root = tree::file(declaration);
    match format {
        Format::Yaml => yaml::print(&root),
        Format::Toml => toml::print(&root),
        Format::Json => json::print(&root),
    }
}

/// Appends a text as a JSON string.
#[cfg(feature = "tower")]
pub(crate) fn push_json_string(out: &mut String, text: &str) {
    quote::push_quoted(out, text, quote::SupplementaryEscape::SurrogatePair);
}

/// A tree to print: like a parsed tree, without places.
#[derive(Clone, Debug)]
enum OutputTree {
    Bool(bool),
    /// A number in its printed form.
    Number(String),
    Text(String),
    List(Vec<Self>),
    Map(Vec<(String, Self)>),
}

/// A format's style within one line: items in brackets, entries in braces, and the scalars of the
/// format.
struct InLine {
    key: fn(&str) -> String,
    text: fn(&str) -> String,
    between: &'static str,
}

impl InLine {
    fn print(&self, tree: &OutputTree) -> String {
        match tree {
            OutputTree::Bool(flag) => flag.to_string(),
            OutputTree::Number(number) => number.clone(),
            OutputTree::Text(text) => (self.text)(text),
            OutputTree::List(items) => {
                let items: Vec<String> = items.iter().map(|item| self.print(item)).collect();
                format!("[{}]", items.join(", "))
            }
            OutputTree::Map(entries) if entries.is_empty() => "{}".to_owned(),
            OutputTree::Map(entries) => {
                let entry = |(key, value): &(String, OutputTree)| {
                    format!("{}{}{}", (self.key)(key), self.between, self.print(value))
                };
                let entries: Vec<String> = entries.iter().map(entry).collect();
                format!("{{ {} }}", entries.join(", "))
            }
        }
    }
}

impl OutputTree {
    const fn is_empty(&self) -> bool {
        match self {
            Self::List(items) => items.is_empty(),
            Self::Map(entries) => entries.is_empty(),
            _ => false,
        }
    }
}

/// The longest list or map that is printed on one line.
const ONE_LINE: usize = 80;

/// True if the value of this key always takes several lines, because people read down it.
fn is_multiline(key: &str) -> bool {
    matches!(key, "domains" | "rules" | "limits" | "lists")
}
