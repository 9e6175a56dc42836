//! Every tag (`E38`, `B2`, `C19`) in the tree is explained in `docs/invariants.md`.

use std::collections::BTreeSet;

use crate::tree::{files, read, root};

/// The tags in a text: one of `E`, `B`, `C` and one or two digits, as a word. A word behind a `%` is an
/// escaped byte of a URL.
fn tags(text: &str) -> impl Iterator<Item = &str> {
    let within = |c: char| c.is_alphanumeric() || c == '_';
    let mut before = ' ';
    text.split_inclusive(move |c| !within(c)).filter_map(move |word| {
        let (escaped, end) = (before == '%', word.chars().next_back().unwrap_or(' '));
        before = end;
        let word = word.trim_end_matches(|c| !within(c));
        let digits = word.strip_prefix(['E', 'B', 'C'])?;
        let is_number =
            (1..=2).contains(&digits.len()) && digits.bytes().all(|c| c.is_ascii_digit());
        (is_number && !escaped).then_some(word)
    })
}

/// The tags that the document explains: `<a id="e1"></a>**E1** …`.
fn explained(text: &str) -> Vec<&str> {
    let entries = text.lines().filter_map(|line| {
        let (anchor, rest) = line.strip_prefix("- <a id=\"")?.split_once("\"></a>**")?;
        let (tag, sentence) = rest.split_once("** ")?;
        assert_eq!(tag.to_lowercase(), anchor, "{line}");
        assert!(sentence.len() > 20, "{tag} says nothing");
        Some(tag)
    });
    entries.collect()
}

#[test]
fn every_tag_resolves() {
    let page = read(&root().join("docs/invariants.md"));
    let explained = explained(&page);
    let known: BTreeSet<&str> = explained.iter().copied().collect();
    assert_eq!(known.len(), explained.len(), "a tag is explained twice");

    let (mut used, mut unknown) = (0, Vec::new());
    for path in files(&root(), &["rs", "lua", "md"]) {
        let text = read(&path);
        for (number, line) in text.lines().enumerate() {
            for tag in tags(line) {
                used += 1;
                if !known.contains(tag) {
                    unknown.push(format!("{}:{}: {tag}", path.display(), number + 1));
                }
            }
        }
    }

    assert!(used > 300, "only {used} tags were found");
    assert!(unknown.is_empty(), "explained nowhere in docs/invariants.md: {unknown:#?}");
}

#[test]
fn tags_are_words_and_no_bytes_of_urls() {
    let text = "// E38, C19–C21; `%C3%B6`, %E6 B2B E100 xE1 (B16)";

    assert_eq!(tags(text).collect::<Vec<_>>(), ["E38", "C19", "C21", "B16"]);
}
