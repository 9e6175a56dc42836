//! The compiler's messages for wrong attributes: which word is wrong, and what to write instead.
//!
//! `TRYBUILD=overwrite cargo test -p tollgate-macros --test ui` writes the expected words anew. Where
//! types are wrong the words are mostly the compiler's own, and pinned for one version of it.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::Command;

/// The compiler whose words about types are pinned.
const PINNED: &str = "rustc 1.95.";

#[test]
fn errors_say_what_to_write() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
    let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = Command::new(compiler).arg("--version").output().unwrap().stdout;
    if version.starts_with(PINNED.as_bytes()) {
        cases.compile_fail("tests/ui/compiler/*.rs");
    }
}
