//! Keys: no two subjects share a counter, none is too long, none can be imitated (E38, C11, C12).

use std::collections::BTreeMap;
use std::time::Duration;

use tollgate_core::Key;
use tollgate_core::rule::declaration::{Ban, Domain, OnMissing, Rule};
use tollgate_core::rule::{Ask, Judgement, KeySecret, LimitKind, RuleSet};
use tollgate_core::testing::Rng;

use crate::support::{
    SECRET, With, ask, charges, declare, key, keys, limitation, rule, set, set_of, shop,
};

fn by(count: usize) -> RuleSet {
    let names: Vec<String> = (0..count).map(|i| format!("a{i}")).collect();
    set(vec![rule("r").with(|rule| {
        rule.by = names;
        rule.on_missing = OnMissing::Share;
    })])
}

const NAMES: [&str; 8] = ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7"];

fn tuple<'a>(values: &'a [Option<Vec<u8>>]) -> Ask<'a> {
    let mut ask = Ask::new("shop");
    for (name, value) in NAMES.iter().zip(values) {
        if let Some(value) = value {
            ask.push(name, value).unwrap();
        }
    }
    ask
}

/// The values of a key, read back token by token; a hash stays a hash.
fn decode(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut tokens = Vec::new();
    let sized = |bytes: &mut &[u8]| {
        let colon = bytes.iter().position(|byte| *byte == b':').unwrap();
        let len: usize = std::str::from_utf8(&bytes[..colon]).unwrap().parse().unwrap();
        let value = bytes[colon + 1..colon + 1 + len].to_vec();
        *bytes = &bytes[colon + 1 + len..];
        value
    };
    let letter = bytes[0];
    bytes = &bytes[1..];
    for _ in 0..3 {
        tokens.push((letter, sized(&mut bytes)));
    }
    while let Some((letter, rest)) = bytes.split_first() {
        bytes = rest;
        let value = match letter {
            b't' | b'p' => sized(&mut bytes),
            b'T' | b'P' | b'6' => bytes.split_off(..16).unwrap().to_vec(),
            b'4' => bytes.split_off(..4).unwrap().to_vec(),
            b'-' => vec![],
            other => panic!("{other}"),
        };
        tokens.push((*letter, value));
    }
    tokens
}

/// C12 and E38: over tuples made of everything that could be taken for something else.
#[test]
fn different_values_make_different_keys_and_can_be_read_back() {
    let long = vec![b'x'; 300];
    let longer = vec![b'x'; 301];
    let parts: [Option<&[u8]>; 16] = [
        None,
        Some(b""),
        Some(b"a"),
        Some(b"ab"),
        Some(b"b"),
        Some(b"bc"),
        Some(b"c"),
        Some(b":"),
        Some(b"t1:a"),
        Some(b"-"),
        Some(b"1:a"),
        Some(b"\0"),
        Some(b"\xff{}|\n"),
        Some(b"T"),
        Some(&long),
        Some(&longer),
    ];
    let mut rng = Rng::new(38);
    for count in [1, 2, 3, 8] {
        let set = by(count);
        let mut seen: BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>> = BTreeMap::new();
        for _ in 0..20_000 {
            let values: Vec<Option<Vec<u8>>> =
                (0..count).map(|_| rng.pick(&parts).map(<[u8]>::to_vec)).collect();
            let key = key(&set, &tuple(&values));

            assert!(key.len() <= Key::MAX_LEN);
            let tokens = decode(&key);
            assert_eq!(tokens.len(), 3 + count);
            for ((letter, token), value) in tokens[3..].iter().zip(&values) {
                match (letter, value) {
                    (b't', Some(value)) => assert_eq!(token, value),
                    (b'T', Some(value)) => assert!(value.len() > 100),
                    (b'-', None) => {}
                    other => panic!("{other:?}"),
                }
            }
            let earlier = seen.entry(key).or_insert_with(|| values.clone());
            assert_eq!(earlier, &values, "two tuples, one key");
        }
    }
}

#[test]
fn names_and_values_do_not_run_into_each_other() {
    let domain = |name: &str, rule_name: &str| Domain {
        rules: vec![rule(rule_name).by(&["user"])],
        ..Domain::new(name)
    };
    let set = RuleSet::new(declare(vec![domain("a", "bc"), domain("ab", "c")])).unwrap();
    let key = |domain: &'static str| key(&set, &Ask::new(domain).with("user", "u").unwrap());

    assert_eq!(key("a"), b"r1:a2:bc2:1mt1:u");
    assert_eq!(key("ab"), b"r2:ab1:c2:1mt1:u");
}

/// C11: a user id may be anything.
#[test]
fn any_user_id_has_a_key_of_its_own() {
    let set = set(vec![rule("r").by(&["user"])]);
    let mebibyte = vec![b'u'; 1 << 20];
    let ids: [&[u8]; 10] =
        [b":", b"|", b"{", b"}", b"{x}", b"\0", b"\n", b"\xff\xfe", &mebibyte, &mebibyte[1..]];

    let mut keys: Vec<Vec<u8>> =
        ids.iter().map(|id| key(&set, &Ask::new("shop").with("user", *id).unwrap())).collect();

    assert!(keys.iter().all(|key| key.len() < 64));
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), ids.len());
}

#[test]
fn values_enter_a_key_as_they_are_up_to_256_bytes_and_then_as_a_keyed_hash() {
    let set = set(vec![rule("r").by(&["user"])]);
    let value = "v".repeat(257);
    let key = |secret: &KeySecret, value: &str| {
        let ask = Ask::new("shop").with("user", value).unwrap();
        let Judgement::Charges(charges) = set.judge(&ask, secret) else { panic!() };
        charges.key(&charges.enforced()[0]).as_bytes().to_vec()
    };
    let other = KeySecret::new([1; 16]);

    assert!(key(&SECRET, &value[1..]).ends_with(&value.as_bytes()[1..]));
    assert_eq!(key(&SECRET, &value).len(), b"r4:shop1:r2:1mT".len() + 16);
    assert_eq!(key(&SECRET, &value[1..]), key(&other, &value[1..]));
    assert_ne!(key(&SECRET, &value), key(&other, &value));
    assert_eq!(format!("{SECRET:?}"), "KeySecret(..)");
}

#[test]
fn the_longest_key_fits() {
    let name = "n".repeat(64);
    for count in 1..=8 {
        let names: Vec<&str> = NAMES[..count].to_vec();
        let mut longest = rule(&name).by(&names);
        longest.limits[0].name = Some("l".repeat(32));
        longest.ban =
            Some(Ban { after: 3, within: Duration::from_secs(1), lasts: Duration::from_secs(1) });
        let set =
            RuleSet::new(declare(vec![Domain { rules: vec![longest], ..Domain::new(&*name) }]));
        let set = set.unwrap();
        let mut worst = 0;
        for len in 0..=300 {
            let values = vec![Some(vec![b'v'; len]); count];
            let mut ask = Ask::new(&name);
            for (name, value) in NAMES.iter().zip(&values) {
                ask.push(name, value.as_ref().unwrap()).unwrap();
            }
            let charges = charges(&set, &ask);
            for charge in charges.enforced() {
                worst = worst.max(charges.key(charge).as_bytes().len());
            }
        }
        assert!((400..=Key::MAX_LEN).contains(&worst), "{worst} bytes by {count}");
    }
}

#[test]
fn an_ipv4_address_counts_alone_and_an_ipv6_address_with_its_network() {
    let set = set_of(Domain { ipv6_prefix: 56, ..shop(vec![rule("r").by(&["ip"])]) });
    let key = |ip| key(&set, &ask(&[("ip", ip)]));

    assert_eq!(key("192.0.2.1"), b"r4:shop1:r2:1m4\xc0\x00\x02\x01");
    assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"));
    assert_ne!(key("192.0.2.2"), key("192.0.2.1"));
    assert_eq!(key("2001:db8::1"), key("2001:db8:0:ff::2"));
    assert_ne!(key("2001:db8::1"), key("2001:db8:0:100::1"));
}

#[test]
fn what_is_absent_cannot_be_imitated() {
    let set = by(1);

    assert_eq!(key(&set, &ask(&[])), b"r4:shop1:r2:1m-");
    assert_eq!(key(&set, &ask(&[("a0", "-")])), b"r4:shop1:r2:1mt1:-");
}

#[test]
fn a_ban_has_counters_that_no_limit_can_have() {
    let mut banning = rule("r").by(&["user"]);
    banning.limits = vec![limitation("5 per 1m"), limitation("9 per 1h")];
    banning.limits[1].name = Some("ban".to_owned());
    banning.ban =
        Some(Ban { after: 3, within: Duration::from_secs(60), lasts: Duration::from_secs(600) });
    let set = set(vec![banning]);
    let ask = ask(&[("user", "u")]).cost(7);

    let charges = charges(&set, &ask);

    let [first, second, ban] = charges.enforced() else { panic!() };
    assert_eq!(charges.key(first).as_bytes(), b"r4:shop1:r2:1mt1:u");
    assert_eq!(charges.key(second).as_bytes(), b"r4:shop1:r3:bant1:u");
    assert_eq!(charges.key(ban).as_bytes(), b"b4:shop1:r3:bant1:u");
    assert_eq!(charges.refusals_key(ban).unwrap().as_bytes(), b"c4:shop1:r3:bant1:u");
    assert!(charges.refusals_key(first).is_none());
    assert_eq!((first.cost, ban.cost), (7, 1));
    assert_eq!((first.limit.kind(), ban.limit.kind()), (LimitKind::Limit, LimitKind::Ban));
    assert_eq!(ban.limit.limit().to_string(), "1 per 10m (fixed-window)");
    let refusals = ban.rule.ban().unwrap().refusals();
    assert_eq!(refusals.limit().to_string(), "3 per 1m (sliding-log)");
}

#[test]
fn refusals_beyond_what_a_log_holds_are_counted_in_a_window() {
    let ban = |after| {
        let ban = Ban { after, within: Duration::from_secs(60), lasts: Duration::from_secs(60) };
        let set = set(vec![rule("r").with(|rule: &mut Rule| rule.ban = Some(ban))]);
        let rule = set.rules().next().unwrap();
        rule.ban().unwrap().refusals().limit().algorithm().name()
    };

    assert_eq!(ban(100_000), "sliding-log");
    assert_eq!(ban(100_001), "fixed-window");
}

#[test]
fn all_keys_of_an_ask_share_its_partition() {
    let rules = vec![rule("a").by(&["tenant"]), rule("b").by(&["ip", "tenant"])];
    let partitioned =
        set_of(Domain { partition: vec!["tenant".to_owned()], ..shop(rules.clone()) });
    let whole = set(rules);
    let asked = ask(&[("tenant", "acme"), ("ip", "192.0.2.1")]);

    assert_eq!(charges(&partitioned, &asked).partition(), Some(&b"t4:acme"[..]));
    assert_eq!(charges(&partitioned, &ask(&[])).partition(), Some(&b"-"[..]));
    assert_eq!(charges(&whole, &asked).partition(), None);
    assert_eq!(keys(&partitioned, &asked), keys(&whole, &asked));
}

#[test]
fn in_a_partitioned_domain_every_counter_is_told_apart_by_the_partition() {
    let rules = vec![rule("a").by(&["ip"]), rule("b")];
    let set = set_of(Domain { partition: vec!["tenant".to_owned()], ..shop(rules) });
    let of = |tenant: &'static str| ask(&[("tenant", tenant), ("ip", "192.0.2.1")]);

    let (acme, umbrella) = (keys(&set, &of("acme")), keys(&set, &of("umbrella")));

    assert_eq!(acme.len(), 2);
    assert!(acme.iter().all(|key| !umbrella.contains(key)), "{acme:?} {umbrella:?}");
    let without = keys(&set, &ask(&[("ip", "192.0.2.1")]));
    assert!(without.len() == 2 && without.iter().all(|key| key.ends_with(b"-")), "{without:?}");
}

#[test]
fn the_threshold_is_not_part_of_the_key() {
    let set_with = |quota: &str| {
        set(vec![rule("r").by(&["user"]).with(|rule| rule.limits = vec![limitation(quota)])])
    };
    let asked = ask(&[("user", "u")]);

    assert_eq!(key(&set_with("5 per 1m"), &asked), key(&set_with("500 per 1m"), &asked));
}
