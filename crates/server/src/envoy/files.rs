//! The configured files of envoyproxy/ratelimit: read whole, or not at all.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tollgate::rules::{self, MAX_TEXT};

use crate::rules::read_at_most;

/// One file.
#[derive(Clone, Debug, Serialize, Deserialize, Hash)]
pub(super) struct EnvoyFile {
    /// Path, for messages.
    pub(super) name: String,
    pub(super) text: String,
}

/// All files at these paths: those named, and the `.yaml` and `.yml` files of directories, by name.
/// Together they have at most [`MAX_TEXT`] bytes, as one rule file.
pub(super) fn read(paths: &[PathBuf]) -> Result<Vec<EnvoyFile>, String> {
    let mut files = Vec::new();
    let mut left = MAX_TEXT;
    for path in paths {
        let found = if path.is_dir() { inside(path)? } else { vec![path.clone()] };
        for path in found {
            let file = read_one(&path, left)?;
            left = left.saturating_sub(file.text.len());
            files.push(file);
        }
    }
    Ok(files)
}

/// The YAML files of a directory, without hidden ones, as a ConfigMap has.
fn inside(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let wrong = |error: std::io::Error| format!("cannot read {}: {error}", dir.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        let is_yaml = path.extension().is_some_and(|it| it == "yaml" || it == "yml");
        if is_yaml && !hidden {
            found.push(path);
        }
    }
    if found.is_empty() {
        // A directory whose volume is not mounted looks like this, and must not remove all rules.
        return Err(format!("{} has no .yaml file", dir.display()));
    }
    found.sort();
    Ok(found)
}

fn read_one(path: &Path, most: usize) -> Result<EnvoyFile, String> {
    let name = path.display().to_string();
    let wrong = |error: std::io::Error| format!("cannot read {name}: {error}");
    let bytes = read_at_most(path, most.saturating_add(1)).map_err(wrong)?;
    if bytes.len() > most {
        return Err(format!("{name}: the files together have more than {MAX_TEXT} bytes"));
    }
    let text =
        rules::decode(&bytes).map_err(|problems| problems.in_file(name.as_str()).to_string())?;
    Ok(EnvoyFile { text: text.to_owned(), name })
}

/// Place of a domain in a text, by a search of its lines.
pub(crate) fn place(name: &str, text: &str, domain: &str) -> String {
    let says = |line: &str| line.contains("domain") && line.contains(domain);
    match text.lines().position(says) {
        Some(line) => format!("{name}:{}", line.saturating_add(1)),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_together_are_bounded() {
        let path = std::env::temp_dir().join(format!("tollgate-envoy-{}.yaml", std::process::id()));
        fs::write(&path, "domain: shop\n").unwrap();
        assert_eq!(read_one(&path, 13).unwrap().text, "domain: shop\n");
        assert!(read_one(&path, 12).unwrap_err().contains("together have more than"));
        fs::remove_file(&path).unwrap();
        assert!(read(&[path]).unwrap_err().contains("cannot read"));
    }

    #[test]
    fn a_place_is_a_line_if_one_says_the_domain() {
        let text = "# the shop\ndomain: shop\n";
        assert_eq!(place("a.yaml", text, "shop"), "a.yaml:2");
        assert_eq!(place("a.yaml", "domain:\n  shop\n", "shop"), "a.yaml");
    }
}
