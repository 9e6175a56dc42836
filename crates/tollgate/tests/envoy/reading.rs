//! Every key of a file, and every way to get it wrong.

use tollgate::envoy::{EnvoyMode, EnvoyRules, Metadata, Unit};

use crate::support::{entries, problems, rules};

const ALL: &str = r#"
domain: shop
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit: { unit: day, requests_per_unit: 5, name: per-number }
        quota_mode: true
  - key: path
    value: "/api/*"
    share_threshold: true
    value_to_metric: true
    detailed_metric: false
    metadata: { team: pay, tier: 1, tags: [a, ~], deep: { yes: true } }
    shadow_mode: true
    rate_limit:
      unit: SECOND
      requests_per_unit: 0
      name: api
      replaces:
        - name: per-number
        - name: other
  - key: internal
    rate_limit:
      unlimited: true
  - key: 404
    value: True
    rate_limit: { unit: Week, requests_per_unit: 4294967295 }
"#;

#[test]
fn every_key_is_read() {
    let rules = rules(ALL);
    let found = |text: &str| rules.find("shop", &entries(text)).unwrap();

    let number = found("message_type=marketing to_number=1");
    assert_eq!((number.name(), number.path()), ("per-number", "message_type_marketing.to_number"));
    assert_eq!((number.mode(), number.domain()), (EnvoyMode::Quota, "shop"));
    let rate = number.rate_limit().unwrap();
    assert_eq!((rate.requests_per_unit(), rate.unit()), (5, Unit::Day));
    assert_eq!(number.metadata(), None);

    let api = found("path=/api/x");
    assert_eq!((api.mode(), api.rate_limit().unwrap().requests_per_unit()), (EnvoyMode::Shadow, 0));
    assert!(api.replaces("per-number") && api.replaces("other") && !api.replaces("api"));
    let text = |text: &str| Metadata::Text(text.to_owned());
    let deep = Metadata::Map(vec![("yes".to_owned(), Metadata::Bool(true))]);
    let metadata = [
        ("team", text("pay")),
        ("tier", Metadata::Number(1.0)),
        ("tags", Metadata::List(vec![text("a"), Metadata::Null])),
        ("deep", deep),
    ];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value));
    assert_eq!(api.metadata(), Some(&Metadata::Map(metadata.to_vec())));

    assert_eq!(found("internal=x").rate_limit(), None);
    assert_eq!(found("404=True").rate_limit().unwrap().unit(), Unit::Week, "as it is written");
    assert_eq!(rules.find("shop", &entries("404=true")).map(|rule| rule.path()), None);
}

#[test]
fn units_have_the_lengths_of_the_reference() {
    let days = |unit: Unit| unit.period().as_secs() / 86_400;
    assert_eq!(Unit::ALL.map(days), [0, 0, 0, 1, 7, 30, 365]);
    let seconds = |unit: Unit| unit.period().as_secs();
    assert_eq!(Unit::ALL.map(seconds)[..3], [1, 60, 3600]);
    for unit in Unit::ALL {
        assert_eq!(Unit::named(&unit.name().to_lowercase()), Some(unit));
    }
    assert_eq!(Unit::named("fortnight"), None);
}

/// Each file has these problems.
fn assert_problems(cases: &[(String, &str)]) {
    for (file, expected) in cases {
        assert_eq!(problems(file), *expected, "{file}");
    }
}

#[test]
fn a_problem_of_a_file_says_where_and_what_to_write() {
    const NO_DOMAIN: &str =
        "f:1:1: a file without `domain`; write `domain: shop`, as Envoy's filter names it";
    let no_text = format!("{NO_DOMAIN}\nf:1:9: `domain` is a list, where a text is wanted");
    assert_problems(&[
        ("descriptors: []".to_owned(), NO_DOMAIN),
        ("domain: ''".to_owned(), NO_DOMAIN),
        ("domain: [a]".to_owned(), &no_text),
        ("- a".to_owned(), "f:1:1: a file is a list, where a map is wanted"),
        ("".to_owned(), "f:1:1: the file is empty"),
        (
            "domain: shop\ndescriptors: { key: a }".to_owned(),
            "f:2:14: `descriptors` is a map, where a list of maps is wanted",
        ),
    ]);
}

#[test]
fn a_problem_of_a_descriptor_says_where_and_what_to_write() {
    let file = |text: &str| format!("domain: shop\ndescriptors:\n  - {text}\n");
    assert_problems(&[
        (file("value: x"), "f:3:5: a descriptor without `key`; write `key: remote_address`"),
        (file("just-text"), "f:3:5: a descriptor is the text `just-text`, where a map is wanted"),
        (
            file("{ key: a, colour: 1 }"),
            "f:3:15: unknown key `colour`; a descriptor has key, value, rate_limit, descriptors, \
             shadow_mode, quota_mode, detailed_metric, value_to_metric, share_threshold, metadata",
        ),
        (
            file("{ key: a, rate_limits: 1 }"),
            "f:3:15: unknown key `rate_limits`; did you mean `rate_limit`?",
        ),
        (
            file("{ key: a, unlimited: true }"),
            "f:3:15: `unlimited` means nothing in a descriptor; it belongs into `rate_limit`",
        ),
        (
            file("{ key: a, share_threshold: true, value: b }"),
            "f:3:32: `share_threshold` without a `*` in `value`; it makes all values of a pattern \
             share one counter",
        ),
        (
            file("{ key: a, shadow_mode: 1 }"),
            "f:3:28: `shadow_mode` is the number `1`, where `true` or `false` is wanted",
        ),
        (file("{ key: a, metadata: [b] }"), "f:3:25: `metadata` is a list, where a map is wanted"),
        (
            file("{ key: a, metadata: { x: .nan } }"),
            "f:3:30: `metadata` is the number `.nan`, where a finite number is wanted",
        ),
    ]);
}

#[test]
fn a_problem_of_a_limit_says_where_and_what_to_write() {
    let file = |text: &str| {
        format!("domain: shop\ndescriptors:\n  - key: a\n    rate_limit:\n      {{ {text} }}\n")
    };
    assert_problems(&[
        (
            file("unit: day, shadow_mode: true"),
            "f:5:20: `shadow_mode` means nothing in a rate limit; it belongs beside `rate_limit`, \
             not into it",
        ),
        (
            file("requests_per_unit: 1"),
            "f:5:7: a rate limit without `unit`; write one of second, minute, hour, day, week, \
             month, year",
        ),
        (
            file("unit: minutes, requests_per_unit: 1"),
            "f:5:15: invalid rate limit unit `minutes`; did you mean `minute`?",
        ),
        (
            file("unit: day, unlimited: true"),
            "f:5:15: a `unit` of a limit that is `unlimited`; leave `unit` out, or `unlimited`",
        ),
        (
            file("unit: second, requests_per_unit: 1000000001"),
            "f:5:7: 1000000001 per SECOND is above 1000000000 per second; count in larger units, \
             or write `unlimited: true`",
        ),
        (
            file("unit: day, name: a, replaces: [{ name: a }]"),
            "f:5:40: the rule `a` replaces itself",
        ),
        (
            file("unit: day, replaces: [{ name: '' }]"),
            "f:5:31: an empty entry of `replaces`; write `- name: other-rule`",
        ),
        (
            file("unit: day, replaces: [b]"),
            "f:5:31: `replaces` is the text `b`, where a map is wanted",
        ),
    ]);
    for (number, described) in
        [("-1", "number `-1`"), ("4294967296", "number `4294967296`"), ("'5'", "text `5`")]
    {
        let expected = format!(
            "f:5:39: `requests_per_unit` is the {described}, where a whole number from 0 to \
             4294967295 is wanted"
        );
        assert_eq!(problems(&file(&format!("unit: day, requests_per_unit: {number}"))), expected);
    }
}

#[test]
fn a_composite_key_stands_once_on_its_level() {
    let twice = "domain: shop\ndescriptors:\n  - { key: a, value: b }\n  - { key: a }\n  - { key: a, value: b }\n";
    let expected = "f:5:5: duplicate descriptor composite key `a_b`; keep one of the two, with the descriptors of both";
    assert_eq!(problems(twice), expected);
    assert!(
        problems("domain: s\ndescriptors: [{ key: a }, { key: a, value: '' }]").contains("key `a`")
    );
    let nested = "domain: s\ndescriptors: [{ key: a, descriptors: [{ key: b }, { key: b }] }]";
    assert!(problems(nested).contains("composite key `a.b`"));

    // The reference joins with underscores, and takes these for one.
    rules("domain: shop\ndescriptors: [{ key: a, value: b_c }, { key: a_b, value: c }]");
}

#[test]
fn a_domain_is_in_one_file_unless_they_are_merged() {
    let file = |key: &str| {
        format!(
            "domain: shop\ndescriptors: [{{ key: {key}, rate_limit: {{ unit: day, requests_per_unit: 1 }} }}]"
        )
    };
    let (a, b, other) = (file("a"), file("b"), file("c").replace("shop", "mail"));

    let several = EnvoyRules::load(7, [("a", &*a), ("c", &*other)]).unwrap();
    assert_eq!((several.version(), several.rules().len()), (7, 2));
    assert!(several.has_domain("shop") && several.has_domain("mail") && !several.has_domain("x"));
    let mut domains: Vec<&str> = several.domains().collect();
    domains.sort_unstable();
    assert_eq!(domains, ["mail", "shop"]);
    assert!(several.find("mail", &entries("a=1")).is_none(), "domains are apart");

    let twice = EnvoyRules::load(1, [("a", &*a), ("b", &*b)]).unwrap_err();
    let expected = "b:1:9: the domain `shop` is in another file as well; write its descriptors into one file, or merge domains";
    assert_eq!(twice.to_string(), expected);

    let merged = EnvoyRules::load_merging(1, [("a", &*a), ("b", &*b)]).unwrap();
    assert!(merged.find("shop", &entries("a=1")).is_some());
    assert!(merged.find("shop", &entries("b=1")).is_some());
    let clash = EnvoyRules::load_merging(1, [("a", &*a), ("again", &*a)]).unwrap_err();
    assert!(clash.to_string().starts_with("again:2:15: duplicate descriptor"), "{clash}");
}

#[test]
fn nothing_is_what_is_not_there() {
    let empty = "domain: shop\ndescriptors:\n  - key: a\n    value:\n    rate_limit:\n    descriptors:\n    metadata:\n";
    assert!(rules(empty).rules().is_empty());
    assert!(rules("domain: shop\ndescriptors:\n").has_domain("shop"));
    let ban = rules("domain: shop\ndescriptors: [{ key: a, rate_limit: { unit: day } }]");
    assert_eq!(ban.rules()[0].rate_limit().unwrap().requests_per_unit(), 0);
    let yes = rules(
        "domain: shop\ndescriptors: [{ key: a, quota_mode: yes, rate_limit: { unit: day } }]",
    );
    assert_eq!(yes.rules()[0].mode(), EnvoyMode::Quota);
}

#[test]
fn bounds_hold_at_the_limit_and_not_beyond() {
    fn nested(depth: usize) -> String {
        let open = "{ key: a, descriptors: [".repeat(depth - 1);
        let close = "] }".repeat(depth - 1);
        format!(
            "domain: shop\ndescriptors: [{open}{{ key: a, rate_limit: {{ unit: day, name: x, replaces: [{{ name: b }}] }} }}{close}]"
        )
    }
    let deepest = rules(&nested(12));
    let request = ["a=1"; 12].join(" ");
    assert!(deepest.find("shop", &entries(&request)).is_some());
    assert!(problems(&nested(13)).contains("nested deeper than 12 levels"));

    let value = |len: usize| {
        format!("domain: shop\ndescriptors: [{{ key: a, value: {} }}]", "v".repeat(len))
    };
    rules(&value(1024));
    assert!(problems(&value(1025)).contains("`value` of 1025 bytes is above 1024"));

    let replaces = |count: usize| {
        let names = vec!["{ name: b }"; count].join(", ");
        format!(
            "domain: shop\ndescriptors: [{{ key: a, rate_limit: {{ unit: day, replaces: [{names}] }} }}]"
        )
    };
    rules(&replaces(1000));
    assert!(problems(&replaces(1001)).contains("more than 1000 names"));

    let many = |count: usize| {
        let items: Vec<String> = (0..count).map(|i| format!("  - key: k{i}\n")).collect();
        format!("domain: shop\ndescriptors:\n{}", items.concat())
    };
    rules(&many(100_000));
    assert!(problems(&many(100_000 + 1)).contains("more than 100000 descriptors"));

    let files = |count: usize| {
        let files: Vec<(String, String)> =
            (0..count).map(|i| (format!("{i}.yaml"), format!("domain: d{i}"))).collect();
        EnvoyRules::load(1, files.iter().map(|(name, text)| (&**name, &**text))).map(drop)
    };
    assert_eq!(files(1_000), Ok(()));
    assert!(files(1_000 + 1).unwrap_err().to_string().contains("more than 1000 files"));
}
