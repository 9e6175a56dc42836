//! Ten thousand files, broken in every way: an error with a place, or rules that can be asked.

use tollgate::envoy::{Entry, EnvoyRules};
use tollgate_core::testing::Rng;

const WHOLE: &str = r#"domain: shop
descriptors:
  - key: path
    value: "/api/*"
    share_threshold: true
    rate_limit: { unit: minute, requests_per_unit: 5, name: api, replaces: [{ name: other }] }
    metadata: { team: pay, list: [1, 2.5, ~, true] }
    descriptors:
      - key: user
        shadow_mode: true
        rate_limit:
          unit: day
          requests_per_unit: 100
      - key: user
        value: eve
        rate_limit: { unlimited: true }
  - key: remote_address
    quota_mode: yes
    rate_limit: { unit: second, requests_per_unit: 0 }
"#;

const PIECES: &[&str] = &[
    ":",
    " ",
    "\n",
    "  ",
    "- ",
    "[",
    "]",
    "{",
    "}",
    "*",
    "&a ",
    "*a",
    "!t ",
    "#",
    "'",
    "\"",
    "\\",
    "~",
    "null",
    "0",
    "-1",
    "1e400",
    ".nan",
    "4294967296",
    "true",
    "key: a\n",
    "unit: week",
    "rate_limit:",
    "descriptors:",
    "\u{feff}",
    "\0",
    "\u{202e}",
    "ß",
    "\t",
    "|",
    ">",
    "%",
    "---\n",
];

/// The text with one thing changed.
fn broken(rng: &mut Rng, text: &str) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    let at = rng.below(letters.len() as u64 + 1) as usize;
    let end = (at + rng.magnitude(40) as usize).min(letters.len());
    match rng.below(5) {
        0 => drop(letters.drain(at..end)),
        1 => drop(letters.splice(at..at, rng.pick(PIECES).chars())),
        2 => drop(letters.splice(at..end, rng.pick(PIECES).chars())),
        3 => {
            let again: Vec<char> = letters[at..end].to_vec();
            let to = rng.below(letters.len() as u64 + 1) as usize;
            letters.splice(to..to, again);
        }
        _ => letters.truncate(at),
    }
    letters.into_iter().collect()
}

#[test]
fn a_broken_file_has_a_place_or_rules() {
    let soak: u64 = std::env::var("TOLLGATE_SOAK").map_or(1, |times| times.parse().unwrap());
    let (files, mut loaded) = (10_000 * soak, 0);
    for seed in 0..files {
        let mut rng = Rng::new(seed);
        let mut text = WHOLE.to_owned();
        for _ in 0..=rng.below(3) {
            text = broken(&mut rng, &text);
        }
        match EnvoyRules::load(1, [("f", &*text)]) {
            Err(problems) => {
                assert!(problems.iter().len() > 0, "seed {seed}");
                for problem in &problems {
                    assert!(problem.line() >= 1 && problem.column() >= 1, "seed {seed}: {problem}");
                    assert!(!problem.to_string().contains('\n'), "seed {seed}: {problem:?}");
                }
            }
            Ok(rules) => {
                loaded += 1;
                for domain in rules.domains() {
                    let entries = [("path", "/api/x"), ("user", "eve")];
                    let entries = entries.map(|(key, value)| Entry { key, value });
                    let _ = (rules.find(domain, &entries), rules.find(domain, &entries[..1]));
                }
            }
        }
    }
    // Files that are all refused, or all fine, would test only half of the promise.
    assert!(loaded > files / 20 && loaded < files - files / 10, "{loaded} of {files} were loaded");
}
