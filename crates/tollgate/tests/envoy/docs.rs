//! Every example of `docs/envoy.md` loads, or fails as the page says; its answers are given.

use crate::support::{ask_as, d, limiter, told};
use tollgate::envoy::{CallPolicy, ChargeMode, EnvoyRules};

const PAGE: &str = include_str!("../../../../docs/envoy.md");

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

/// An example is a file and calls: `descriptor, descriptor -> what is told`, in order.
#[tokio::test]
async fn every_example_answers_as_the_page_says() {
    let mut asked = 0;
    for pair in blocks().windows(2) {
        let ((file_kind, file), (kind, calls)) = (&pair[0], &pair[1]);
        let charge = match *kind {
            "calls" => ChargeMode::AllOrNone,
            "calls charge: all" => ChargeMode::All,
            _ => continue,
        };
        assert_eq!(*file_kind, "yaml", "calls stand behind a file");
        let (limiter, _) = limiter(file);
        for line in calls.lines() {
            let (call, expected) = line.split_once(" -> ").expect("a call and its answer");
            let descriptors: Vec<_> = call.split(", ").map(descriptor).collect();
            let policy = CallPolicy::default().charging(charge);
            let answer = ask_as(&limiter, &descriptors, 0, policy).await.unwrap();
            assert_eq!(told(&answer), expected.trim(), "{line}\n{file}");
            asked += 1;
        }
    }
    assert!(asked >= 10, "only {asked} calls were found");
}

/// `user=eve +3` costs three, `-3` gives them back.
fn descriptor(text: &str) -> crate::support::TestDescriptor<'_> {
    let text = text.trim();
    match text.rsplit_once(' ') {
        Some((entries, hits)) if hits.starts_with('+') => {
            d(entries).hits(hits[1..].parse().unwrap())
        }
        Some((entries, hits)) if hits.starts_with('-') => {
            d(entries).hits(hits[1..].parse().unwrap()).back()
        }
        _ => d(text),
    }
}

#[test]
fn every_broken_example_fails_as_the_page_says() {
    let mut failed = 0;
    for pair in blocks().windows(2) {
        let [("yaml broken", text), ("text", expected)] = pair else { continue };
        let problems = EnvoyRules::load(1, [("shop.yaml", &**text)]).unwrap_err();
        assert_eq!(format!("{problems}\n"), *expected);
        failed += 1;
    }
    assert_eq!(failed, 1);
}

#[test]
fn every_key_of_a_file_is_described() {
    for key in [
        "domain",
        "key",
        "value",
        "descriptors",
        "rate_limit",
        "unit",
        "requests_per_unit",
        "unlimited",
        "shadow_mode",
        "quota_mode",
        "name",
        "replaces",
        "detailed_metric",
        "value_to_metric",
        "share_threshold",
        "metadata",
    ] {
        assert!(PAGE.contains(&format!("| `{key}`")), "{key} is not in the table");
    }
}
