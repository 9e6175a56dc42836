//! Limiters with rules on the embedded store, and what they are asked.

use std::net::{IpAddr, Ipv4Addr};

use tollgate::TokenBucket;
use tollgate::rules::declaration::{Declaration, Domain, Limitation, Rule};
use tollgate::{Ask, RuleSet};
use tollgate::{EmbeddedStore, Limiter};

use crate::clock::Quanta;

/// A quota that no bench spends.
pub const AMPLE: &str = "1 per 1s burst 100000000";

/// A quota that the first request spends.
pub const SPENT: &str = "1 per 1h";

/// A rule that every request matches, with one token bucket.
pub fn rule(name: &str, by: &[&str], quota: &str) -> Rule {
    let mut rule = Rule::new(name);
    rule.by = by.iter().map(|by| (*by).to_owned()).collect();
    let quota = quota.parse().expect("valid");
    rule.limits = vec![Limitation { name: None, quota, algorithm: Some(TokenBucket.into()) }];
    rule
}

/// One rule for everything, with this quota, one per address and one per user.
pub fn three_rules(quota: &str) -> [Rule; 3] {
    [rule("global", &[], quota), rule("per-ip", &["ip"], AMPLE), rule("per-user", &["user"], AMPLE)]
}

/// A limiter with these rules for the domain `shop`.
pub fn limiter(rules: &[Rule], max_keys: usize) -> Limiter<EmbeddedStore<Quanta>> {
    let mut domain = Domain::new("shop");
    domain.rules = rules.to_vec();
    let set = RuleSet::new(Declaration { version: 1, domains: vec![domain] }).expect("valid");
    let store = EmbeddedStore::builder().max_keys(max_keys).with_clock(Quanta::new());
    Limiter::builder(store).rules(set).build()
}

/// Lets `act` have the ask of a user at an address.
pub fn with_ask<R>(user: &str, ip: u64, act: impl FnOnce(&Ask<'_>) -> R) -> R {
    let address = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | ip as u32));
    let mut ask = Ask::new("shop").ip(address);
    for (attribute, value) in
        [("service", "orders"), ("path", "/orders/17"), ("method", "GET"), ("user", user)]
    {
        ask.push(attribute, value.as_bytes()).expect("valid");
    }
    act(&ask)
}
