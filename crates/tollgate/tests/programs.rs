//! No test file is forgotten: Cargo runs only what a program names.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

#[test]
fn every_test_file_of_every_crate_is_run() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut seen, mut forgotten) = (0, Vec::new());
    for of in std::fs::read_dir(crates).unwrap() {
        let of = of.unwrap().path();
        let manifest = std::fs::read_to_string(of.join("Cargo.toml")).unwrap_or_default();
        if !manifest.contains("autotests = false") {
            continue;
        }
        let all = std::fs::read_to_string(of.join("tests/all.rs")).unwrap();
        for file in std::fs::read_dir(of.join("tests")).unwrap() {
            let file = file.unwrap().path();
            let name = file.file_stem().unwrap().to_str().unwrap();
            let is_module = all.lines().any(|line| line == format!("mod {name};"));
            let is_program = manifest.contains(&format!("path = \"tests/{name}.rs\""))
                || manifest.contains(&format!("path = \"tests/{name}/main.rs\""));
            seen += 1;
            if !is_module && !is_program {
                forgotten.push(file.display().to_string());
            }
        }
    }

    assert!(seen > 40, "only {seen} were found");
    assert!(forgotten.is_empty(), "in no program: {forgotten:#?}");
}
