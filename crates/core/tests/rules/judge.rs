//! Judgements of asks: lists, replacing, missing attributes, modes, costs, algorithms.

use tollgate_core::algorithm::LeakyMeter;
use tollgate_core::rule::declaration::{CostFrom, Domain, Mode, OnMissing, Rule, Scenario};
use tollgate_core::rule::{Ask, BlockedBy, Judgement, RuleOutcome, RuleSet};
use tollgate_core::{OnChange, OnFull, Request, Revision};

use crate::support::{
    SECRET, With, ask, charged, charges, declare, limitation, rule, set, set_of, shop, subject,
};

#[test]
fn an_unknown_domain_is_said_to_be_unknown() {
    let other = Ask::new("other");

    assert!(matches!(set(vec![]).judge(&other, &SECRET), Judgement::UnknownDomain));
    assert!(matches!(RuleSet::empty().judge(&other, &SECRET), Judgement::UnknownDomain));
    assert_eq!(RuleSet::empty().version(), 0);
    assert!(set(vec![]).explain(&other).is_empty());
}

#[test]
fn nothing_is_charged_where_nothing_matches() {
    let charges_of = |set: &RuleSet| charges(set, &ask(&[])).is_empty();

    assert!(charges_of(&set(vec![])));
    assert!(charges_of(&set(vec![rule("a").on("user", &["x"])])));
}

#[test]
fn a_block_list_is_stronger_than_an_exempt_list_and_both_than_rules() {
    let mut domain = shop(vec![Rule::new("block").with(|rule| rule.block = true)]);
    domain.block = vec![subject("user", "mallory")];
    domain.exempt = vec![subject("ip", "10.0.0.0/8")];
    let set = set_of(domain);
    let judge = |user, ip| set.judge(&ask(&[("user", user), ("ip", ip)]), &SECRET);

    assert!(matches!(
        judge("mallory", "10.1.1.1"),
        Judgement::Blocked(BlockedBy::List(by)) if *by == subject("user", "mallory")
    ));
    assert!(matches!(
        judge("alice", "10.1.1.1"),
        Judgement::Exempt(by) if *by == subject("ip", "10.0.0.0/8")
    ));
    assert!(matches!(
        judge("alice", "11.1.1.1"),
        Judgement::Blocked(BlockedBy::Rule(by)) if by.name() == "block"
    ));
}

#[test]
fn all_rules_that_match_are_charged_the_most_specific_first() {
    let set = set(vec![
        rule("global"),
        rule("user").by(&["user"]),
        rule("login").on("path", &["/login"]).by(&["user", "ip"]),
    ]);
    let asked = ask(&[("user", "u"), ("ip", "192.0.2.1"), ("path", "/login")]);

    assert_eq!(charged(&set, &asked), ["login", "user", "global"]);
}

#[test]
fn a_rule_is_replaced_only_where_the_other_one_matches_and_applies() {
    let set = set(vec![
        rule("default").by(&["ip"]),
        rule("vip").on("plan", &["vip"]).by(&["user"]).replacing(&["default"]),
    ]);
    let ip = ("ip", "192.0.2.1");

    assert_eq!(charged(&set, &ask(&[ip])), ["default"]);
    assert_eq!(charged(&set, &ask(&[ip, ("plan", "vip"), ("user", "u")])), ["vip"]);
    assert_eq!(charged(&set, &ask(&[ip, ("plan", "vip")])), ["default"], "no user, so no vip");
}

#[test]
fn a_rule_that_is_replaced_still_replaces_others() {
    let chain = |middle: Mode| {
        set(vec![
            rule("a").replacing(&["b"]),
            rule("b").replacing(&["c"]).with(|rule| rule.mode = middle),
            rule("c"),
        ])
    };

    assert_eq!(charged(&chain(Mode::Enforce), &ask(&[])), ["a"]);
    assert_eq!(charged(&chain(Mode::Shadow), &ask(&[])), ["a", "c"], "shadows replace nobody");
    assert_eq!(charged(&chain(Mode::Off), &ask(&[])), ["a", "c"]);
}

#[test]
fn an_ask_without_an_attribute_of_by_is_skipped_shared_or_refused() {
    let with = |on_missing| {
        set(vec![rule("r").by(&["ip", "user"]).with(|rule| rule.on_missing = on_missing)])
    };
    let asked = ask(&[("ip", "192.0.2.1")]);

    assert!(charges(&with(OnMissing::Skip), &asked).is_empty());
    let shared = with(OnMissing::Share);
    let charges = charges(&shared, &asked);
    assert!(charges.key(&charges.enforced()[0]).as_bytes().ends_with(b"\x02\x01-"));
    assert!(matches!(
        with(OnMissing::Refuse).judge(&asked, &SECRET),
        Judgement::Blocked(BlockedBy::Missing { rule, attribute: "user" }) if rule.name() == "r"
    ));
}

/// E30: a shadow rule has the keys of an enforced one, and no part in the answer.
#[test]
fn a_shadow_rule_is_told_apart_and_blocks_nobody() {
    let shadow = |rule: Rule| rule.with(|rule| rule.mode = Mode::Shadow);
    let set = set(vec![
        rule("a"),
        shadow(rule("b").by(&["user"])),
        shadow(Rule::new("c").with(|rule| rule.block = true)),
        shadow(rule("d").by(&["tenant"]).with(|rule| rule.on_missing = OnMissing::Refuse)),
    ]);

    let charges = charges(&set, &ask(&[("user", "u")]));

    assert_eq!(charges.enforced().len(), 1);
    let [charge] = charges.shadow() else { panic!() };
    assert_eq!(charges.key(charge).as_bytes(), b"r4:shop1:b2:1mt1:u");
    assert!(charges.shadow_block().is_some());
}

#[test]
fn more_charges_than_a_request_holds_are_never_dropped_silently() {
    let rules = |count: usize, mode| {
        (0..count)
            .map(|i| rule(&format!("{mode:?}{i}")).with(|rule| rule.mode = mode))
            // Only an ask tells whether there is a user; without it the rules would not load.
            .map(|rule| rule.with(|rule| rule.by = vec!["user".to_owned()]))
            .collect::<Vec<_>>()
    };
    let fits = set(rules(Request::MAX_CHARGES, Mode::Enforce));
    let above = set(rules(Request::MAX_CHARGES + 1, Mode::Enforce));
    let mut replacing = rules(Request::MAX_CHARGES + 1, Mode::Enforce);
    replacing[0].replaces.push("Enforce7".to_owned());
    let mut shadows = rules(Request::MAX_CHARGES + 3, Mode::Shadow);
    shadows.push(rule("a"));

    assert_eq!(charges(&fits, &ask(&[("user", "alice")])).enforced().len(), 64);
    assert!(matches!(
        above.judge(&ask(&[("user", "alice")]), &SECRET),
        Judgement::TooMany { charges: 65 }
    ));
    assert_eq!(charges(&set(replacing), &ask(&[("user", "alice")])).enforced().len(), 64);
    let set = set(shadows);
    let charges = charges(&set, &ask(&[("user", "alice")]));
    assert_eq!(
        (charges.enforced().len(), charges.shadow().len()),
        (1, 64),
        "no part in the answer"
    );
    assert_eq!(charges.shadow_left_out(), 3);
}

#[test]
fn what_a_request_costs_comes_from_the_ask_or_from_an_attribute() {
    let cost = |from: CostFrom, ask: Ask<'_>| {
        let set = set(vec![rule("r").with(|rule| rule.cost = from)]);
        charges(&set, &ask).enforced()[0].cost
    };
    let own = |max| CostFrom { attribute: None, default: 1, max };
    let bytes = || CostFrom { attribute: Some("bytes".to_owned()), default: 2, max: Some(100) };
    let said = |value: &'static str| ask(&[("bytes", value)]).cost(7);

    assert_eq!(cost(own(None), ask(&[])), 1);
    assert_eq!(cost(own(None), ask(&[]).cost(0)), 0, "a peek");
    assert_eq!(cost(own(None), ask(&[]).cost(u64::MAX)), u64::MAX);
    assert_eq!(cost(own(Some(5)), ask(&[]).cost(7)), 5);
    assert_eq!(cost(bytes(), said("42")), 42);
    assert_eq!(cost(bytes(), said("101")), 100);
    assert_eq!(cost(bytes(), said("99999999999999999999999")), 100, "above any number");
    for no_number in ["", "0", "00", "-1", "+1", "1.5", "1e3", " 1", "x", "\u{661}"] {
        assert_eq!(cost(bytes(), said(no_number)), 2, "{no_number:?}");
    }
    assert_eq!(cost(bytes(), ask(&[]).cost(7)), 2);
}

#[test]
fn a_limit_without_an_algorithm_has_that_of_its_scenario() {
    let algorithm = |rule: Rule| {
        let set = set(vec![rule]);
        set.rules().next().unwrap().limits()[0].limit().algorithm().name()
    };
    let declared = |scenario| rule("r").with(|rule| rule.scenario = Some(scenario));

    assert_eq!(algorithm(rule("global")), "token-bucket");
    assert_eq!(algorithm(rule("service").on("service", &["auth"])), "token-bucket");
    assert_eq!(algorithm(rule("interface").on("path", &["/x"]).by(&["user"])), "sliding-log");
    assert_eq!(algorithm(rule("ip").by(&["ip"])), "token-bucket");
    assert_eq!(algorithm(rule("user").by(&["user", "ip"])), "token-bucket");
    for scenario in [Scenario::Login, Scenario::Payment, Scenario::Interface] {
        assert_eq!(algorithm(declared(scenario)), "sliding-log");
    }
    for scenario in [Scenario::Global, Scenario::Service, Scenario::Ip, Scenario::User] {
        assert_eq!(algorithm(declared(scenario).on("path", &["/x"])), "token-bucket");
    }
    let named = rule("r").on("path", &["/x"]);
    let named = named.with(|rule| rule.limits[0].algorithm = Some(LeakyMeter.into()));
    assert_eq!(algorithm(named), "leaky-meter");
}

#[test]
fn a_limit_has_the_version_of_its_set_and_the_policies_of_its_rule() {
    let mut edited = rule("r");
    edited.limits.push(limitation("90 per 1h"));
    edited.limits[0].name = Some("short".to_owned());
    edited.on_change = OnChange::Scale;
    edited.on_full = OnFull::Refuse;
    let mut declaration = declare(vec![shop(vec![edited])]);
    declaration.version = 42;
    let set = RuleSet::new(declaration).unwrap();

    let rule = set.rules().next().unwrap();

    let names: Vec<&str> = rule.limits().iter().map(|limit| limit.name()).collect();
    assert_eq!(names, ["short", "1h"]);
    for limit in rule.limits() {
        assert_eq!(limit.limit().revision(), Revision(42));
        assert_eq!(limit.limit().on_change(), OnChange::Scale);
        assert_eq!(limit.limit().on_full(), OnFull::Refuse);
    }
}

#[test]
fn a_prefix_matches_what_begins_with_it() {
    let set = set(vec![rule("r").on("user", &["bot-*", "root"]), rule("h").on("host", &["API.*"])]);

    for user in ["bot-", "bot-7", "root"] {
        assert_eq!(charged(&set, &ask(&[("user", user)])), ["r"], "{user}");
    }
    for user in ["bot", "root-7", "Bot-7", ""] {
        assert!(charged(&set, &ask(&[("user", user)])).is_empty(), "{user}");
    }
    assert_eq!(charged(&set, &ask(&[("host", "api.example.com:80")])), ["h"]);
}

#[test]
fn domains_do_not_see_each_other() {
    let domain = |name: &str| Domain { rules: vec![rule(name)], ..Domain::new(name) };
    let set = RuleSet::new(declare(vec![domain("a"), domain("b")])).unwrap();

    assert_eq!(charged(&set, &Ask::new("a")), ["a"]);
    assert_eq!(charged(&set, &Ask::new("b")), ["b"]);
    assert_eq!(
        set.rules().map(|rule| (rule.index(), rule.domain())).collect::<Vec<_>>(),
        [(0, "a"), (1, "b")]
    );
}

#[test]
fn an_explanation_says_why_each_rule_does_what_it_does() {
    let set = set(vec![
        rule("off").with(|rule| rule.mode = Mode::Off),
        rule("unmatched").on("user", &["u"]).on("plan", &["vip"]),
        rule("skipped").by(&["tenant"]),
        rule("replaced"),
        rule("charged").replacing(&["replaced"]),
        Rule::new("blocks").with(|rule| rule.block = true),
    ]);

    let considered = set.explain(&ask(&[("user", "u")]));

    let [off, unmatched, skipped, replaced, charged, blocks] = considered.as_slice() else {
        panic!("{considered:?}")
    };
    assert!(matches!(off.outcome, RuleOutcome::Off));
    assert!(matches!(unmatched.outcome, RuleOutcome::Unmatched { attribute: "plan" }));
    assert!(matches!(skipped.outcome, RuleOutcome::Skipped { attribute: "tenant" }));
    assert!(matches!(replaced.outcome, RuleOutcome::Replaced { by } if by.name() == "charged"));
    assert!(matches!(charged.outcome, RuleOutcome::Charges));
    assert!(matches!(blocks.outcome, RuleOutcome::Blocks(BlockedBy::Rule(_))));
}
