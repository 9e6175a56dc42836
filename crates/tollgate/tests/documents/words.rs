//! Names and openings: each type name once in a crate, and no comment that begins with a question word.

use std::collections::BTreeMap;
use std::path::Path;

use crate::tree::{files, read, root};

const CRATES: [&str; 7] = ["core", "embedded", "harness", "macros", "redis", "server", "tollgate"];

fn sources(name: &str) -> Vec<std::path::PathBuf> {
    files(&root().join("crates").join(name).join("src"), &["rs"])
}

/// The type that a line defines at the level of a module; `type X;` in a trait is none.
fn defined(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.strip_prefix(' ')?,
        None => line,
    };
    let kinds = ["struct ", "enum ", "trait ", "union "];
    let name = kinds.iter().find_map(|kind| line.strip_prefix(kind))?;
    let end = name.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
    Some(&name[..end.unwrap_or(name.len())]).filter(|name| name.starts_with(char::is_uppercase))
}

/// The lines of a file that are neither in a string nor only for tests.
fn code(path: &Path) -> String {
    let text = read(path);
    let tests = text.find("\n#[cfg(test)]\nmod ").unwrap_or(text.len());
    text[..tests].to_owned()
}

/// Two types of one name, each behind the opposite of a feature, are one type to a reader.
const TWICE_BY_FEATURE: [&str; 1] = ["RequestScope"];

/// The names of types that these crates define more than once, in lines that begin so.
fn defined_twice(crates: &[&str], beginning: &str) -> BTreeMap<String, Vec<String>> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in crates.iter().flat_map(|name| sources(name)) {
        let text = code(&path);
        let lines = text.lines().filter(|line| line.trim_start().starts_with(beginning));
        for name in lines.filter_map(defined) {
            places.entry(name.to_owned()).or_default().push(path.display().to_string());
        }
    }
    assert!(places.len() > 3, "{crates:?} have only the types {places:?}");
    let twice =
        |name: &str, places: &[String]| places.len() > 1 && !TWICE_BY_FEATURE.contains(&name);
    places.retain(|name, places| twice(name, places));
    places
}

#[test]
fn no_type_name_is_defined_twice_in_a_crate() {
    for name in CRATES {
        let twice = defined_twice(&[name], "");
        assert!(twice.is_empty(), "{name} defines twice: {twice:#?}");
    }
}

/// A user may import from all of these into one file.
#[test]
fn no_public_type_name_is_defined_twice_in_the_library() {
    let twice = defined_twice(&["core", "embedded", "redis", "tollgate"], "pub ");
    assert!(twice.is_empty(), "defined twice: {twice:#?}");
}

#[test]
fn no_comment_begins_with_a_question_word() {
    let mut found = Vec::new();
    for name in CRATES {
        for path in sources(name) {
            for (at, line) in read(&path).lines().enumerate() {
                let line = line.trim_start();
                let Some(comment) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
                else {
                    continue;
                };
                let first = comment.trim_start().split(' ').next().unwrap_or_default();
                if ["What", "Who", "Whoever", "Whether", "How"].contains(&first) {
                    found.push(format!("{}:{}:{comment}", path.display(), at + 1));
                }
            }
        }
    }
    assert!(found.is_empty(), "say what it is, or what it does: {found:#?}");
}

#[test]
fn definitions_are_recognised() {
    assert_eq!(defined("pub(crate) struct Plan<'p> {"), Some("Plan"));
    assert_eq!(defined("    enum Phase<Svc, F, Q> {"), Some("Phase"));
    assert_eq!(defined("struct Refused;"), Some("Refused"));
    assert_eq!(defined("    type Error = Infallible;"), None);
    assert_eq!(defined("/// struct of arrays"), None);
}
