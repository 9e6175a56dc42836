//! The last good rules, kept in `--state-dir` for a start at which their source has none.
//!
//! The server also serves with a directory that it cannot use. It reports the error in the log, at
//! `/v1/status` and in `/metrics`, because otherwise the next restart would be the first to show it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use tollgate::rules::MAX_TEXT;

use super::file;

use crate::sync::lock;

/// A file of last good rules, or none where no directory was named.
#[derive(Debug, Default)]
pub(crate) struct LastGood {
    path: Option<PathBuf>,
    save_error: Mutex<Option<String>>,
}

impl LastGood {
    /// The file of this name in the directory.
    pub(crate) fn new(dir: Option<&PathBuf>, name: &str) -> Self {
        Self { path: dir.map(|dir| dir.join(name)), save_error: Mutex::default() }
    }

    /// Reason why rules cannot be saved.
    pub(crate) fn save_error(&self) -> Option<String> {
        lock(&self.save_error).clone()
    }

    /// Reads the saved rules, if any, and checks that the directory is writable.
    pub(crate) fn read(&self) -> Option<Vec<u8>> {
        let path = self.path.as_ref()?;
        let wrong = |error| format!("cannot write {}: {error}", path.display());
        self.note_save(writable(path).err().map(wrong));
        match read(path) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.log_ignored(&error);
                None
            }
        }
    }

    /// Logs that the saved rules cannot be used.
    pub(crate) fn log_ignored(&self, why: &dyn std::fmt::Display) {
        let Some(path) = &self.path else { return };
        tracing::warn!(
            file = %path.display(),
            error = %why,
            "ignored the last good rules, which cannot be used"
        );
    }

    /// Saves a text, unless it is saved already.
    pub(crate) fn save(&self, text: &str) {
        let Some(path) = &self.path else { return };
        if self.save_error().is_none() && read(path).is_ok_and(|saved| saved == text.as_bytes()) {
            return;
        }
        // A full disk must not keep rules from applying.
        self.note_save(file::replace(path, text).err().map(|error| error.to_string()));
    }

    /// Records the error of a save, or that there is none, and logs a change.
    fn note_save(&self, wrong: Option<String>) {
        let mut save_error = lock(&self.save_error);
        if *save_error != wrong {
            match &wrong {
                Some(error) => tracing::warn!(error, "cannot save the last good rules"),
                None => tracing::info!("the last good rules are saved again"),
            }
            *save_error = wrong;
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    file::read_at_most(path, MAX_TEXT + 1)
}

/// Checks that a file can be created beside this one, as saving does.
fn writable(path: &Path) -> io::Result<()> {
    let beside = path.with_added_extension("new");
    File::create(&beside)?;
    fs::remove_file(beside)
}
