//! A rule file: read whole, replaced whole.

use std::fs::{self, File};
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher, Hash};
use std::io::{Read as _, Write as _};
use std::path::Path;

use tollgate::rules::{self, MAX_TEXT};

use super::RulesError;

/// The text of a file, if it can be a rule file.
pub(super) fn read(path: &Path) -> Result<String, RulesError> {
    let unreadable = |why: &dyn std::fmt::Display| {
        RulesError::Unreadable(format!("cannot read the rules at {}: {why}", path.display()))
    };
    let bytes = read_at_most(path, MAX_TEXT + 1).map_err(|error| unreadable(&error))?;
    let text = rules::decode(&bytes)
        .map_err(|problems| RulesError::Invalid(problems.in_file(path.display().to_string())))?;
    Ok(text.to_owned())
}

/// Reads a file up to this length. With a bound of one byte above its maximum, a caller detects a longer
/// file.
pub(crate) fn read_at_most(path: &Path, most: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Hash of a value, for comparison in this process: another version of Rust may hash differently.
pub(crate) fn hash(value: &impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(value)
}

/// Replaces a file atomically: a reader sees the old text or the new one.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), RulesError> {
    let unwritable = |why: &dyn std::fmt::Display| {
        RulesError::Unwritable(format!("cannot write {}: {why}", path.display()))
    };
    if fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_symlink()) {
        return Err(unwritable(&"it is a symbolic link, as in a ConfigMap: edit its source"));
    }
    let name = path.file_name().ok_or_else(|| unwritable(&"it has no name"))?;
    let mut beside = name.to_os_string();
    beside.push(".new");
    let beside = path.with_file_name(beside);
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    write().map_err(|error| {
        // Half a text is of no use.
        let _ = fs::remove_file(&beside);
        unwritable(&error)
    })
}
