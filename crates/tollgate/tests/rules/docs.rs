//! Every example of `docs/rules.md` loads, or fails as the page says; every field is described.

use tollgate::rules::{self, Format};

const PAGE: &str = include_str!("../../../../docs/rules.md");

/// The fenced blocks of the page: what stands behind the fence, and the text.
fn blocks() -> Vec<(&'static str, String)> {
    let mut blocks = Vec::new();
    let mut lines = PAGE.lines();
    while let Some(line) = lines.next() {
        if let Some(kind) = line.strip_prefix("```") {
            let text = lines.by_ref().take_while(|line| *line != "```");
            blocks.push((kind, text.map(|line| format!("{line}\n")).collect()));
        }
    }
    blocks
}

/// A whole file; some examples are rules alone.
fn whole(text: &str) -> String {
    if text.starts_with("- name:") {
        format!("version: 1\ndomain: docs\nrules:\n{text}")
    } else {
        text.to_owned()
    }
}

#[test]
fn every_example_loads() {
    let mut loaded = Vec::new();
    for (kind, text) in blocks() {
        let Some(format) = Format::of_path(format!("rules.{kind}")) else { continue };
        match rules::load(&whole(&text), format) {
            Ok(set) => loaded.push(set.declaration().clone()),
            Err(problems) => panic!("{problems}\n{text}"),
        }
    }

    assert!(loaded.len() >= 9, "only {} examples were found", loaded.len());
    assert_eq!(loaded[0], loaded[1], "the example in TOML is the one in YAML");
    assert_eq!(loaded[0], loaded[2], "the example in JSON is the one in YAML");
}

#[test]
fn every_broken_example_fails_as_the_page_says() {
    let blocks = blocks();
    let mut failed = 0;
    for pair in blocks.windows(2) {
        let [("yaml broken", text), ("text", expected)] = pair else { continue };

        let problems = rules::load(text, Format::Yaml).unwrap_err().in_file("rules.yaml");

        assert_eq!(format!("{problems}\n"), *expected);
        failed += 1;
    }
    assert_eq!(failed, 2);
}

#[test]
fn every_field_of_the_schema_is_described() {
    let schema: serde_json::Value = serde_json::from_str(rules::SCHEMA).unwrap();
    for path in [
        "/properties",
        "/$defs/domain/properties",
        "/$defs/lists/properties",
        "/$defs/rule/properties",
        "/$defs/limit-fields/properties",
        "/$defs/ban/properties",
        "/$defs/cost/anyOf/1/properties",
    ] {
        for field in schema.pointer(path).unwrap().as_object().unwrap().keys() {
            assert!(PAGE.contains(&format!("\n| `{field}` |")), "{field} of {path}");
        }
    }
}
