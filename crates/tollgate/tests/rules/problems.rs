//! Every refusal of a rule file names its place, its value and a way out.

use tollgate::rules::{self, Format, Problems};

/// Everything wrong with a rule of these fields: columns as within `{name: r, …}`.
fn wrong_with(fields: &str) -> String {
    let text = format!("{{version: 1,\ndomain: d,\nrules: [\n{{name: r, {fields}}}]}}");
    rules::load(&text, Format::Yaml).unwrap_err().to_string()
}

fn wrong(text: &str, format: Format) -> String {
    rules::load(text, format).unwrap_err().to_string()
}

#[test]
fn every_problem_has_its_place_and_a_way_out() {
    for (fields, expected) in [
        ("limit: []", "4:11: unknown field `limit`; did you mean `limits`?"),
        (
            "limits: [0 per 1m]",
            "4:20: `0 per 1m`: a limit of 0 is a block; write `block: true` in place of `limits`",
        ),
        ("limits: [1.5 per 1s]", "4:20: 1.5 is not a whole number: write `3 per 2s`"),
        ("limits: [five per 1m]", "4:20: \"five\" is not a whole number from 1 upwards"),
        (
            "limits: 5 per 1m",
            "4:19: `limits` is the text `5 per 1m`, where a list is wanted; write a list: \
             `limits: [5 per 1m]`",
        ),
        (
            "limits: [{count: 1_000, per: 1m}]",
            "4:28: `count` is the text `1_000`, where a whole number from 0 to 9007199254740991 is \
             wanted; write `1000`",
        ),
        (
            "limits: [{count: 5, per: 60}]",
            "4:36: `per` is the number `60`, where a time such as `30s` is wanted; write `60s`",
        ),
        (
            "limits: [{count: 5, per: 1m, panes: 5}]",
            "4:40: `panes` belongs to sliding-window; add `algorithm: sliding-window`",
        ),
        (
            "limits: [{count: 5, per: 1m, algorithm: gcra}]",
            "4:51: `algorithm` is `gcra`, which is not one of token-bucket, sliding-log, \
             sliding-window, fixed-window, leaky-meter, leaky-queue, smooth, concurrency",
        ),
        (
            "limits: [{count: 5, per: 1m, algorithm: concurrency}]",
            "4:31: concurrency has no `per`; write `lease`, the longest that a permit is held",
        ),
        (
            "limits: [5 per 1m], on-outage: locl",
            "4:42: `on-outage` is `locl`, which is not one of local, admit, refuse; did you mean \
             `local`?",
        ),
        (
            "limits: [5 per 1m], match: {user: 42}",
            "4:45: `user` is the number `42`, where a text is wanted; write \"42\" in quotes",
        ),
        (
            "limits: [5 per 1m], match: {ip: 10.0.0.1/8}",
            "4:43: `10.0.0.1/8`: bits after the prefix are set; write `10.0.0.0/8`",
        ),
        (
            "limits: [5 per 1m], match: {header: {x-plan: gold}}",
            "4:48: unknown kind of condition `x-plan`; write an attribute with a dot in quotes: \
             `header.x-plan`",
        ),
        (
            "limits: [5 per 1m], local-guard: 1.2345",
            "4:44: `local-guard` is `1.2345`, which is not a number above 0 with at most three \
             decimals; write `1.2`",
        ),
        (
            "limits: [5 per 1m], ban: {after: 10, within: 1m}",
            "4:36: a ban without `for`; write `ban: { after: 10, within: 1m, for: 15m }`",
        ),
        (
            "limits: [5 per 1m], by:",
            "4:33: `by` is nothing, where a list of texts is wanted; leave it out, or give it a value",
        ),
    ] {
        assert_eq!(wrong_with(fields), expected, "{fields}");
    }
}

#[test]
fn an_entry_of_a_list_names_one_value() {
    for entry in
        ["{user: '*'}", "{user: {present: true}}", "{user: {absent: true}}", "{user: [a, b]}"]
    {
        let text = format!("{{version: 1, domain: d, lists: {{exempt: [{entry}]}}}}");
        assert_eq!(
            wrong(&text, Format::Yaml),
            "1:49: an entry of a list names one value of `user`; write one value an entry, or a rule \
             with `block: true` for a condition",
            "{entry}"
        );
    }
}

#[test]
fn what_only_the_whole_set_shows_is_told_at_its_place_too() {
    for (fields, place) in [
        ("limits: [5 per 1m, 7 per 60s]", "4:30: there are two limits `1m` in this rule"),
        ("limits: [5 per 1m], replaces: [s]", "4:42: there is no rule `s` in this domain"),
        ("limits: [5 per 1m], by: [ip, path.id]", "4:40: no path is matched that captures `id`"),
        (
            "limits: [5 per 1m], match: {path: [/a, b]}",
            "4:50: the path `b` does not begin with `/`",
        ),
        ("block: true, by: ip", "4:28: a rule that blocks counts nothing"),
        ("by: ip", "4:1: the rule limits nothing"),
    ] {
        let told = wrong_with(fields);
        assert!(told.starts_with(place), "{fields}: {told}");
    }
    let toml = "version = 1\n[[domains]]\ndomain = 'a'\n[[domains]]\ndomain = 'a'\n";
    assert_eq!(wrong(toml, Format::Toml), "5:10: there are two domains `a`");
    let json = r#"{"version": 1, "domain": "d", "lists": {"block": [{"path": "x"}]}}"#;
    assert!(wrong(json, Format::Json).starts_with("1:51: the path `x`"));
}

#[test]
fn numbers_are_whole_and_plain_in_every_format() {
    for number in [
        "0",
        "-0",
        "-1",
        "1e400",
        "1.5",
        "1.0",
        "9007199254740992",
        "9223372036854775808",
        "18446744073709551616",
        "1e3",
    ] {
        let json = format!(r#"{{"version": {number}, "domain": "d"}}"#);
        let told = wrong(&json, Format::Json);
        assert!(
            told.starts_with(&format!("1:13: `version` is `{number}`, which is not")),
            "{told}"
        );
        let yaml = format!("domain: d\nversion: {number}\n");
        let told = wrong(&yaml, Format::Yaml);
        assert!(
            told.starts_with(&format!("2:10: `version` is `{number}`, which is not")),
            "{told}"
        );
    }
    for number in [".nan", "-.inf", "0x10", "0o17", "007", "+1"] {
        let told = wrong(&format!("domain: d\nversion: {number}\n"), Format::Yaml);
        assert!(told.starts_with("2:10: `version` is "), "{told}");
    }
    for number in ["nan", "-inf", "0x10", "-1", "1e3", "+1.0"] {
        let told = wrong(&format!("domain = 'd'\nversion = {number}\n"), Format::Toml);
        assert!(told.starts_with("2:11: `version` is "), "{told}");
    }
    for number in ["NaN", "Infinity", "+1", ".5", "1.", "01", "0x10", "1_000", "--1"] {
        let told = wrong(&format!("{{\n\"version\": {number}}}"), Format::Json);
        assert!(told.starts_with("2:12: "), "{number}: {told}");
    }
}

#[test]
fn a_key_that_is_twice_is_refused_in_every_format() {
    assert_eq!(
        wrong("version: 1\ndomain: a\ndomain: b\n", Format::Yaml),
        "3:1: the key `domain` is here twice; the first is at 2:1"
    );
    assert_eq!(
        wrong("{\"version\": 1, \"version\": 2}", Format::Json),
        "1:16: the key `version` is here twice; the first is at 1:2"
    );
    assert_eq!(wrong("version = 1\nversion = 2\n", Format::Toml), "2:1: duplicate key");
}

#[test]
fn what_is_not_of_its_format_is_told_where_it_ends_to_be() {
    for (text, expected) in [
        ("", "1:1: the file is empty"),
        ("{\"version\": 1,}", "1:15: `}` where a key in double quotes is wanted"),
        ("{\"version\": 1 // one\n}", "1:15: `/` where `,` or `}` is wanted; JSON has no comments"),
        ("{'version': 1}", "1:2: `'` where a key in double quotes is wanted"),
        ("{\"a\": \"\n\"}", "1:8: the control character 0x0a within a text; write `\\u000a`"),
        ("{\"a\": \"\\ud800\"}", "1:8: `\\ud800` is not a JSON escape"),
        ("{\"a\": \"b", "1:7: a text without its closing quote"),
        ("{} {}", "1:4: `{` where the end of the file is wanted"),
        ("{\"a\": nul}", "1:7: `nul` where a value is wanted"),
    ] {
        assert_eq!(wrong(text, Format::Json), expected, "{text}");
    }
    assert_eq!(
        wrong("a: 1\n---\nb: 2\n", Format::Yaml),
        "2:1: a second document; use `domains` for several"
    );
    assert!(wrong("a: [1\n", Format::Yaml).starts_with("2:"), "the end is where it goes wrong");
    assert!(wrong("a = \n", Format::Toml).starts_with("1:"));
    assert_eq!(
        wrong("version: !!int 1\n", Format::Yaml),
        "1:10: tags are not read here; quote a text that begins with `!`"
    );
}

#[test]
fn many_problems_are_told_at_once_in_the_order_of_the_file() {
    let text = "version: 0\nrules:\n  - nam: a\n  - name: 5\n    mode: of\nlists: []\n";

    let problems = rules::read(text, Format::Yaml).unwrap_err();

    let places: Vec<_> = problems.iter().map(|p| (p.line(), p.column())).collect();
    assert_eq!(places, [(1, 1), (1, 10), (3, 5), (3, 5), (4, 11), (5, 11), (6, 8)]);
    assert_eq!(problems.iter().filter(|problem| problem.hint().is_some()).count(), 5);
}

#[test]
fn no_more_problems_are_kept_than_anyone_reads() {
    let rules: String = (0..1_000).map(|index| format!("  - nam: r{index}\n")).collect();

    let problems =
        rules::read(&format!("version: 1\ndomain: d\nrules:\n{rules}"), Format::Yaml).unwrap_err();

    assert_eq!(problems.iter().len(), Problems::MAX);
    assert!(problems.has_more());
    assert!(problems.to_string().ends_with("\nand more"));
}

#[test]
fn a_byte_that_is_no_text_has_a_place() {
    let problems = rules::decode(b"version: 1\ndomain: \xff\n").unwrap_err().in_file("r.yaml");

    assert_eq!(
        problems.to_string(),
        "r.yaml:2:9: a byte that is not UTF-8; save the file as UTF-8"
    );
}
