//! Every bound in `docs/bounds.md` names tests that are there.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where a file is, by the prefixes that the document's first paragraph gives.
fn file(named: &str) -> PathBuf {
    let crates = root().join("crates");
    let (of, rest) = named.split_once('/').unwrap_or(("", named));
    match (of, rest.starts_with("src/") || rest.starts_with("tests/")) {
        ("embedded", _) => crates.join("embedded/tests").join(rest),
        ("interop", _) => root().join("interop/tests").join(rest),
        ("redis" | "tollgate", true) => crates.join(named),
        ("redis", false) => crates.join("redis/src").join(rest),
        ("tollgate", false) => crates.join("tollgate/tests").join(rest),
        _ => crates.join("core/tests").join(named),
    }
}

fn has_word(text: &str, word: &str) -> bool {
    let within = |c: char| c.is_alphanumeric() || c == '_';
    text.split(|c| !within(c)).any(|found| found == word)
}

#[test]
fn every_test_that_a_bound_names_exists() {
    let text = std::fs::read_to_string(root().join("docs/bounds.md")).unwrap();
    // A name after `…` is in the file named last.
    let (mut named, mut missing, mut last) = (0, Vec::new(), String::new());
    for line in text.lines().filter(|line| line.starts_with('|')) {
        for span in line.split('`').skip(1).step_by(2) {
            let name = match (span.split_once("::"), span.strip_prefix('…')) {
                (Some((file, name)), _) if file.ends_with(".rs") => {
                    file.clone_into(&mut last);
                    name
                }
                (None, Some(name)) => name,
                _ => continue,
            };
            named += 1;
            let source = std::fs::read_to_string(file(&last));
            if !source.is_ok_and(|source| has_word(&source, name)) {
                missing.push(format!("{last}::{name}"));
            }
        }
    }

    assert!(named > 200, "only {named} were found in the tables");
    assert!(missing.is_empty(), "named in docs/bounds.md and not there: {missing:#?}");
}

#[test]
fn every_bound_has_a_test() {
    let text = std::fs::read_to_string(root().join("docs/bounds.md")).unwrap();
    let untested: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with('|') && line.to_lowercase().contains("no test yet"))
        .collect();

    assert!(untested.is_empty(), "{untested:#?}");
}
