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
const TWICE_BY_FEATURE: [&str; 1] = ["tollgate RequestScope"];

#[test]
fn no_type_name_is_defined_twice_in_a_crate() {
    let mut twice = Vec::new();
    for name in CRATES {
        let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for path in sources(name) {
            for line in code(&path).lines() {
                if let Some(defined) = defined(line) {
                    places.entry(defined.to_owned()).or_default().push(path.display().to_string());
                }
            }
        }
        assert!(!places.is_empty(), "{name} has no types");
        places.retain(|_, places| places.len() > 1);
        twice.extend(places.into_iter().map(|(defined, at)| (format!("{name} {defined}"), at)));
    }
    twice.retain(|(name, _)| !TWICE_BY_FEATURE.contains(&name.as_str()));
    assert!(twice.is_empty(), "defined twice: {twice:#?}");
}

/// A user may import from all of these into one file.
#[test]
fn no_public_type_name_is_defined_twice_in_the_library() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in ["core", "embedded", "redis", "tollgate"] {
        for path in sources(name) {
            let text = code(&path);
            let public = text.lines().filter(|line| line.trim_start().starts_with("pub "));
            for defined in public.filter_map(defined) {
                places.entry(defined.to_owned()).or_default().push(path.display().to_string());
            }
        }
    }
    places.retain(|name, places| places.len() > 1 && name != "RequestScope");
    assert!(places.is_empty(), "defined twice: {places:#?}");
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
