//! Random declarations, the same for the same seed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use tollgate_core::algorithm::{
    Anchor, Concurrency, Estimate, FixedWindow, LeakyMeter, LeakyQueue, Payment, SlidingLog,
    SlidingWindow, Smooth, TokenBucket,
};
use tollgate_core::rule::declaration::{
    Ban, CostFrom, Declaration, Domain, Limitation, Mode, Network, OnMissing, OnOutage, PathCase,
    Pattern, Rule, Scenario, Subject, Value,
};
use tollgate_core::testing::Rng;
use tollgate_core::{Algorithm, Limit, OnChange, OnFull, Quota};

/// The kind of texts in a declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Texts {
    /// Names as people give them, in declarations that make rule sets.
    Realistic,
    /// Anything that is UTF-8, and what formats take for something else.
    Arbitrary,
}

/// A declaration that reads back equal from every format.
pub(crate) fn declaration(rng: &mut Rng, texts: Texts) -> Declaration {
    let count = if rng.chance(3, 4) { 1 } else { rng.below(4) };
    let mut domains: Vec<Domain> = Vec::new();
    for index in 0..count {
        domains.push(domain(rng, texts, index));
    }
    Declaration { version: 1 + rng.magnitude((1 << 53) - 2), domains }
}

fn domain(rng: &mut Rng, texts: Texts, index: u64) -> Domain {
    let mut domain = Domain::new(format!("{}{index}", text(rng, texts)));
    if texts == Texts::Arbitrary {
        domain.partition = some(rng, 2, |rng| attribute(rng, texts));
    } else if rng.chance(1, 4) {
        domain.partition.push("tenant".to_owned());
    }
    if rng.chance(1, 4) {
        domain.ipv6_prefix = u8::try_from(rng.within(32, 128)).unwrap();
    }
    domain.path_case = rng.pick(&[PathCase::Insensitive, PathCase::Sensitive]);
    let rules = rng.below(5);
    domain.rules = (0..rules).map(|index| rule(rng, texts, index)).collect();
    domain.exempt = some(rng, 3, |rng| subject(rng, texts));
    domain.block = some(rng, 3, |rng| subject(rng, texts));
    if texts == Texts::Realistic {
        tame(rng, &mut domain);
    }
    domain
}

/// Mends what chance puts together and no set may have.
fn tame(rng: &mut Rng, domain: &mut Domain) {
    let has_grammar = |name: &str| matches!(name, "path" | "host" | "method");
    for list in [&mut domain.exempt, &mut domain.block] {
        list.retain(|subject| match subject {
            Subject::Attribute { name, .. } => !has_grammar(name),
            Subject::Network(_) => true,
        });
    }
    let mut before: Vec<String> = Vec::new();
    for rule in &mut domain.rules {
        rule.replaces = rule.replaces.first().and(before.last().cloned()).into_iter().collect();
        before.push(rule.name.clone());
        rule.matches.retain(|(_, pattern)| *pattern != Pattern::Any(Vec::new()));
        if rng.chance(1, 3) {
            let paths = ["/login", "/orders/{id}", "/static/{*rest}", "/a/{b}/c"];
            rule.matches.push((
                "path".to_owned(),
                Pattern::Any(vec![Value::Text(rng.pick(&paths).to_owned())]),
            ));
        }
        if rule.block {
            *rule = Rule {
                matches: rule.matches.clone(),
                block: true,
                mode: rule.mode,
                ..Rule::new(&*rule.name)
            };
            continue;
        }
        rule.by.extend(domain.partition.iter().cloned());
        rule.by.sort();
        rule.by.dedup();
        if rule.cost.attribute.as_deref() == Some("path") {
            rule.cost.attribute = None;
            rule.cost.default = 1;
        }
        rule.cost.max = rule.cost.max.map(|max| max.max(rule.cost.default));
        rule.limits.retain(|limit| {
            Limit::new(limit.algorithm.unwrap_or(SlidingLog.into()), limit.quota).is_ok()
        });
        rule.limits.sort_by_key(|limit| limit.quota.period());
        rule.limits.dedup_by(|a, b| a.quota.period() == b.quota.period());
        for (index, limit) in rule.limits.iter_mut().enumerate() {
            limit.name = limit.name.take().map(|name| format!("{name}-{index}"));
        }
        if rule.limits.is_empty() {
            let quota = "5 per 1m".parse().unwrap();
            rule.limits.push(Limitation { name: None, quota, algorithm: None });
        }
        rule.ban = rule.ban.filter(|ban| Quota::new(ban.after, ban.within).is_ok());
        rule.local_guard = rule.local_guard.filter(|guard| can_be_guarded(&rule.limits, *guard));
    }
}

fn can_be_guarded(limits: &[Limitation], thousandths: u32) -> bool {
    let counts_holders =
        |limit: &Limitation| matches!(limit.algorithm, Some(Algorithm::Concurrency(_)));
    let scales = |limit: &Limitation, algorithm: Algorithm| {
        let guard = |limit: Limit| limit.scaled(u64::from(thousandths), 1_000).ok();
        Limit::new(limit.algorithm.unwrap_or(algorithm), limit.quota).ok().and_then(guard).is_some()
    };
    let mut guarded = limits.iter().filter(|limit| !counts_holders(limit)).peekable();
    guarded.peek().is_some()
        && guarded
            .all(|limit| scales(limit, SlidingLog.into()) && scales(limit, TokenBucket.into()))
}

fn rule(rng: &mut Rng, texts: Texts, index: u64) -> Rule {
    let mut rule = Rule::new(format!("{}{index}", text(rng, texts)));
    for number in 0..rng.below(4) {
        let attribute = format!("{}{number}", attribute(rng, texts));
        rule.matches.push((attribute, pattern(rng, texts)));
    }
    if rng.chance(1, 4) {
        let networks = some(rng, 3, |rng| Value::Network(network(rng)));
        rule.matches.push(("ip".to_owned(), Pattern::Any(networks)));
    }
    rule.by = some(rng, 3, |rng| attribute(rng, texts));
    rule.block = rng.chance(1, 8);
    if !rule.block {
        rule.limits = some(rng, 3, |rng| limit(rng, texts));
    }
    rule.scenario = rng.chance(1, 3).then(|| {
        rng.pick(&[
            Scenario::Global,
            Scenario::Service,
            Scenario::Interface,
            Scenario::Ip,
            Scenario::User,
            Scenario::Login,
            Scenario::Payment,
        ])
    });
    rule.mode = rng.pick(&[Mode::Enforce, Mode::Shadow, Mode::Off]);
    rule.on_outage = rng.pick(&[OnOutage::Local, OnOutage::Admit, OnOutage::Refuse]);
    rule.on_change = rng.pick(&[OnChange::Keep, OnChange::Scale, OnChange::Reset]);
    rule.on_full = rng.pick(&[OnFull::Share, OnFull::Admit, OnFull::Refuse]);
    rule.on_missing = rng.pick(&[OnMissing::Skip, OnMissing::Share, OnMissing::Refuse]);
    rule.replaces = some(rng, 2, |rng| text(rng, texts));
    rule.ban = rng.chance(1, 5).then(|| Ban {
        after: number(rng),
        within: period(rng),
        lasts: period(rng),
    });
    rule.cost = cost(rng, texts);
    rule.local_guard =
        rng.chance(1, 4).then(|| u32::try_from(rng.within(1_000, 1_000_000)).unwrap());
    rule
}

fn cost(rng: &mut Rng, texts: Texts) -> CostFrom {
    let mut cost = CostFrom::default();
    if rng.chance(1, 3) {
        cost.attribute = Some(attribute(rng, texts));
        cost.default = if rng.chance(1, 2) { 1 } else { number(rng) };
    }
    cost.max = rng.chance(1, 4).then(|| number(rng));
    cost
}

fn limit(rng: &mut Rng, texts: Texts) -> Limitation {
    let algorithm = rng.chance(2, 3).then(|| algorithm(rng));
    let mut quota = quota(rng);
    if rng.chance(1, 4)
        && let Ok(burst) = quota.with_burst(number(rng).min(Quota::MAX_COUNT))
    {
        quota = burst;
    }
    let name = rng.chance(1, 4).then(|| text(rng, texts));
    Limitation { name, quota, algorithm }
}

fn algorithm(rng: &mut Rng) -> Algorithm {
    match rng.below(8) {
        0 => FixedWindow { anchor: rng.pick(&[Anchor::FirstHit, Anchor::Epoch]) }.into(),
        1 => SlidingLog.into(),
        2 => SlidingWindow {
            panes: u8::try_from(rng.within(1, 64)).unwrap(),
            estimate: rng.pick(&[Estimate::Conservative, Estimate::Weighted]),
        }
        .into(),
        3 => TokenBucket.into(),
        4 => LeakyMeter.into(),
        5 => LeakyQueue.into(),
        6 => {
            let smooth =
                if rng.chance(1, 2) { Smooth::bursty() } else { Smooth::warming_up(period(rng)) };
            let factor = u8::try_from(rng.within(1, 100)).unwrap();
            let smooth = smooth.with_payment(rng.pick(&[Payment::Next, Payment::Own]));
            let smooth = if rng.chance(1, 2) { smooth } else { smooth.with_cold_factor(factor) };
            if rng.chance(1, 2) { smooth.into() } else { smooth.with_max_debt(number(rng)).into() }
        }
        _ => Concurrency.into(),
    }
}

fn quota(rng: &mut Rng) -> Quota {
    loop {
        if let Ok(quota) = Quota::new(1 + rng.magnitude(Quota::MAX_COUNT - 1), period(rng)) {
            return quota;
        }
    }
}

fn period(rng: &mut Rng) -> Duration {
    let most = u64::try_from(Quota::MAX_PERIOD.as_micros()).unwrap();
    let round = rng.pick(&[1, 1_000, 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000]);
    Duration::from_micros((1 + rng.magnitude(most / round - 1)) * round)
}

fn number(rng: &mut Rng) -> u64 {
    1 + rng.magnitude((1 << 53) - 2)
}

fn pattern(rng: &mut Rng, texts: Texts) -> Pattern {
    match rng.below(6) {
        0 => Pattern::Present,
        1 => Pattern::Absent,
        2 => Pattern::Any(some(rng, 4, |rng| value(rng, texts))),
        _ => Pattern::Any(vec![value(rng, texts)]),
    }
}

fn value(rng: &mut Rng, texts: Texts) -> Value {
    let text = text(rng, texts);
    if rng.chance(1, 3) { Value::Prefix(text) } else { Value::Text(text) }
}

fn subject(rng: &mut Rng, texts: Texts) -> Subject {
    if rng.chance(1, 2) {
        return Subject::Network(network(rng));
    }
    Subject::Attribute { name: attribute(rng, texts), value: value(rng, texts) }
}

fn network(rng: &mut Rng) -> Network {
    let (address, bits) = if rng.chance(1, 2) {
        let bits = u32::try_from(rng.below(1 << 32)).unwrap();
        (IpAddr::V4(Ipv4Addr::from_bits(bits)), 32)
    } else {
        let bits = u128::from(rng.any()) << 64 | u128::from(rng.any());
        (IpAddr::V6(Ipv6Addr::from_bits(bits)), 128)
    };
    Network::new(address, u8::try_from(rng.below(bits + 1)).unwrap()).unwrap()
}

/// Never `ip`, whose values are networks.
fn attribute(rng: &mut Rng, texts: Texts) -> String {
    if texts == Texts::Arbitrary && rng.chance(1, 4) {
        return format!("x{}", text(rng, texts));
    }
    rng.pick(&["user", "service", "path", "method", "host", "header.x-plan", "tenant"]).to_owned()
}

fn text(rng: &mut Rng, texts: Texts) -> String {
    if texts == Texts::Arbitrary && rng.chance(1, 3) {
        let length = rng.below(8);
        return (0..length).map(|_| letter(rng)).collect();
    }
    if texts == Texts::Arbitrary && rng.chance(1, 4) {
        let odd = [
            "",
            "*",
            "**",
            "a*",
            "off",
            "No",
            "null",
            "~",
            "true",
            "1",
            "1.2",
            "1e3",
            "0x10",
            ".nan",
            "- a",
            "a: b",
            "a #b",
            " a",
            "a ",
            "{",
            "[",
            "&a",
            "*a",
            "!a",
            "%a",
            "@a",
            "`a",
            "'",
            "\"",
            "\\",
            "a\nb",
            "\t",
            "<<",
            "=",
            "2001-01-01",
            "12:30",
            "::1",
            "---",
            "...",
            "|",
            ">",
            "?",
            ":",
            "\u{0}",
            "\u{7f}",
            "\u{85}",
            "\u{2028}",
            "\u{feff}",
            "\u{fffe}",
            "é",
            "名前",
            "😀",
            "\r\n",
        ];
        return rng.pick(&odd).to_owned();
    }
    rng.pick(&["login", "orders", "per-ip", "gold", "a", "default-per-user", "checkout"]).to_owned()
}

fn letter(rng: &mut Rng) -> char {
    let high = rng.pick(&[0x20, 0x80, 0x800, 0x1_0000, 0x11_0000]);
    loop {
        let code = u32::try_from(rng.below(high)).unwrap();
        if let Some(letter) = char::from_u32(code) {
            return letter;
        }
    }
}

fn some<T>(rng: &mut Rng, most: u64, mut one: impl FnMut(&mut Rng) -> T) -> Vec<T> {
    (0..rng.below(most + 1)).map(|_| one(rng)).collect()
}
