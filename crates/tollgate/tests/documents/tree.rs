//! Files of the repository.

use std::path::{Path, PathBuf};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All files below `directory` with one of these extensions, in order; neither built nor hidden ones.
pub(crate) fn files(directory: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_path_buf()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if name.starts_with('.') || name == "target" || name == "node_modules" {
                continue;
            }
            let kind = entry.file_type().unwrap();
            let path = entry.path();
            if kind.is_dir() {
                open.push(path);
            } else if kind.is_file()
                && path.extension().is_some_and(|of| extensions.iter().any(|one| of == *one))
            {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
