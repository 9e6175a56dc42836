//! Errors of a declaration, each with its place and the text to write instead.

use std::time::Duration;

use tollgate_core::algorithm::{Concurrency, SlidingLog};
use tollgate_core::rule::declaration::{
    Ban, Domain, Mode, OnMissing, Pattern, Rule, Subject, Value,
};
use tollgate_core::rule::{Place, RuleError, RuleSet, bounds};
use tollgate_core::testing::Rng;

use crate::support::{
    With, any, declare, limitation, list, rule, set, set_of, shop, subject, wrong, wrong_of,
};

fn many(count: usize, make: impl Fn(usize) -> String) -> Vec<String> {
    (0..count).map(make).collect()
}

#[test]
fn an_error_says_where_and_what_and_how_else() {
    let rules = vec![rule("login"), rule("vip").replacing(&["lgin"])];

    let errors = RuleSet::new(declare(vec![shop(rules)])).unwrap_err();

    let [error] = errors.as_slice() else { panic!("{}", list(&errors)) };
    let place = Place {
        domain: Some(0),
        rule: Some(1),
        field: Some("replaces"),
        item: Some(0),
        ..Place::default()
    };
    assert_eq!(error.place(), place);
    assert_eq!(error.message(), "there is no rule `lgin` in this domain");
    assert_eq!(error.hint(), Some("did you mean `login`?"));
    assert_eq!(
        error.to_string(),
        "domain 1, rule 2, replaces, item 1: there is no rule `lgin` in this domain (did you \
         mean `login`?)"
    );
}

/// One broken rule each, and what is said about it.
#[test]
fn every_mistake_of_a_rule_has_its_message() {
    let at = |text: &str| format!("domain 1, rule 1, {text}\n");
    let ban = |after, within, lasts| Ban {
        after,
        within: Duration::from_secs(within),
        lasts: Duration::from_secs(lasts),
    };
    let block = || Rule::new("a").with(|rule| rule.block = true);
    let cases: Vec<(Rule, &str)> = vec![
        (rule(""), "name: the name is empty"),
        (rule(" a"), "name: ` a` begins or ends with a space"),
        (rule("a\nb"), "name: `a\u{fffd}b` has a control character"),
        // C29
        (rule("a\u{202e}b"), "name: `a\u{fffd}b` has a character that turns the direction of text"),
        (
            Rule::new("a"),
            "limits: the rule limits nothing (give it a limit such as `100 per 1m`, or let it block)",
        ),
        (
            rule("a").with(|rule| rule.block = true),
            "limits: a rule that blocks has no limits (drop it, or drop `block`)",
        ),
        (block().by(&["ip"]), "by: a rule that blocks counts nothing (drop it, or drop `block`)"),
        (
            block().with(|rule| rule.ban = Some(ban(1, 1, 1))),
            "ban: a rule that blocks cannot ban (drop it, or drop `block`)",
        ),
        (rule("a").on("", &["x"]), "match, item 1: the name of an attribute is empty"),
        (
            rule("a").on("Path", &["x"]),
            "match, item 1: `Path` is not an attribute (did you mean `path`?)",
        ),
        (
            rule("a").on("headers.x", &["x"]),
            "match, item 1: `headers.x` is not an attribute (did you mean `header.x`?)",
        ),
        (
            rule("a").on("a b", &["x"]),
            "match, item 1: `a b` is not an attribute name (letters, digits, `-`, `_` and `.`)",
        ),
        (rule("a").on("header.a b", &["x"]), "match, item 1: `header.a b` is not a header name"),
        (
            rule("a").on("path.id", &["x"]),
            "match, item 1: `path.id` is captured by `path` itself (write the value into the path, in place of the capture)",
        ),
        (
            rule("a").on("user", &[]),
            "match, item 1: the condition accepts no value at all (list values, or require the attribute to be present or absent)",
        ),
        (
            rule("a").on("user", &["*"]),
            "match, item 1, value 1: `*` accepts any value (require the attribute to be present instead)",
        ),
        (
            rule("a").on("header.X", &["x"]).on("header.x", &["y"]),
            "match, item 2: there are two conditions on `header.x` (list all values that one condition accepts)",
        ),
        (
            rule("a").on("path", &["/a", "login"]),
            "match, item 1, value 2: the path `login` does not begin with `/`",
        ),
        (
            rule("a").on("path", &["/api/**"]).with(|rule| {
                rule.matches[0].1 = Pattern::Any(vec![Value::Text("/api/**".to_owned())])
            }),
            "match, item 1, value 1: the path `/api/**` has a segment `**` (write `{*rest}` for all that follows)",
        ),
        (
            rule("a").on("path", &["/{*x}/y"]),
            "match, item 1, value 1: the path `/{*x}/y` continues after `{*…}` (only the last segment may be `{*rest}`)",
        ),
        (
            rule("a").on("path", &["/{x}/{x}"]),
            "match, item 1, value 1: the path `/{x}/{x}` captures one name twice",
        ),
        (
            rule("a").on("path", &["/v{x}"]),
            "match, item 1, value 1: the path `/v{x}` captures a part of a segment (capture the whole: `{name}`)",
        ),
        (
            rule("a").on("path", &["/:id"]),
            "match, item 1, value 1: the path `/:id` has a segment that begins with `:` (write `{name}` for any one segment)",
        ),
        (
            rule("a").on("path", &["/a%2fb"]),
            "match, item 1, value 1: the path `/a%2fb` has a segment that no path can have",
        ),
        (
            rule("a").on("path", &["/ap*"]),
            "match, item 1, value 1: `/ap*` ends within a segment of the path (write `/ap/{*rest}` for all below it)",
        ),
        (
            rule("a").on("ip", &["10.0.0.1/8"]),
            "match, item 1, value 1: `10.0.0.1/8`: bits after the prefix are set (write an address or a network such as 10.0.0.0/8)",
        ),
        (
            rule("a").on("ip", &["10.*"]),
            "match, item 1, value 1: `10.*` is not a network (write an address or a network such as 10.0.0.0/8)",
        ),
        (
            rule("a").on("host", &["a..b"]),
            "match, item 1, value 1: `a..b`: the host is not a name or an address in brackets",
        ),
        (rule("a").on("method", &["G T"]), "match, item 1, value 1: `G T` is not a method"),
        (rule("a").by(&["ip", "ip"]), "by, item 2: `ip` is here twice"),
        (
            rule("a").by(&["path.id"]),
            "by, item 1: no path is matched that captures `id` (match a path such as `/orders/{id}`)",
        ),
        (
            rule("a").on("path", &["/{id}", "/x"]).by(&["path.id"]),
            "by, item 1: a path of this rule captures no `id` (write `{id}` into each path of `match`)",
        ),
        (
            rule("a").with(|rule| rule.limits.push(limitation("9 per 60s"))),
            "limit 2: there are two limits `1m` in this rule (a limit is named by its period unless it has a `name`)",
        ),
        (rule("a").replacing(&["a"]), "replaces, item 1: a rule cannot replace itself"),
        (
            rule("a").with(|rule| rule.ban = Some(ban(0, 60, 60))),
            "ban: `after … within`: a count of 0 is not a quota: block the subject to refuse everything, or drop the limit to refuse nothing",
        ),
        (
            rule("a").with(|rule| rule.ban = Some(ban(5, 60, 0))),
            "ban: `for`: the period is zero: the shortest is 1us",
        ),
        (
            rule("a").with(|rule| rule.cost.default = 2),
            "cost: a default of 2 has no effect without an attribute (name the attribute with the cost)",
        ),
        (rule("a").with(|rule| rule.cost.max = Some(0)), "cost: `max` is 0, below the default 1"),
        (
            rule("a").with(|rule| rule.cost.attribute = Some("ip".to_owned())),
            "cost: `ip` is not a number",
        ),
        (
            rule("a").with(|rule| rule.local_guard = Some(999)),
            "local-guard: a local guard of 999 thousandths of the limit (from 1, where it refuses what the limit would, to 1000)",
        ),
        (
            rule("a").with(|rule| {
                rule.local_guard = Some(1_000);
                rule.limits[0].algorithm = Some(Concurrency.into());
            }),
            "local-guard: the rule has no limit that could be guarded (a limit of how many at once has no guard: leave it out)",
        ),
    ];
    for (broken, message) in cases {
        assert_eq!(wrong(vec![broken]), at(message));
    }
}

#[test]
fn a_limit_that_cannot_be_built_says_whose_choice_the_algorithm_was() {
    let mut inferred = rule("a").on("path", &["/x"]);
    inferred.limits = vec![limitation("1000000 per 1h")];
    let mut named = inferred.clone();
    named.limits[0].algorithm = Some(SlidingLog.into());

    let (inferred, named) = (wrong(vec![inferred]), wrong(vec![named]));

    assert!(inferred.starts_with("domain 1, rule 1, limit 1: "), "{inferred}");
    assert!(inferred.contains("sliding-log is what interface rules use"), "{inferred}");
    assert!(!named.contains("rules use"), "{named}");
}

#[test]
fn mistakes_of_a_domain_have_their_messages() {
    let edit = |edit: fn(&mut Domain)| {
        let mut domain = shop(vec![rule("a").by(&["tenant"])]);
        edit(&mut domain);
        wrong_of(domain)
    };

    assert_eq!(edit(|_| ()), "");
    assert_eq!(edit(|d| d.name.clear()), "domain 1, domain: the name is empty\n");
    assert!(edit(|d| d.ipv6_prefix = 0).starts_with("domain 1, ipv6-prefix: 0 is not a number"));
    assert!(
        edit(|d| d.ipv6_prefix = 129).starts_with("domain 1, ipv6-prefix: 129 is not a number")
    );
    assert!(edit(|d| d.partition = vec!["path".into()]).starts_with("domain 1, partition, item 1"));
    assert!(edit(|d| d.exempt = vec![subject("path.x", "1")]).contains("exempt, item 1: `path.x`"));
    assert!(edit(|d| d.block = vec![subject("path", "x")]).contains("block, item 1, value 1"));
    assert!(edit(|d| d.rules.push(rule("a"))).contains("rule 2, name: there are two rules `a`"));
}

#[test]
fn two_domains_of_one_name_and_version_0_are_refused() {
    let twice = RuleSet::new(declare(vec![Domain::new("a"), Domain::new("a")])).unwrap_err();
    let mut unversioned = declare(vec![]);
    unversioned.version = 0;
    let unversioned = RuleSet::new(unversioned).unwrap_err();

    assert_eq!(list(&twice), "domain 2, domain: there are two domains `a`\n");
    assert_eq!(
        list(&unversioned),
        "version: version 0 is the empty set (number edits from 1 on)\n"
    );
}

#[test]
fn rules_that_replace_each_other_in_a_circle_are_refused_once() {
    let rules = vec![
        rule("a").replacing(&["b"]),
        rule("b").replacing(&["c"]),
        rule("c").replacing(&["a", "d"]),
        rule("d"),
    ];

    let errors = wrong(rules);

    assert_eq!(
        errors,
        "domain 1, rule 3, replaces, item 1: rules replace each other in a circle: a → b → c → a \
         (if all of them match, none would apply)\n"
    );
}

#[test]
fn a_chain_as_long_as_the_set_and_a_diamond_are_no_circles() {
    let mut chain: Vec<Rule> =
        (0..20_000).map(|i| rule(&format!("r{i}")).replacing(&[&format!("r{}", i + 1)])).collect();
    chain.push(rule("r20000"));
    let diamond = vec![
        rule("a").replacing(&["b", "c"]),
        rule("b").replacing(&["d"]),
        rule("c").replacing(&["d"]),
        rule("d"),
    ];

    assert_eq!(wrong(chain), "");
    assert_eq!(wrong(diamond), "");
}

#[test]
fn rules_that_would_refuse_every_request_are_refused_themselves() {
    let rules = |count: usize| (0..count).map(|i| rule(&format!("r{i}"))).collect::<Vec<_>>();
    let errors = |rules| match RuleSet::new(declare(vec![shop(rules)])) {
        Ok(_) => String::new(),
        Err(errors) => list(&errors),
    };
    let (mut shadow, mut off) = (rules(65), rules(65));
    shadow[3].mode = Mode::Shadow;
    off[3].mode = Mode::Off;
    let mut some_have_none = rules(65);
    some_have_none[3].by = vec!["user".to_owned()];
    let mut replacing = rules(65);
    replacing[0].replaces = vec!["r7".to_owned()];
    let mut all_share = some_have_none.clone();
    all_share[3].on_missing = OnMissing::Share;

    for fits in [rules(64), shadow, off, some_have_none, replacing] {
        assert_eq!(errors(fits), "");
    }
    for above in [rules(65), rules(70), all_share] {
        assert_eq!(
            errors(above),
            "domain 1, rule 65, limits: with this rule, 65 limits apply to every request (one \
             request is charged on at most 64: narrow some `match`)\n"
        );
    }
}

#[test]
fn at_most_a_hundred_errors_are_told() {
    let rules = (0..1_000).map(|i| Rule::new(format!("r{i}"))).collect();

    let errors = RuleSet::new(declare(vec![shop(rules)])).unwrap_err();

    assert_eq!(errors.len(), RuleError::MAX);
}

/// Each bound: at it the set is right, one above it is not.
#[test]
fn every_bound_holds_exactly() {
    let value = |len: usize| "v".repeat(len);
    let check = |what: &str, bound: usize, make: &dyn Fn(usize) -> Rule| {
        assert_eq!(wrong(vec![make(bound)]), "", "{what}");
        assert_ne!(wrong(vec![make(bound + 1)]), "", "{what}");
    };
    let by = |count| many(count, |i| format!("a{i}"));

    check("name", bounds::MAX_NAME, &|n| rule(&value(n)));
    check("limit name", bounds::MAX_LIMIT_NAME, &|n| {
        rule("a").with(|rule| rule.limits[0].name = Some(value(n)))
    });
    check("conditions", bounds::MAX_CONDITIONS, &|n| {
        by(n).iter().fold(rule("a"), |rule, name| rule.on(name, &["x"]))
    });
    check("values", bounds::MAX_VALUES, &|n| {
        let values = by(n);
        rule("a").on("user", &values.iter().map(String::as_str).collect::<Vec<_>>())
    });
    check("value", bounds::MAX_VALUE_LEN, &|n| rule("a").on("user", &[&value(n)]));
    check("by", bounds::MAX_BY, &|n| rule("a").with(|rule| rule.by = by(n)));
    check("limits", bounds::MAX_LIMITS, &|n| {
        rule("a").with(|rule| {
            rule.limits = (1..=n).map(|i| limitation(&format!("5 per {i}m"))).collect();
        })
    });
    check("guard", bounds::MAX_LOCAL_GUARD as usize, &|n| {
        rule("a").with(|rule| rule.local_guard = Some(n as u32))
    });
    check("attribute", 128, &|n| rule("a").by(&[&value(n)]));
    check("template", 1024, &|n| rule("a").on("path", &[&format!("/{}", value(n - 1))]));
    check("pieces", 64, &|n| rule("a").on("path", &[&"/a".repeat(n)]));
}

#[test]
fn the_bounds_of_a_set_hold_exactly() {
    // By user, as so many that apply to everybody would not load.
    let named = |i: usize| rule(&format!("r{i}")).with(|rule| rule.by = vec!["user".to_owned()]);
    let rules = |count: usize| (0..count).map(named).collect::<Vec<_>>();
    let domains = |count: usize| {
        RuleSet::new(declare((0..count).map(|i| Domain::new(format!("d{i}"))).collect()))
    };
    let replacing = |count: usize| {
        let mut all = rules(count);
        let names: Vec<String> = all.iter().map(|rule| rule.name.clone()).collect();
        all.push(rule("a").with(|rule| rule.replaces = names));
        wrong(all)
    };
    let blocking = |count: usize| {
        let block = (0..count).map(|i| subject("user", &format!("u{i}"))).collect();
        wrong_of(Domain { block, ..shop(vec![]) })
    };
    let partition = |count: usize| {
        let partition = many(count, |i| format!("a{i}"));
        wrong_of(Domain { partition, ..shop(vec![]) })
    };

    assert_eq!(wrong(rules(bounds::MAX_RULES)), "");
    assert_eq!(wrong(rules(bounds::MAX_RULES + 1)), "rules: 100001 rules are more than 100000\n");
    assert!(domains(bounds::MAX_DOMAINS).is_ok());
    assert!(domains(bounds::MAX_DOMAINS + 1).is_err());
    assert_eq!(replacing(bounds::MAX_REPLACES), "");
    assert_ne!(replacing(bounds::MAX_REPLACES + 1), "");
    assert_eq!(blocking(bounds::MAX_LIST), "");
    assert_ne!(blocking(bounds::MAX_LIST + 1), "");
    assert_eq!(partition(bounds::MAX_PARTITION), "");
    assert_ne!(partition(bounds::MAX_PARTITION + 1), "");
}

#[test]
fn a_set_keeps_what_it_was_made_from() {
    let domain = shop(vec![rule("b"), rule("a")]);

    let set = set_of(domain.clone());

    assert_eq!(set.declaration(), &declare(vec![domain]));
    assert_eq!(set.version(), 1);
    assert_eq!(
        set.rules().map(|rule| (rule.index(), rule.name())).collect::<Vec<_>>(),
        [(0, "b"), (1, "a")]
    );
}

#[test]
fn a_set_tells_which_attributes_it_looks_at() {
    let mut domain = shop(vec![
        rule("a").on("path", &["/{id}"]).by(&["path.id", "header.X-Key"]),
        rule("b").with(|rule| rule.cost.attribute = Some("bytes".to_owned())),
    ]);
    domain.block.push(subject("ip", "192.0.2.1"));
    let set = set_of(domain);

    assert_eq!(set.wants("shop"), ["bytes", "header.x-key", "ip", "path"]);
    assert!(set.wants("other").is_empty());
}

#[test]
fn present_and_absent_need_no_values() {
    set(vec![rule("a").with(|rule| {
        rule.matches = vec![
            ("user".to_owned(), Pattern::Present),
            ("bot".to_owned(), Pattern::Absent),
            ("method".to_owned(), any(&["get"])),
        ];
    })]);
}

/// Declarations broken in every way: an error with a place, or a set; never a panic.
#[test]
fn no_declaration_makes_it_panic() {
    let mut rng = Rng::new(23);
    let mut good = 0;
    for _ in 0..20_000 {
        match RuleSet::new(declare(vec![random_domain(&mut rng)])) {
            Ok(_) => good += 1,
            Err(errors) => {
                assert!(!errors.is_empty());
                assert!(errors.iter().all(|error| error.place().domain.is_some()));
            }
        }
    }
    assert!(good > 100, "{good}");
}

fn random_domain(rng: &mut Rng) -> Domain {
    let mut domain =
        Domain { rules: vec![random_rule(rng), rule("b")], ..Domain::new(random_text(rng)) };
    if rng.chance(1, 3) {
        domain.ipv6_prefix = rng.below(256) as u8;
    }
    if rng.chance(1, 3) {
        domain.block.push(subject_of(&random_text(rng), &random_text(rng)));
    }
    domain
}

fn random_rule(rng: &mut Rng) -> Rule {
    let mut rule = Rule::new(random_text(rng));
    if rng.chance(1, 3) {
        let values = vec![Value::Text(random_text(rng)), Value::Prefix(random_text(rng))];
        rule.matches.push((random_text(rng), Pattern::Any(values)));
    }
    if rng.chance(1, 3) {
        rule.by.push(random_text(rng));
    }
    if rng.chance(2, 3) {
        rule.limits.push(limitation("5 per 1m"));
    }
    if rng.chance(1, 3) {
        rule.limits.push(limitation("1000000 per 1h"));
        rule.limits[0].name = Some(random_text(rng));
    }
    if rng.chance(1, 3) {
        rule.replaces.push(random_text(rng));
    }
    if rng.chance(1, 3) {
        rule.cost.attribute = Some(random_text(rng));
        rule.cost.default = rng.below(3);
    }
    if rng.chance(1, 3) {
        let within = Duration::from_nanos(rng.magnitude(u64::MAX));
        let lasts = Duration::from_nanos(rng.magnitude(u64::MAX));
        rule.ban = Some(Ban { after: rng.magnitude(u64::MAX), within, lasts });
    }
    rule.block = rng.chance(1, 8);
    rule
}

fn random_text(rng: &mut Rng) -> String {
    const TEXTS: [&str; 24] = [
        "",
        "a",
        "b",
        "path",
        "path.",
        "path.id",
        "ip",
        "header.",
        "header.X",
        "host",
        "method",
        "/",
        "/{id}",
        "/{*id}",
        "/a/{",
        "/%",
        "/..",
        "10.0.0.0/8",
        "::/0",
        "a.com",
        "\0",
        "*",
        "user",
        "\u{1f600}",
    ];
    rng.pick(&TEXTS).to_owned()
}

fn subject_of(name: &str, value: &str) -> Subject {
    Subject::Attribute { name: name.to_owned(), value: Value::Text(value.to_owned()) }
}
