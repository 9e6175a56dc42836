//! Reading rule files, in all the ways to write them.

use std::time::Duration;

use tollgate::rules::{self, Format};
use tollgate_core::Algorithm;
use tollgate_core::algorithm::{Anchor, FixedWindow, Payment, SlidingLog, SlidingWindow, Smooth};
use tollgate_core::rule::declaration::{
    Ban, CostFrom, Declaration, Domain, Limitation, OnOutage, Pattern, Rule, Subject, Value,
};

/// The example of the design, to the letter.
const SHOP: &str = "\
version: 1
domain: shop
partition: [tenant]                # optional; Cluster: keys of one request share a slot
rules:
  - name: login-per-ip
    match: { service: auth, path: /login, method: POST }
    by: [ip]                       # one counter per client address; [] = one counter for all
    limits:
      - 5 per 1m                   # algorithm from the scenario table unless named
      - { count: 20, per: 1h, algorithm: sliding-log }
    on-outage: local               # local | admit | refuse
    on-change: keep                # keep | scale | reset
    mode: enforce                  # enforce | shadow | off
    replaces: [default-per-ip]     # so that some callers can have more
lists:
  exempt: [10.0.0.0/8]
  block:  [203.0.113.7]
";

fn quota(text: &str) -> Limitation {
    Limitation { name: None, quota: text.parse().unwrap(), algorithm: None }
}

fn text(text: &str) -> Pattern {
    Pattern::Any(vec![Value::Text(text.to_owned())])
}

/// The one rule of a file that has this one, in YAML.
fn rule(fields: &str) -> Rule {
    let text = format!("{{version: 1, domain: d, rules: [{{name: r, {fields}}}]}}");
    let mut declared = rules::read(&text, Format::Yaml).unwrap();
    declared.domains.remove(0).rules.remove(0)
}

fn algorithm(limit: &str) -> Algorithm {
    rule(&format!("limits: [{limit}]")).limits.remove(0).algorithm.unwrap()
}

#[test]
fn the_example_of_the_design_declares_what_it_says() {
    let mut login = Rule::new("login-per-ip");
    login.matches = vec![
        ("service".to_owned(), text("auth")),
        ("path".to_owned(), text("/login")),
        ("method".to_owned(), text("POST")),
    ];
    login.by.push("ip".to_owned());
    login.limits = vec![
        quota("5 per 1m"),
        Limitation { algorithm: Some(SlidingLog.into()), ..quota("20 per 1h") },
    ];
    login.replaces.push("default-per-ip".to_owned());
    let mut shop = Domain::new("shop");
    shop.partition.push("tenant".to_owned());
    shop.rules.push(login);
    shop.exempt.push(Subject::Network("10.0.0.0/8".parse().unwrap()));
    shop.block.push(Subject::Network("203.0.113.7".parse().unwrap()));

    let read = rules::read(SHOP, Format::Yaml);

    assert_eq!(read, Ok(Declaration { version: 1, domains: vec![shop] }));
}

#[test]
fn the_example_of_the_design_loads_beside_the_rule_that_it_replaces() {
    let other = "\
rules:
  - { name: default-per-ip, by: [ip], limits: [100 per 1m] }
";

    let alone = rules::load(SHOP, Format::Yaml).unwrap_err();
    let both = rules::load(&SHOP.replace("rules:\n", other), Format::Yaml);

    assert!(alone.to_string().contains("default-per-ip"), "{alone}");
    assert!(both.is_ok(), "{both:?}");
}

#[test]
fn a_loaded_set_is_what_was_read() {
    let text = "{version: 3, domain: shop, rules: [{name: all, limits: [100 per 1s]}]}";

    let set = rules::load(text, Format::Yaml).unwrap();

    assert_eq!(set.version(), 3);
    assert_eq!(Ok(set.declaration()), rules::read(text, Format::Yaml).as_ref());
}

#[test]
fn what_is_written_is_what_people_would_write() {
    let declared = rules::read(SHOP, Format::Yaml).unwrap();

    let yaml = rules::write(&declared, Format::Yaml);
    let toml = rules::write(&declared, Format::Toml);
    let json = rules::write(&declared, Format::Json);

    assert_eq!(
        yaml,
        "\
version: 1
domain: shop
partition: [tenant]
rules:
  - name: login-per-ip
    match: { service: auth, path: /login, method: POST }
    by: [ip]
    limits:
      - 5 per 1m
      - { count: 20, per: 1h, algorithm: sliding-log }
    replaces: [default-per-ip]
lists:
  exempt: [10.0.0.0/8]
  block: [203.0.113.7]
"
    );
    assert_eq!(
        toml,
        r#"version = 1
domain = "shop"
partition = ["tenant"]

[[rules]]
name = "login-per-ip"
match = { service = "auth", path = "/login", method = "POST" }
by = ["ip"]
limits = ["5 per 1m", { count = 20, per = "1h", algorithm = "sliding-log" }]
replaces = ["default-per-ip"]

[lists]
exempt = ["10.0.0.0/8"]
block = ["203.0.113.7"]
"#
    );
    assert!(json.starts_with("{\n  \"version\": 1,\n  \"domain\": \"shop\",\n"), "{json}");
    assert!(json.contains("\n      \"match\": { \"service\": \"auth\", "), "{json}");
}

#[test]
fn conditions_have_short_forms_and_long_ones() {
    let read = rule(
        r#"match: {a: x, b: [x, "y*"], c: "*", d: {absent: true}, e: {present: true},
           f: {text: "y*"}, g: {prefix: ""}, ip: [10.0.0.0/8, "::1"], h: "/static/*"}"#,
    );

    let of = |name: &str| {
        read.matches.iter().find(|(other, _)| other == name).map(|(_, pattern)| pattern.clone())
    };
    let any = |values: &[Value]| Some(Pattern::Any(values.to_vec()));
    let (x, y) = (Value::Text("x".to_owned()), Value::Prefix("y".to_owned()));
    assert_eq!(of("a"), any(std::slice::from_ref(&x)));
    assert_eq!(of("b"), any(&[x, y]));
    assert_eq!(of("c"), Some(Pattern::Present));
    assert_eq!(of("d"), Some(Pattern::Absent));
    assert_eq!(of("e"), Some(Pattern::Present));
    assert_eq!(of("f"), any(&[Value::Text("y*".to_owned())]));
    assert_eq!(of("g"), any(&[Value::Prefix(String::new())]));
    let networks = ["10.0.0.0/8", "::1"].map(|text| Value::Network(text.parse().unwrap()));
    assert_eq!(of("ip"), any(&networks));
    assert_eq!(of("h"), any(&[Value::Prefix("/static/".to_owned())]));
}

#[test]
fn limits_carry_the_parameters_of_their_algorithm() {
    assert_eq!(
        algorithm("{count: 5, per: 1m, algorithm: fixed-window, anchor: epoch}"),
        FixedWindow { anchor: Anchor::Epoch }.into()
    );
    assert_eq!(
        algorithm("{count: 5, per: 1m, algorithm: sliding-window, panes: 6}"),
        SlidingWindow { panes: 6, ..SlidingWindow::conservative() }.into()
    );
    assert_eq!(
        algorithm("{count: 5, per: 1m, algorithm: sliding-window, estimate: weighted}"),
        SlidingWindow::weighted().into()
    );
    assert_eq!(
        algorithm(
            "{count: 5, per: 1s, algorithm: smooth, warm-up: 4s, cold-factor: 5, payment: own, \
             max-debt: 9}"
        ),
        Smooth::warming_up(Duration::from_secs(4))
            .with_cold_factor(5)
            .with_payment(Payment::Own)
            .with_max_debt(9)
            .into()
    );
}

#[test]
fn concurrency_has_two_spellings() {
    let one = rule("limits: [{concurrent: 10, lease: 30s, name: calls}]");
    let other = rule("limits: [{count: 10, lease: 30s, algorithm: concurrency, name: calls}]");

    assert_eq!(one, other);
    assert_eq!(one.limits[0].quota, "10 per 30s".parse().unwrap());
    assert_eq!(one.limits[0].name.as_deref(), Some("calls"));
}

#[test]
fn bans_costs_guards_and_policies_are_read() {
    let read = rule(
        "ban: {after: 10, within: 1m, for: 15m}, cost: {from: tokens, default: 2, max: 1000}, \
         local-guard: 1.2, on-outage: refuse, by: user, limits: [5 per 1s burst 9]",
    );

    let minutes = |count: u64| Duration::from_secs(60 * count);
    assert_eq!(read.ban, Some(Ban { after: 10, within: minutes(1), lasts: minutes(15) }));
    let cost = CostFrom { attribute: Some("tokens".to_owned()), default: 2, max: Some(1000) };
    assert_eq!(read.cost, cost);
    assert_eq!(read.local_guard, Some(1_200));
    assert_eq!(read.on_outage, OnOutage::Refuse);
    assert_eq!(read.by, ["user"]);
    assert_eq!(read.limits, [quota("5 per 1s burst 9")]);
    assert_eq!(rule("cost: tokens").cost.attribute.as_deref(), Some("tokens"));
}

#[test]
fn several_domains_stand_in_a_list() {
    let text = "
version = 7
[[domains]]
domain = 'a'
[[domains.rules]]
name = 'r'
limits = ['5 per 1m']
[domains.lists]
block = [{ user = 'mallory' }, '2001:db8::/32']
[[domains]]
domain = 'b'
path-case = 'sensitive'
ipv6-prefix = 56
";

    let declared = rules::read(text, Format::Toml).unwrap();

    assert_eq!(declared.version, 7);
    let [a, b] = declared.domains.as_slice() else { panic!("two domains") };
    assert_eq!((a.rules.len(), a.block.len()), (1, 2));
    assert_eq!((b.name.as_str(), b.ipv6_prefix), ("b", 56));
}

#[test]
fn a_byte_order_mark_and_a_schema_are_no_content() {
    let text = "\u{feff}{\"$schema\": \"rules.schema.json\", \"version\": 1, \"domain\": \"d\"}";

    for format in [Format::Json, Format::Yaml] {
        let read = rules::read(text, format);
        assert_eq!(read, Ok(Declaration { version: 1, domains: vec![Domain::new("d")] }));
    }
}
