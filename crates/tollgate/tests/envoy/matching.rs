//! Which rule a request finds: sentence by sentence, and against a matcher that looks at everything.

use tollgate::envoy::{Entry, EnvoyRules};
use tollgate_core::testing::Rng;

use crate::support::{entries, rules};

const LIMIT: &str = "rate_limit: { unit: day, requests_per_unit: 1 }";

fn found<'r>(rules: &'r EnvoyRules, request: &str) -> Option<&'r str> {
    rules.find("shop", &entries(request)).map(|rule| rule.path())
}

/// Keys with values, each with a limit.
fn flat(descriptors: &[&str]) -> EnvoyRules {
    let item = |text: &&str| match text.split_once('=') {
        Some((key, value)) => format!("{{ key: '{key}', value: '{value}', {LIMIT} }}"),
        None => format!("{{ key: '{text}', {LIMIT} }}"),
    };
    let items: Vec<String> = descriptors.iter().map(item).collect();
    rules(&format!("domain: shop\ndescriptors: [{}]", items.join(", ")))
}

#[test]
fn the_value_then_patterns_in_order_then_the_key_alone() {
    let rules = flat(&["a", "a=b*", "a=*c", "a=bc"]);

    assert_eq!(found(&rules, "a=bc"), Some("a_bc"));
    assert_eq!(found(&rules, "a=bxc"), Some("a_b*"), "the first pattern of the file");
    assert_eq!(found(&rules, "a=xc"), Some("a_*c"));
    assert_eq!(found(&rules, "a=x"), Some("a"));
    assert_eq!(found(&rules, "b=x"), None);
    assert_eq!(found(&rules, "a=b*"), Some("a_b*"), "a value may have stars, too");
    assert_eq!(
        found(&flat(&["a=*", "a=b*"]), "a=b*"),
        Some("a_b*"),
        "and equals before it matches"
    );
}

#[test]
fn an_empty_value_equals_none_and_falls_to_the_key() {
    assert_eq!(found(&flat(&["a=b", "a"]), "a="), Some("a"));
    assert_eq!(found(&flat(&["a=b"]), "a="), None);
    assert_eq!(found(&flat(&["a=*", "a"]), "a="), Some("a_*"), "a star is also nothing");
    assert_eq!(found(&flat(&["a=b*", "a"]), "a="), Some("a"));
}

#[test]
fn who_takes_a_branch_stays_on_it() {
    let rules = rules(&format!(
        "
domain: shop
descriptors:
  - key: a
    value: x
    descriptors: [{{ key: only, {LIMIT} }}]
  - key: a
    descriptors: [{{ key: only, {LIMIT} }}, {{ key: any, {LIMIT} }}]
"
    ));

    assert_eq!(found(&rules, "a=x only=1"), Some("a_x.only"));
    assert_eq!(found(&rules, "a=x any=1"), None, "the way of the bare key is not tried");
    assert_eq!(found(&rules, "a=y any=1"), Some("a.any"));
}

#[test]
fn a_limit_applies_only_where_the_last_entry_ends() {
    let rules = rules(&format!(
        "
domain: shop
descriptors:
  - key: a
    {LIMIT}
    descriptors: [{{ key: b, descriptors: [{{ key: c, {LIMIT} }}] }}]
  - {{ key: listed }}
"
    ));

    assert_eq!(found(&rules, "a=1"), Some("a"));
    assert_eq!(found(&rules, "a=1 b=1"), None, "it has no limit of its own");
    assert_eq!(found(&rules, "a=1 b=1 c=1"), Some("a.b.c"));
    assert_eq!(found(&rules, "a=1 b=1 c=1 d=1"), None, "deeper than the file");
    assert_eq!(found(&rules, "b=1 a=1"), None, "the order counts");
    assert_eq!(found(&rules, "listed=1"), None, "without a rate limit, nothing limits it");
    assert_eq!(rules.find("shop", &[]).map(|rule| rule.path()), None);
    assert_eq!(rules.find("other", &entries("a=1")).map(|rule| rule.path()), None);
}

/// A descriptor of a generated file.
struct GeneratedDescriptor {
    key: &'static str,
    value: String,
    limited: bool,
    below: Vec<Self>,
}

fn generate(rng: &mut Rng, depth: u64) -> Vec<GeneratedDescriptor> {
    let mut level: Vec<GeneratedDescriptor> = Vec::new();
    for _ in 0..rng.below(6) {
        let key = rng.pick(&["k", "k_", "m"]);
        let letters = rng.below(4);
        let value: String = (0..letters).map(|_| rng.pick(&['a', 'b', '*', '_'])).collect();
        if level.iter().any(|other| other.key == key && other.value == value) {
            continue;
        }
        let below = if depth > 0 { generate(rng, depth - 1) } else { Vec::new() };
        level.push(GeneratedDescriptor { key, value, limited: rng.chance(2, 3), below });
    }
    level
}

fn written(level: &[GeneratedDescriptor]) -> String {
    let item = |generated: &GeneratedDescriptor| {
        let limit = if generated.limited { format!(", {LIMIT}") } else { String::new() };
        let GeneratedDescriptor { key, value, below, .. } = generated;
        format!("{{ key: '{key}', value: '{value}'{limit}, descriptors: [{}] }}", written(below))
    };
    level.iter().map(item).collect::<Vec<_>>().join(", ")
}

/// Returns true if a value matches, by trying every length for a star.
fn matches(pattern: &[u8], value: &[u8]) -> bool {
    match pattern.split_first() {
        None => value.is_empty(),
        Some((b'*', rest)) => (0..=value.len()).any(|taken| matches(rest, &value[taken..])),
        Some((letter, rest)) => value.first() == Some(letter) && matches(rest, &value[1..]),
    }
}

/// The path of the rule, by the words of the reference.
fn naive(level: &[GeneratedDescriptor], request: &[Entry<'_>]) -> Option<String> {
    let (entry, rest) = request.split_first()?;
    let keyed = || level.iter().filter(|generated| generated.key == entry.key);
    let taken = keyed()
        .find(|generated| !generated.value.is_empty() && generated.value == entry.value)
        .or_else(|| {
            keyed().find(|generated| {
                generated.value.contains('*')
                    && matches(generated.value.as_bytes(), entry.value.as_bytes())
            })
        })
        .or_else(|| keyed().find(|generated| generated.value.is_empty()))?;
    let own = match &*taken.value {
        "" => taken.key.to_owned(),
        value => format!("{}_{value}", taken.key),
    };
    if rest.is_empty() {
        return taken.limited.then_some(own);
    }
    Some(format!("{own}.{}", naive(&taken.below, rest)?))
}

#[test]
fn the_index_finds_what_a_search_finds() {
    let mut hits = 0;
    for seed in 0..2_000 {
        let mut rng = Rng::new(seed);
        let generated = generate(&mut rng, 2);
        let rules = rules(&format!("domain: shop\ndescriptors: [{}]", written(&generated)));
        for _ in 0..20 {
            let values: Vec<String> = (0..=rng.below(3))
                .map(|_| {
                    let letters = rng.below(4);
                    (0..letters).map(|_| rng.pick(&['a', 'b', '*', '_'])).collect()
                })
                .collect();
            let request: Vec<Entry<'_>> = values
                .iter()
                .map(|value| Entry { key: rng.pick(&["k", "k_", "m"]), value })
                .collect();

            let found = rules.find("shop", &request).map(|rule| rule.path().to_owned());

            assert_eq!(found, naive(&generated, &request), "seed {seed}, {request:?}");
            hits += u64::from(found.is_some());
        }
    }
    assert!(hits > 2_000, "only {hits} found a rule");
}
