//! Relative links and anchors of the documents lead somewhere, and the first pages stay short.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::tree::{files, read, root};

/// The pages that are read on their own: those in the root, and everything in `docs`.
fn pages() -> Vec<PathBuf> {
    let mut pages = files(&root().join("docs"), &["md"]);
    for entry in std::fs::read_dir(root()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|of| of == "md") {
            pages.push(path);
        }
    }
    pages
}

/// The text without blocks of code, and with inline code cut out.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            prose.extend(line.split('`').step_by(2).flat_map(|part| [part, " "]));
            prose.push('\n');
        }
    }
    prose
}

/// Targets of the links and pictures in a text: `[…](target)`.
fn targets(text: &str) -> Vec<String> {
    let prose = prose(text);
    let parts = prose.split("](").skip(1);
    parts.filter_map(|part| Some(part.split_once(')')?.0.trim().to_owned())).collect()
}

/// The anchors that a page has, as GitHub and mdBook make them of headings, and its explicit ones.
fn anchors(text: &str) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        if let Some((_, rest)) = line.split_once("<a id=\"") {
            anchors.extend(rest.split_once('"').map(|(id, _)| id.to_owned()));
        }
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let slug: String = heading
            .trim()
            .to_lowercase()
            .chars()
            .filter_map(|c| match c {
                ' ' => Some('-'),
                c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
                _ => None,
            })
            .collect();
        let before = seen.entry(slug.clone()).or_default();
        anchors.push(if *before == 0 { slug } else { format!("{slug}-{before}") });
        *before += 1;
    }
    anchors
}

fn is_elsewhere(target: &str) -> bool {
    ["http://", "https://", "mailto:"].iter().any(|scheme| target.starts_with(scheme))
}

/// Returns the error in a link of this page, if there is one.
fn link_error(page: &Path, target: &str) -> Option<String> {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { page.to_path_buf() } else { page.parent()?.join(file) };
    if !path.exists() {
        return Some(format!("{}: there is no {target}", page.display()));
    }
    let is_page = path.extension().is_some_and(|of| of == "md");
    let leads =
        anchor.is_empty() || !is_page || anchors(&read(&path)).iter().any(|it| it == anchor);
    (!leads).then(|| format!("{}: there is no heading for {target}", page.display()))
}

#[test]
fn every_link_leads_somewhere() {
    let (mut checked, mut broken) = (0, Vec::new());
    for page in pages() {
        for target in targets(&read(&page)) {
            if !is_elsewhere(&target) {
                checked += 1;
                broken.extend(link_error(&page, &target));
            }
        }
    }

    assert!(checked > 150, "only {checked} links were found");
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn links_of_code_are_none_and_anchors_are_as_headings() {
    let page =
        "# A `b` c, d\n[x](y.md#z) `[no](link)`\n```\n# not this\n[nor](that)\n```\n## A\n## A\n";

    assert_eq!(targets(page), ["y.md#z"]);
    assert_eq!(anchors(page), ["a-b-c-d", "a", "a-1"]);
}

#[test]
fn the_first_pages_are_short() {
    let pages = [("README.md", 150), ("README.zh-CN.md", 150), ("ARCHITECTURE.md", 250)];
    for (page, most) in pages {
        let lines = read(&root().join(page)).lines().count();
        assert!(lines <= most, "{page} has {lines} lines, and {most} are the most");
    }
    for record in files(&root().join("docs/decisions"), &["md"]) {
        let lines = read(&record).lines().count();
        assert!(lines < 40, "{} has {lines} lines, and fewer than 40 are wanted", record.display());
    }
}

/// Every page of `docs` is a chapter of the book.
#[test]
fn the_book_has_every_page() {
    let docs = root().join("docs");
    let summary = read(&docs.join("SUMMARY.md"));
    let chapters = targets(&summary);
    let missing: Vec<_> = files(&docs, &["md"])
        .into_iter()
        .map(|page| page.strip_prefix(&docs).unwrap().to_str().unwrap().to_owned())
        .filter(|page| page != "SUMMARY.md" && !chapters.contains(page))
        .collect();

    assert!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:?}");
}

/// `make picture` was run after the last change of its table.
#[test]
fn the_picture_shows_the_table() {
    let page = read(&root().join("docs/benchmarks.md"));
    let picture = read(&root().join("docs/benchmarks.svg"));
    let table = page.split("<!-- picture: begin -->").nth(1).unwrap();
    let table = table.split("<!-- picture: end -->").next().unwrap();
    let rows: Vec<_> = table.lines().filter(|line| line.starts_with('|')).skip(2).collect();
    assert!(rows.len() > 10, "{rows:?}");

    for row in &rows {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [case, peer, ratio] = cells[..] else { panic!("{row}") };
        let label = format!(">{case} <tspan class=\"soft\">vs {peer}</tspan></text>");
        let after = picture.split(&label).skip(1);
        let shown = after
            .filter(|after| after.lines().nth(2).unwrap().ends_with(&format!(">{ratio}</text>")));
        assert!(shown.count() > 0, "not in the picture: {row}; run `make picture`");
    }
    assert_eq!(picture.matches("<rect").count(), rows.len(), "run `make picture`");
}

/// Files and directories that the pages for developers name (`crates/…`) are there.
#[test]
fn every_path_that_is_named_exists() {
    let mut pages = files(&root().join("docs/internals"), &["md"]);
    let others = ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/glossary.md"];
    pages.extend(others.map(|page| root().join(page)));
    let (mut named, mut missing) = (0, Vec::new());
    for page in pages {
        for span in read(&page).split('`').filter(|span| span.starts_with("crates/")) {
            if span.contains(['<', '*', ' ', '…']) {
                continue;
            }
            named += 1;
            if !root().join(span).exists() {
                missing.push(format!("{}: {span}", page.display()));
            }
        }
    }

    assert!(named > 60, "only {named} paths were found");
    assert!(missing.is_empty(), "{missing:#?}");
}
