//! Which rules an ask is charged on: as an oracle says that looks at every rule (E25, E26).

use std::net::IpAddr;

use tollgate_core::rule::declaration::{Domain, Mode, OnMissing, Pattern, Rule, Value};
use tollgate_core::rule::{Ask, BlockedBy, Judgement, RuleOutcome, RuleSet};
use tollgate_core::testing::Rng;

use crate::oracle::{Expected, Facts, judge, spelled};
use crate::support::{SECRET, declare, list, rule, subject};

const SEGMENTS: [&str; 4] = ["a", "api", "login", "7"];
const USERS: [&str; 6] = ["al", "alice", "alan", "bob", "bo", ""];
const NETWORKS: [&str; 8] = [
    "0.0.0.0/0",
    "10.0.0.0/8",
    "10.1.0.0/16",
    "10.1.2.3",
    "::/0",
    "2001:db8::/32",
    "2001:db8:1::/48",
    "192.0.2.0/25",
];
const ADDRESSES: [&str; 6] =
    ["10.1.2.3", "10.1.9.9", "10.9.9.9", "192.0.2.129", "2001:db8:1::1", "2001:db9::1"];

fn template(rng: &mut Rng) -> String {
    let mut text = String::new();
    for i in 0..rng.below(4) {
        let segment = rng.pick(&SEGMENTS);
        match rng.below(4) {
            0 => text.push_str(&format!("/{{x{i}}}")),
            1 => text.push_str(&format!("/{}", segment.to_ascii_uppercase())),
            _ => text.push_str(&format!("/{segment}")),
        }
    }
    match rng.below(4) {
        0 => text.push_str("/{*rest}"),
        1 => text.push('/'),
        _ if text.is_empty() => text.push('/'),
        _ => {}
    }
    text
}

fn value(name: &str, rng: &mut Rng) -> Value {
    match name {
        "path" => Value::Text(template(rng)),
        "ip" => Value::Network(rng.pick(&NETWORKS).parse().unwrap()),
        _ if rng.chance(1, 4) => {
            Value::Prefix(rng.pick(&["a", "al", "ali", "b", "bobby"]).to_owned())
        }
        _ => Value::Text(rng.pick(&USERS).to_owned()),
    }
}

const NAMES: [&str; 5] = ["path", "ip", "user", "service", "header.x"];

fn random_rule(name: &str, rng: &mut Rng) -> Rule {
    let mut rule = rule(name);
    for name in NAMES {
        if rng.chance(1, 3) {
            let pattern = match rng.below(6) {
                0 => Pattern::Present,
                1 => Pattern::Absent,
                _ => Pattern::Any((0..rng.within(1, 3)).map(|_| value(name, rng)).collect()),
            };
            rule.matches.push((name.to_owned(), pattern));
        }
        if rng.chance(1, 5) {
            rule.by.push(name.to_owned());
        }
    }
    rule.on_missing = rng.pick(&[OnMissing::Skip, OnMissing::Share, OnMissing::Share]);
    if rng.chance(1, 20) {
        rule.on_missing = OnMissing::Refuse;
    }
    rule.mode = rng.pick(&[Mode::Enforce, Mode::Enforce, Mode::Enforce, Mode::Shadow, Mode::Off]);
    if rng.chance(1, 20) {
        rule.block = true;
        rule.limits.clear();
        rule.by.clear();
        rule.on_missing = OnMissing::Skip;
    }
    rule
}

fn random_domain(rng: &mut Rng) -> Domain {
    let mut domain = Domain::new("shop");
    for i in 0..rng.within(1, 30) {
        let mut rule = random_rule(&format!("r{i}"), rng);
        for earlier in 0..i {
            if rng.chance(1, 40) {
                rule.replaces.push(format!("r{earlier}"));
            }
        }
        domain.rules.push(rule);
    }
    if rng.chance(1, 4) {
        domain.block.push(subject("ip", rng.pick(&NETWORKS[1..4])));
        domain.block.push(subject("user", rng.pick(&USERS)));
    }
    if rng.chance(1, 4) {
        domain.exempt.push(subject("ip", rng.pick(&NETWORKS[1..4])));
        domain.exempt.push(subject("path", "/login/{*x}"));
        domain.exempt.push(subject("user", "al*"));
    }
    domain
}

fn random_facts(rng: &mut Rng) -> Facts {
    let mut facts = Facts::default();
    if rng.chance(4, 5) {
        facts.path = Some((0..rng.below(4)).map(|_| rng.pick(&SEGMENTS)).collect());
    }
    if rng.chance(4, 5) {
        facts.ip = Some(rng.pick(&ADDRESSES).parse().unwrap());
    }
    for name in ["user", "service", "header.x"] {
        if rng.chance(3, 4) {
            facts.others.push((name, rng.pick(&USERS)));
        }
    }
    facts
}

fn asked<'a>(facts: &Facts, path: Option<&'a str>) -> Ask<'a> {
    let mut ask = Ask::new("shop");
    if let Some(path) = path {
        ask.push("path", path.as_bytes()).unwrap();
    }
    for (name, value) in &facts.others {
        let name = if *name == "header.x" { "header.X" } else { *name };
        ask.push(name, value.as_bytes()).unwrap();
    }
    match facts.ip {
        Some(IpAddr::V4(v4)) => ask.ip(v4.to_ipv6_mapped().into()),
        Some(ip) => ask.ip(ip),
        None => ask,
    }
}

fn actual(set: &RuleSet, ask: &Ask<'_>) -> Expected {
    match set.judge(ask, &SECRET) {
        Judgement::Blocked(BlockedBy::List(_)) => Expected::Blocked("a list".to_owned()),
        Judgement::Blocked(_) => Expected::Blocked("a rule".to_owned()),
        Judgement::Exempt(_) => Expected::Exempt,
        Judgement::Charges(charges) => {
            let names = |list: &[tollgate_core::rule::RuleCharge<'_>]| {
                let mut names: Vec<String> =
                    list.iter().map(|charge| charge.rule.name().to_owned()).collect();
                names.sort();
                names
            };
            Expected::Charges {
                enforced: names(charges.enforced()),
                shadow: names(charges.shadow()),
            }
        }
        other => panic!("{other:?}"),
    }
}

fn compile(domain: &Domain) -> RuleSet {
    RuleSet::new(declare(vec![domain.clone()])).unwrap_or_else(|errors| panic!("{}", list(&errors)))
}

#[test]
fn the_index_finds_what_looking_at_every_rule_finds() {
    let mut rng = Rng::new(4);
    let (mut blocked, mut exempt, mut charged) = (0, 0, 0);
    for _ in 0..2_000 {
        let domain = random_domain(&mut rng);
        let set = compile(&domain);
        for _ in 0..30 {
            let facts = random_facts(&mut rng);
            let path = facts.path.as_ref().map(|segments| spelled(segments, &mut rng));
            let expected = judge(&domain, &facts);

            let found = actual(&set, &asked(&facts, path.as_deref()));

            assert_eq!(found, expected, "{facts:?} as {path:?} by {domain:#?}");
            match expected {
                Expected::Blocked(_) => blocked += 1,
                Expected::Exempt => exempt += 1,
                Expected::Charges { enforced, .. } => charged += enforced.len(),
            }
        }
    }
    assert!(blocked > 5_000 && exempt > 500 && charged > 50_000, "{blocked} {exempt} {charged}");
}

/// The keys that an ask is charged on, in order; or what else becomes of it.
fn keys(set: &RuleSet, ask: &Ask<'_>) -> Result<Vec<Vec<u8>>, String> {
    match set.judge(ask, &SECRET) {
        Judgement::Charges(charges) => {
            let list = charges.enforced().iter().chain(charges.shadow());
            Ok(list.map(|charge| charges.key(charge).as_bytes().to_vec()).collect())
        }
        other => Err(format!("{:?}", std::mem::discriminant(&other))),
    }
}

/// Rules that do nothing but charge, as many as are judged without the index and one more.
#[test]
fn few_rules_that_only_charge_are_those_that_every_rule_tells() {
    let (mut rng, mut charged) = (Rng::new(8), [0; 10]);
    for _ in 0..1_000 {
        let mut domain = Domain::new("shop");
        for i in 0..rng.within(1, 9) {
            let mut rule = random_rule(&format!("r{i}"), &mut rng);
            if rule.block || rule.on_missing == OnMissing::Refuse {
                continue;
            }
            rule.mode = rng.pick(&[Mode::Enforce, Mode::Enforce, Mode::Off]);
            domain.rules.push(rule);
        }
        let set = compile(&domain);
        // A rule that replaces nobody who is there takes the other way.
        let mut other = domain.clone();
        let mut replaces = rule("replaces");
        replaces.matches.push(("user".to_owned(), Pattern::Any(vec![Value::Text("?".to_owned())])));
        replaces.replaces = domain.rules.iter().map(|rule| rule.name.clone()).collect();
        other.rules.push(replaces);
        let other = compile(&other);
        for _ in 0..20 {
            let facts = random_facts(&mut rng);
            let path = facts.path.as_ref().map(|segments| spelled(segments, &mut rng));
            let ask = asked(&facts, path.as_deref());

            let (found, keys) = (actual(&set, &ask), keys(&set, &ask).unwrap());

            assert_eq!(found, judge(&domain, &facts), "{facts:?} as {path:?} by {domain:#?}");
            assert_eq!(Ok(&keys), self::keys(&other, &ask).as_ref(), "in order, under these keys");
            charged[domain.rules.len()] += keys.len();
        }
    }
    assert!(charged.iter().skip(1).all(|charges| *charges > 100), "{charged:?}");
}

/// E25: neither the answer nor the order of the charges depends on the order of declaration.
#[test]
fn the_order_of_rules_does_not_matter() {
    let mut rng = Rng::new(25);
    for _ in 0..500 {
        let domain = random_domain(&mut rng);
        let mut shuffled = domain.clone();
        for i in (1..shuffled.rules.len()).rev() {
            shuffled.rules.swap(i, rng.below(i as u64 + 1) as usize);
        }
        let (set, other) = (compile(&domain), compile(&shuffled));
        for _ in 0..20 {
            let facts = random_facts(&mut rng);
            let path = facts.path.as_ref().map(|segments| spelled(segments, &mut rng));
            let ask = asked(&facts, path.as_deref());

            assert_eq!(keys(&set, &ask), keys(&other, &ask));
        }
    }
}

/// E26: with one more rule, everything is charged or blocked that was before, unless the new
/// rule says that it replaces some.
#[test]
fn one_more_rule_lets_nothing_more_through() {
    let mut rng = Rng::new(26);
    for _ in 0..1_000 {
        let domain = random_domain(&mut rng);
        let mut more = domain.clone();
        more.rules.push(random_rule("more", &mut rng));
        let (before, after) = (compile(&domain), compile(&more));
        for _ in 0..10 {
            let facts = random_facts(&mut rng);
            let path = facts.path.as_ref().map(|segments| spelled(segments, &mut rng));
            let ask = asked(&facts, path.as_deref());
            match (actual(&before, &ask), actual(&after, &ask)) {
                (
                    Expected::Charges { enforced: before, .. },
                    Expected::Charges { enforced: after, .. },
                ) => assert!(before.iter().all(|name| after.contains(name))),
                (Expected::Charges { .. }, Expected::Blocked(_)) => {}
                (before, after) => assert_eq!(before, after),
            }
        }
    }
}

/// The explanation looks at every rule; the judgement does not. They must agree.
#[test]
fn an_explanation_says_what_the_judgement_does() {
    let mut rng = Rng::new(12);
    for _ in 0..1_000 {
        let domain = random_domain(&mut rng);
        let set = compile(&domain);
        for _ in 0..10 {
            let facts = random_facts(&mut rng);
            let path = facts.path.as_ref().map(|segments| spelled(segments, &mut rng));
            let ask = asked(&facts, path.as_deref());
            let considered = set.explain(&ask);
            assert_eq!(considered.len(), domain.rules.len());
            let names = |mode: Mode| {
                let charged = considered.iter().filter(|one| {
                    matches!(one.outcome, RuleOutcome::Charges) && one.rule.mode() == mode
                });
                let mut names: Vec<String> =
                    charged.map(|one| one.rule.name().to_owned()).collect();
                names.sort();
                names
            };
            let refuses = considered.iter().any(|one| {
                matches!(one.outcome, RuleOutcome::Blocks(_)) && one.rule.mode() == Mode::Enforce
            });
            match actual(&set, &ask) {
                Expected::Charges { enforced, shadow } => {
                    assert!(!refuses);
                    assert_eq!((enforced, shadow), (names(Mode::Enforce), names(Mode::Shadow)));
                }
                Expected::Blocked(by) if by == "a rule" => assert!(refuses),
                _ => {}
            }
        }
    }
}
