//! Rule sets as files: YAML, TOML and JSON with one meaning.
//!
//! Every format is parsed into one small tree that knows the place of each value. One reader turns
//! it into a [`Declaration`], so the formats cannot drift apart. Problems are reported with line,
//! column and a hint, many at once. `docs/rules.md` describes the fields, and [`SCHEMA`] describes
//! them for editors.
//!
//! ```
//! use tollgate::rules::{self, Format};
//!
//! let declared = rules::read(
//!     "version: 1
//! domain: shop
//! rules:
//!   - name: login-per-ip
//!     match: { path: /login, method: POST }
//!     by: [ip]
//!     limits: [5 per 1m]
//! ",
//!     Format::Yaml,
//! )?;
//!
//! let toml = rules::write(&declared, Format::Toml);
//! assert_eq!(rules::read(&toml, Format::Toml)?, declared);
//! # Ok::<(), rules::Problems>(())
//! ```

#![allow(clippy::arithmetic_side_effects, reason = "counts and places in texts of bounded length")]

mod json;
mod locate;
mod names;
pub(crate) mod node;
pub(crate) mod problem;
mod read;
mod toml;
mod write;
mod yaml;

use std::path::Path;

use tollgate_core::rule::RuleSet;
use tollgate_core::rule::declaration::Declaration;

use node::Node;
use problem::Position;
pub use problem::{Problem, Problems};
pub use tollgate_core::rule::{
    ActiveBan, ActiveLimit, ActiveRule, LimitKind, NetworkError, Place, RuleError, bounds,
    declaration,
};

#[cfg(feature = "tower")]
pub(crate) use write::push_json_string;

/// A JSON Schema (draft 2020-12) of rule files, for editors and other tools.
///
/// It accepts everything that [`load`] accepts. It rejects unknown fields and wrong kinds of
/// values. Problems that a schema cannot express, such as a duplicate name, are found by [`read`]
/// and [`load`] only.
pub const SCHEMA: &str = include_str!("../../schema/rules.schema.json");

/// The longest text that is read: 100 000 rules of three hundred bytes each.
///
/// A set should have fewer. A longer text is a mistake or an attack, and is rejected before it
/// costs memory.
pub const MAX_TEXT: usize = 32 * 1024 * 1024;

/// The format of a rule file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// YAML 1.2 without anchors, aliases and tags, in one document.
    Yaml,
    /// TOML 1.0.
    Toml,
    /// JSON as in RFC 8259, with unique keys.
    Json,
}

impl Format {
    /// Detects the format by the extension of a file: `.yaml`, `.yml`, `.toml` or `.json`.
    ///
    /// ```
    /// use tollgate::rules::Format;
    ///
    /// assert_eq!(Format::of_path("/etc/tollgate/rules.yml"), Some(Format::Yaml));
    /// assert_eq!(Format::of_path("rules.txt"), None);
    /// ```
    pub fn of_path(path: impl AsRef<Path>) -> Option<Self> {
        let extension = path.as_ref().extension()?.to_str()?;
        match extension.to_ascii_lowercase().as_str() {
            "yaml" | "yml" => Some(Self::Yaml),
            "toml" => Some(Self::Toml),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// Reads a declaration from a text. [`load`] also checks that it makes a rule set.
///
/// # Errors
///
/// All problems of the text as a rule file. A text with a syntax error or a duplicate key, or one
/// that is longer than [`MAX_TEXT`], is reported by its first problem only.
pub fn read(text: &str, format: Format) -> Result<Declaration, Problems> {
    read::declaration(&parse(text, format)?)
}

/// Reads a rule set: parses the declaration, checks it as a whole, and prepares it for judging.
///
/// ```
/// use tollgate::rules::{self, Format};
///
/// let text = r#"{ "version": 1, "domain": "shop", "rules": [
///     { "name": "all", "by": ["path.id"], "limits": ["5 per 1m"] } ] }"#;
///
/// let problems = rules::load(text, Format::Json).unwrap_err().in_file("rules.json");
/// assert!(problems.to_string().starts_with("rules.json:2:29: no path is matched that captures `id`"));
/// ```
///
/// # Errors
///
/// As [`read`]; and all problems of the rules as a whole, at their places in the text.
pub fn load(text: &str, format: Format) -> Result<RuleSet, Problems> {
    let root = parse(text, format)?;
    let declaration = read::declaration(&root)?;
    RuleSet::new(declaration).map_err(|errors| {
        let mut problems = Problems::default();
        for error in errors {
            let at = locate::locate(&root, error.place());
            problems.add(at, error.message(), error.hint().map(str::to_owned));
        }
        problems.sorted()
    })
}

/// Writes a declaration, and leaves out values that equal their defaults.
///
/// A declaration that [`RuleSet::new`] accepts reads back equal. Comments and the original spelling
/// are not kept.
pub fn write(declaration: &Declaration, format: Format) -> String {
    write::declaration(declaration, format)
}

/// Decodes the bytes of a file.
///
/// # Errors
///
/// With the place of the first byte that is not UTF-8.
pub fn decode(bytes: &[u8]) -> Result<&str, Problems> {
    std::str::from_utf8(bytes).map_err(|error| {
        let valid = bytes.get(..error.valid_up_to()).unwrap_or_default();
        let text = std::str::from_utf8(valid).unwrap_or_default();
        let at = node::LineIndex::new(text).at(text.len());
        let hint = "save the file as UTF-8".to_owned();
        Problems::one(at, "a byte that is not UTF-8", Some(hint))
    })
}

pub(crate) fn parse(text: &str, format: Format) -> Result<Node<'_>, Problems> {
    if text.len() > MAX_TEXT {
        let message = format!("a file of {} bytes is above {MAX_TEXT}", text.len());
        return Err(Problems::one(Position::START, message, None));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match format {
        Format::Yaml => yaml::parse(text),
        Format::Toml => toml::parse(text),
        Format::Json => json::parse(text),
    }
}

#[cfg(test)]
mod tests {
    use super::names::{self, Choices};
    use super::node::{Node, Value};

    fn keys(node: &Node<'_>) -> Vec<String> {
        let Value::Map(entries) = &node.value else { panic!("{node:?} is no map") };
        entries.iter().map(|entry| entry.key.to_string()).collect()
    }

    fn walk<'n, 't>(root: &'n Node<'t>, path: &str) -> &'n Node<'t> {
        path.split('/').fold(root, |node, key| {
            let item = key.parse().ok().and_then(|index| node.item(index));
            item.or_else(|| node.get(key)).unwrap_or_else(|| panic!("no {key} of {path}"))
        })
    }

    #[test]
    fn the_schema_has_the_fields_of_the_reader() {
        let root = super::json::parse(super::SCHEMA).unwrap();
        let file: Vec<&str> = names::FILE.iter().chain(names::DOMAIN).copied().collect();

        for (path, fields) in [
            ("properties", file.as_slice()),
            ("$defs/domain/properties", names::DOMAIN),
            ("$defs/lists/properties", names::LISTS),
            ("$defs/rule/properties", names::RULE),
            ("$defs/limit-fields/properties", names::LIMIT),
            ("$defs/ban/properties", names::BAN),
            ("$defs/cost/anyOf/1/properties", names::COST),
        ] {
            let (mut schema, mut fields) = (keys(walk(&root, path)), fields.to_vec());
            schema.sort();
            fields.sort_unstable();
            assert_eq!(schema, fields, "{path}");
        }
    }

    #[test]
    fn the_schema_has_the_choices_of_the_reader() {
        fn check<T>(root: &Node<'_>, path: &str, names: Choices<T>) {
            let Value::List(items) = &walk(root, path).value else { panic!("{path} is no list") };
            let text = |node: &Node<'_>| match &node.value {
                Value::Text(text) => text.to_string(),
                other => panic!("{other:?} is no text"),
            };
            let schema: Vec<String> = items.iter().map(text).collect();
            let ours: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
            assert_eq!(schema, ours, "{path}");
        }
        let root = super::json::parse(super::SCHEMA).unwrap();

        check(&root, "$defs/domain/properties/path-case/enum", names::PATH_CASE);
        check(&root, "$defs/rule/properties/scenario/enum", names::SCENARIO);
        check(&root, "$defs/rule/properties/mode/enum", names::MODE);
        check(&root, "$defs/rule/properties/on-outage/enum", names::ON_OUTAGE);
        check(&root, "$defs/rule/properties/on-change/enum", names::ON_CHANGE);
        check(&root, "$defs/rule/properties/on-full/enum", names::ON_FULL);
        check(&root, "$defs/rule/properties/on-missing/enum", names::ON_MISSING);
        check(&root, "$defs/limit-fields/properties/algorithm/enum", names::ALGORITHM);
        check(&root, "$defs/limit-fields/properties/anchor/enum", names::ANCHOR);
        check(&root, "$defs/limit-fields/properties/estimate/enum", names::ESTIMATE);
        check(&root, "$defs/limit-fields/properties/payment/enum", names::PAYMENT);
    }
}
