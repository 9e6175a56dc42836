//! Rules by name, and rules in the code.

use tollgate_core::rule::declaration::{Mode, OnMissing};
use tollgate_core::rule::{Ask, BlockedBy, Charges, Judgement, NamedRuleError, RuleSet};

use crate::support::{SECRET, With, ask, key, rule, set, set_of, shop, subject};

fn named<'s>(set: &'s RuleSet, ask: &Ask<'_>, values: Option<&[&[u8]]>) -> Charges<'s> {
    match set.judge_named(ask, "r", values, &SECRET).unwrap() {
        Judgement::Charges(charges) => charges,
        other => panic!("{other:?}"),
    }
}

fn keys_of(charges: &Charges<'_>) -> Vec<Vec<u8>> {
    charges.enforced().iter().map(|charge| charges.key(charge).as_bytes().to_vec()).collect()
}

#[test]
fn a_named_rule_is_charged_on_the_counter_that_it_has_when_it_matches() {
    let set = set(vec![rule("r").on("service", &["auth"]).by(&["user", "ip"]), rule("other")]);
    let matching = ask(&[("service", "auth"), ("user", "alice"), ("ip", "10.0.0.1")]);
    let Judgement::Charges(matched) = set.judge(&matching, &SECRET) else { panic!() };
    let charge = matched.enforced().iter().find(|charge| charge.rule.name() == "r").unwrap();
    let expected = vec![matched.key(charge).as_bytes().to_vec()];

    let unmatched = ask(&[("user", "alice"), ("ip", "10.0.0.1")]);
    assert_eq!(keys_of(&named(&set, &unmatched, None)), expected, "what it matches is not asked");
    let given: &[&[u8]] = &[b"alice", b"::ffff:10.0.0.1"];
    assert_eq!(keys_of(&named(&set, &Ask::new("shop"), Some(given))), expected);
    let bob = ask(&[("user", "bob"), ("ip", "10.0.0.2")]);
    assert_eq!(keys_of(&named(&set, &bob, Some(given))), expected, "values go before the ask");
}

#[test]
fn captures_can_be_given_and_are_missing_otherwise() {
    let set = set(vec![rule("r").on("path", &["/orders/{id}"]).by(&["path.id"])]);
    let matching = ask(&[("path", "/orders/7")]);
    let expected = vec![key(&set, &matching)];

    assert_eq!(keys_of(&named(&set, &matching, None)), expected);
    assert_eq!(keys_of(&named(&set, &Ask::new("shop"), Some(&[b"7"]))), expected);
    assert!(named(&set, &Ask::new("shop"), None).is_empty(), "on-missing is `skip`");
}

#[test]
fn mode_missing_values_and_lists_are_as_the_rules_say() {
    let nobody = Ask::new("shop");
    let of = |mode| set(vec![rule("r").with(|rule| rule.mode = mode)]);
    let (off, shadow) = (of(Mode::Off), of(Mode::Shadow));
    assert!(named(&off, &nobody, None).is_empty());
    let charges = named(&shadow, &nobody, None);
    assert_eq!((charges.enforced().len(), charges.shadow().len()), (0, 1));

    let refuses = |rule: &mut tollgate_core::rule::declaration::Rule| {
        rule.on_missing = OnMissing::Refuse;
    };
    let strict = set(vec![rule("r").by(&["user"]).with(refuses)]);
    let judged = strict.judge_named(&nobody, "r", None, &SECRET);
    assert!(matches!(judged, Ok(Judgement::Blocked(BlockedBy::Missing { attribute: "user", .. }))));

    let mut domain = shop(vec![rule("r").by(&["user"])]);
    domain.block.push(subject("user", "mallory"));
    domain.exempt.push(subject("user", "root"));
    let listed = set_of(domain);
    let judge = |user: &'static [u8]| listed.judge_named(&nobody, "r", Some(&[user]), &SECRET);
    assert!(matches!(judge(b"mallory"), Ok(Judgement::Blocked(BlockedBy::List(_)))));
    assert!(matches!(judge(b"root"), Ok(Judgement::Exempt(_))));
}

#[test]
fn what_is_not_there_or_does_not_fit_is_an_error() {
    let set = set(vec![rule("r").by(&["ip"])]);
    let judge = |domain, rule, values| {
        set.judge_named(&Ask::new(domain), rule, values, &SECRET).map(drop).unwrap_err()
    };

    assert_eq!(judge("bank", "r", None), NamedRuleError::Domain);
    assert_eq!(judge("shop", "x", None), NamedRuleError::Rule);
    assert_eq!(judge("shop", "r", Some(&[])), NamedRuleError::Values { expected: 1, given: 0 });
    assert_eq!(judge("shop", "r", Some(&[b"10.0.0"])), NamedRuleError::Address);
}

#[test]
fn rules_in_the_code_never_meet_those_of_a_set() {
    let path = "shop::cart";
    let mut domain = shop(vec![rule("r")]);
    domain.name = path.to_owned();
    let declared = set_of(domain);
    let in_code = RuleSet::in_code(path, vec![rule("r")]).unwrap();

    assert_eq!(key(&declared, &Ask::new(path)), b"r10:shop::cart1:r2:1m");
    assert_eq!(key(&in_code, &Ask::new(path)), b"f10:shop::cart1:r2:1m");
    assert_eq!(in_code.version(), 0);
}

#[test]
fn long_paths_are_told_apart_by_a_hash() {
    let long = |last: char| format!("{}::{last}", "m".repeat(200));
    let key_of = |path: &str| {
        let set = RuleSet::in_code(path, vec![rule("r")]).unwrap();
        let name = set.declaration().domains[0].name.clone();
        key(&set, &Ask::new(&name))
    };

    assert_eq!(key_of(&"m".repeat(64)).len(), 1 + 3 + 64 + 3 + 4, "as it is");
    let hashed = key_of(&"m".repeat(65));
    assert_eq!(hashed.len(), 1 + 3 + 33 + 3 + 4);
    assert!(hashed.starts_with(b"f33:#"));
    assert_ne!(key_of(&long('a')), key_of(&long('b')));
}
