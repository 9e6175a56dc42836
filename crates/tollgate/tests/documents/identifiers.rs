//! Types and members that the documents name in code (`LockRecord`, `Store::read`) exist in the sources.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::tree::{files, read, root};

/// Names of other programs, crates and protocols, and of HTTP fields.
const FOREIGN: [&str; 18] = [
    "Authorization",
    "Bearer",
    "ConnectInfo",
    "Debug",
    "Display",
    "Extension",
    "From",
    "Instant",
    "IntoResponse",
    "NaN",
    "QuotaFailure",
    "Result",
    "RetryInfo",
    "Router",
    "ShouldRateLimit",
    "SocketAddr",
    "SystemTime",
    "Upgrade",
];

/// The names that the sources define.
#[derive(Default)]
struct Definitions {
    types: BTreeSet<String>,
    /// Functions, constants, fields and variants.
    members: BTreeSet<String>,
}

impl Definitions {
    fn of(text: &str) -> Self {
        let mut definitions = Self::default();
        for line in text.lines() {
            let code = line.split("//").next().unwrap_or_default();
            definitions.add(code);
        }
        definitions
    }

    fn add(&mut self, code: &str) {
        let words: Vec<&str> = code.split(|c: char| !is_within(c)).collect();
        for pair in words.windows(2) {
            let defined = match pair[0] {
                "struct" | "enum" | "union" | "trait" | "type" | "mod" => &mut self.types,
                "fn" | "const" | "static" => &mut self.members,
                _ => continue,
            };
            defined.insert(pair[1].to_owned());
        }
        // A field or a variant on a line of its own, as in an enum, a struct or the list of a macro.
        let line = code.trim_start();
        let line = line.strip_prefix("pub ").unwrap_or(line);
        let end = line.find(|c: char| !is_within(c)).unwrap_or(line.len());
        let (name, rest) = line.split_at(end);
        let is_field = rest.starts_with(':') && !rest.starts_with("::");
        let is_variant = name.starts_with(char::is_uppercase)
            && ["(", " {", " ="].iter().any(|start| rest.starts_with(start));
        let is_alone = !name.is_empty() && ["", ","].contains(&rest.trim());
        if is_field || is_variant || is_alone {
            self.members.insert(name.to_owned());
        }
    }

    /// True if this name, or this path of a type and its member, is defined.
    fn have(&self, path: &str) -> bool {
        let is_any = |name: &str| self.types.contains(name) || self.members.contains(name);
        match path.split_once("::") {
            None => is_any(path),
            Some((first, rest)) => self.types.contains(first) && rest.split("::").all(is_any),
        }
    }
}

fn is_within(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The names of types in a piece of code, each with the members behind it: `Store::read`. Neither
/// constants (`OOM`), nor tags (`E38`), nor parts of other words (`Content-Type`, `Cargo.toml`).
fn identifiers(code: &str) -> Vec<&str> {
    let is_separator = |c: char| !is_within(c) && !":-./".contains(c);
    let words = code.split(is_separator).map(|word| word.trim_end_matches([':', '.', '-']));
    let is_type = |word: &&str| {
        let mut letters = word.split("::").next().unwrap_or_default().chars();
        letters.next().is_some_and(char::is_uppercase)
            && letters.next().is_some_and(char::is_lowercase)
    };
    let is_path = |word: &&str| word.split("::").all(|name| name.chars().all(is_within));
    words.filter(is_type).filter(is_path).collect()
}

/// The code of a page with its line: what is in backticks, and the paths in diagrams.
fn codes(page: &str) -> Vec<(usize, &str)> {
    let (mut block, mut codes) = (None, Vec::new());
    for (at, line) in page.lines().enumerate() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            block = if block.is_some() { None } else { Some(language) };
        } else if block.is_none() {
            codes.extend(line.split('`').skip(1).step_by(2).map(|code| (at + 1, code)));
        } else if matches!(block, Some("" | "text")) {
            codes.extend(line.split(' ').filter(|word| word.contains("::")).map(|it| (at + 1, it)));
        }
    }
    codes
}

fn pages() -> Vec<PathBuf> {
    let mut pages = files(&root().join("docs"), &["md"]);
    let others = ["README.md", "README.zh-CN.md", "ARCHITECTURE.md", "CONTRIBUTING.md"];
    pages.extend(others.map(|page| root().join(page)));
    pages
}

#[test]
fn every_type_that_is_named_exists() {
    let texts: Vec<String> = files(&root(), &["rs"]).iter().map(|path| read(path)).collect();
    let definitions = Definitions::of(&texts.join("\n"));
    let (mut named, mut missing) = (0, Vec::new());
    for page in pages() {
        for (line, code) in codes(&read(&page)) {
            for path in identifiers(code) {
                let first = path.split("::").next().unwrap();
                if FOREIGN.contains(&first) {
                    continue;
                }
                named += 1;
                if !definitions.have(path) {
                    missing.push(format!("{}:{line}: {path}", page.display()));
                }
            }
        }
    }

    assert!(named > 150, "only {named} names were found");
    assert!(missing.is_empty(), "not in the sources: {missing:#?}");
}

#[test]
fn names_and_definitions_are_recognised() {
    let code = "`E38` OOM Cargo.toml Content-Type core::lock Option<Limiter> Store::read(…), Rate.";
    assert_eq!(identifiers(code), ["Option", "Limiter", "Store::read", "Rate"]);

    let source = "pub struct A<'a> {\n    pub b: u8, // not C\n}\nenum D {\n    E(u8),\n    F,\n}\nfn g() {}";
    let definitions = Definitions::of(source);
    assert!(["A", "A::b", "D::E", "F", "A::g"].iter().all(|path| definitions.have(path)));
    assert!(["C", "F::g", "A::c"].iter().all(|path| !definitions.have(path)));

    let page = "a `B` c\n```rust\nlet d = E::f();\n```\n```text\nG G::h\n```\n";
    assert_eq!(codes(page), [(1, "B"), (6, "G::h")]);
}
