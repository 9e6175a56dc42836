//! Random files and calls, answered alike by the limiter and by a model that keeps plain counts.
//!
//! Which rule applies is taken from the rules themselves (`matching.rs` judges that). A call names no
//! counter twice here; `deciding.rs` has those.

use std::collections::HashMap;
use std::time::Duration;

use tollgate::Timestamp;
use tollgate::envoy::{CallPolicy, ChargeMode, EnvoyMode, EnvoyRules, Override, RateLimit, Unit};
use tollgate::store::Clock;
use tollgate::{EmbeddedStore, Limiter};
use tollgate_core::testing::{ManualClock, Rng};

use crate::support::{NOW, TestDescriptor, ask_as, d, entries, told};

const KEYS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// A file with a rule for most keys, each of some kind.
fn file(rng: &mut Rng) -> String {
    let mut text = "domain: shop\ndescriptors:\n".to_owned();
    for key in &KEYS[..7] {
        let unit = rng.pick(&["second", "minute"]);
        let requests = rng.below(5);
        let mut limit = format!("unit: {unit}, requests_per_unit: {requests}, name: {key}");
        if rng.chance(1, 8) {
            limit = format!("unlimited: true, name: {key}");
        }
        if rng.chance(1, 6) {
            let other = KEYS.iter().find(|other| *other != key && rng.chance(1, 3)).unwrap_or(&"z");
            limit += &format!(", replaces: [{{ name: {other} }}]");
        }
        let mode = rng.pick(&[
            "",
            "",
            "",
            "shadow_mode: true, ",
            "quota_mode: true, ",
            "quota_mode: true, ",
        ]);
        let value = rng.pick(&["", "", "value: 'v*', ", "value: 'v*', share_threshold: true, "]);
        text += &format!("  - {{ key: {key}, {value}{mode}rate_limit: {{ {limit} }} }}\n");
    }
    text
}

/// A call of up to four descriptors, of different keys.
fn call(rng: &mut Rng) -> Vec<(String, TestDescriptor<'static>)> {
    let mut keys = KEYS.to_vec();
    let mut asked = Vec::new();
    for _ in 0..=rng.below(4) {
        let key = keys.remove(rng.below(keys.len() as u64) as usize);
        let mut descriptor = d("");
        if rng.chance(1, 3) {
            descriptor.hits = Some(rng.below(4));
        }
        descriptor.gives_back = rng.chance(1, 6);
        if rng.chance(1, 8) {
            let unit = Some(rng.pick(&[Unit::Second, Unit::Minute]));
            descriptor.limit = Some(Override { requests_per_unit: rng.below(5) as u32, unit });
        }
        asked.push((format!("{key}=v{}", rng.below(2)), descriptor));
    }
    asked
}

/// The name of a counter: the unit, and its entries or the pattern that they share.
type Name = (Unit, String);

/// The use of each window.
#[derive(Default)]
struct Counts(HashMap<Name, (u64, u64)>);

impl Counts {
    fn used(&mut self, name: &Name, now: u64) -> &mut u64 {
        let window = now / name.0.period().as_secs();
        let (counted, used) = self.0.entry(name.clone()).or_default();
        if *counted != window {
            (*counted, *used) = (window, 0);
        }
        used
    }
}

/// The expected treatment of a descriptor, before anything is counted.
enum Expectation {
    NoRule,
    Unlimited,
    Counted(CountedDescriptor),
}

struct CountedDescriptor {
    name: Name,
    rate: RateLimit,
    mode: EnvoyMode,
    cost: u64,
    gives_back: bool,
}

impl CountedDescriptor {
    fn blocks(&self) -> bool {
        self.rate.requests_per_unit() == 0 && !(self.gives_back && self.cost > 0)
    }

    fn counts(&self) -> bool {
        self.rate.requests_per_unit() > 0
    }

    fn passes(&self, used: u64) -> bool {
        let limit = u64::from(self.rate.requests_per_unit());
        self.cost == 0 || self.gives_back || used + self.cost <= limit
    }

    fn after(&self, used: u64) -> u64 {
        if self.gives_back { used.saturating_sub(self.cost) } else { used + self.cost }
    }

    fn left(&self, used: u64) -> u64 {
        u64::from(self.rate.requests_per_unit()).saturating_sub(used)
    }
}

fn expectations(
    rules: &EnvoyRules,
    call: &[(String, TestDescriptor<'_>)],
    hits: u32,
) -> Vec<Expectation> {
    let found = |text: &str| rules.find("shop", &entries(text));
    let plain = |asked: &TestDescriptor<'_>| asked.limit.is_none();
    let replaced = |name: &str| {
        let mut others = call.iter().filter(|(_, asked)| plain(asked));
        others.any(|(text, _)| found(text).is_some_and(|rule| rule.replaces(name)))
    };
    let one = |(text, asked): &(String, TestDescriptor<'_>)| {
        let cost = asked.hits.unwrap_or(u64::from(hits.max(1)));
        let descriptor = |name: String, rate: RateLimit, mode| {
            Expectation::Counted(CountedDescriptor {
                name: (rate.unit(), name),
                rate,
                mode,
                cost,
                gives_back: asked.gives_back,
            })
        };
        let rule = match (asked.limit, found(text)) {
            (Some(limit), _) => {
                let rate = rate_of(limit.requests_per_unit, limit.unit.unwrap());
                return descriptor(text.clone(), rate, EnvoyMode::Enforce);
            }
            (None, None) => return Expectation::NoRule,
            (None, Some(rule)) => rule,
        };
        match rule.rate_limit() {
            None => Expectation::Unlimited,
            Some(_) if replaced(rule.name()) => Expectation::NoRule,
            Some(rate) => {
                // The path says the pattern; which rules share is in the text of the test's file.
                let shares = rule.path().contains('*') && rule.metadata().is_some();
                let name = if shares { rule.path().to_owned() } else { text.clone() };
                // Giving back to a block is OK, and no reason to let the others of a group pass.
                let idle = rate.requests_per_unit() == 0 && asked.gives_back && cost > 0;
                let apart = idle && rule.mode() == EnvoyMode::Quota;
                descriptor(name, rate, if apart { EnvoyMode::Enforce } else { rule.mode() })
            }
        }
    };
    call.iter().map(one).collect()
}

/// A rate like that of a file.
fn rate_of(requests: u32, unit: Unit) -> RateLimit {
    let file = format!(
        "domain: d\ndescriptors: [{{ key: k, rate_limit: {{ unit: {}, requests_per_unit: {requests} }} }}]",
        unit.name()
    );
    EnvoyRules::load(1, [("f", &*file)]).unwrap().rules()[0].rate_limit().unwrap()
}

/// `told`, by the model.
fn model(
    counts: &mut Counts,
    expectations: &[Expectation],
    charge: ChargeMode,
    now: u64,
) -> String {
    let counted: Vec<&CountedDescriptor> = expectations
        .iter()
        .filter_map(
            |it| if let Expectation::Counted(descriptor) = it { Some(descriptor) } else { None },
        )
        .collect();
    let of =
        |mode: EnvoyMode| counted.iter().copied().filter(move |descriptor| descriptor.mode == mode);
    let mut said: HashMap<*const CountedDescriptor, (bool, u64)> = HashMap::new();
    let over = if charge == ChargeMode::All {
        for descriptor in &counted {
            let used = counts.used(&descriptor.name, now);
            let (mut passes, left) = match descriptor.counts() {
                false => (!descriptor.blocks(), 0),
                true => {
                    let passes = descriptor.passes(*used);
                    *used = descriptor.after(*used);
                    (
                        passes && (descriptor.cost > 0 || descriptor.left(*used) > 0),
                        descriptor.left(*used),
                    )
                }
            };
            passes |= descriptor.mode == EnvoyMode::Shadow;
            said.insert(*descriptor, (passes, left));
        }
        let refused = |descriptor: &CountedDescriptor| !said[&std::ptr::from_ref(descriptor)].0;
        let quotas = of(EnvoyMode::Quota).count();
        of(EnvoyMode::Enforce).any(refused) || (quotas > 0 && of(EnvoyMode::Quota).all(refused))
    } else {
        together(counts, &counted, now, &mut said)
    };
    let code = |passes: bool| if passes { "OK" } else { "OVER" };
    let each: Vec<String> = expectations
        .iter()
        .map(|it| match it {
            Expectation::NoRule => "OK 0".to_owned(),
            Expectation::Unlimited => format!("OK {}", u32::MAX),
            Expectation::Counted(descriptor) => {
                let (passes, left) = said[&std::ptr::from_ref(descriptor)];
                format!("{} {}", code(passes), if passes { left } else { 0 })
            }
        })
        .collect();
    format!("{}: {}", code(!over), each.join(", "))
}

/// One decision over all; whether it is a refusal.
fn together(
    counts: &mut Counts,
    counted: &[&CountedDescriptor],
    now: u64,
    said: &mut HashMap<*const CountedDescriptor, (bool, u64)>,
) -> bool {
    let of =
        |mode: EnvoyMode| counted.iter().copied().filter(move |descriptor| descriptor.mode == mode);
    for descriptor in counted {
        said.insert(*descriptor, (!descriptor.blocks() || descriptor.mode == EnvoyMode::Shadow, 0));
    }
    let quotas = of(EnvoyMode::Quota).count();
    let all_blocked = quotas > 0 && of(EnvoyMode::Quota).all(CountedDescriptor::blocks);
    if of(EnvoyMode::Enforce).any(CountedDescriptor::blocks) || all_blocked {
        return true;
    }
    let mut passes = |descriptor: &CountedDescriptor| {
        !descriptor.counts() || descriptor.passes(*counts.used(&descriptor.name, now))
    };
    let any = of(EnvoyMode::Quota).any(|descriptor| !descriptor.blocks() && passes(descriptor));
    let over = !of(EnvoyMode::Enforce).all(&mut passes) || (quotas > 0 && !any);
    let mut tell = |descriptor: &CountedDescriptor, charged: bool| {
        let used = counts.used(&descriptor.name, now);
        let passes = descriptor.passes(*used);
        if passes && charged {
            *used = descriptor.after(*used);
        }
        (passes, if passes { descriptor.left(*used) } else { 0 })
    };
    for descriptor in
        of(EnvoyMode::Enforce).chain(of(EnvoyMode::Quota)).filter(|descriptor| descriptor.counts())
    {
        said.insert(descriptor, tell(descriptor, !over));
    }
    if !over {
        let shadows: Vec<&CountedDescriptor> =
            of(EnvoyMode::Shadow).filter(|descriptor| descriptor.counts()).collect();
        let pass = shadows.iter().all(|descriptor| tell(descriptor, false).0);
        for descriptor in shadows {
            let (_, left) = tell(descriptor, pass);
            said.insert(descriptor, (true, left));
        }
    }
    over
}

#[tokio::test]
async fn the_limiter_answers_as_the_model() {
    let (mut over, mut asked) = (0, 0);
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        // The model learns which rules share from their metadata, which says nothing else.
        let text = file(&mut rng).replace(
            "share_threshold: true,",
            "share_threshold: true, metadata: { shared: true },",
        );
        let rules = EnvoyRules::load(1, [("f", &*text)]).unwrap();
        let clock = ManualClock::at(Timestamp::from_micros(NOW * 1_000_000));
        let store = EmbeddedStore::builder().with_clock(clock.clone());
        let limiter = Limiter::builder(store).envoy_rules(rules.clone()).build();
        let charge = rng.pick(&[ChargeMode::AllOrNone, ChargeMode::AllOrNone, ChargeMode::All]);
        let mut counts = Counts::default();
        for step in 0..60 {
            if rng.chance(1, 5) {
                clock.advance(Duration::from_millis(rng.below(3_000)));
            }
            let (call, hits) = (call(&mut rng), rng.below(3) as u32);
            let now = clock.now().as_micros() / 1_000_000;
            let expected = model(&mut counts, &expectations(&rules, &call, hits), charge, now);
            let descriptors: Vec<TestDescriptor<'_>> =
                call.iter().map(|(entries, asked)| TestDescriptor { entries, ..*asked }).collect();

            let answer = ask_as(&limiter, &descriptors, hits, CallPolicy::DEFAULT.charging(charge));

            let found = told(&answer.await.unwrap());
            assert_eq!(
                found, expected,
                "seed {seed}, step {step}, {charge:?}: {descriptors:?}\n{text}"
            );
            over += u64::from(found.starts_with("OVER"));
            asked += 1;
        }
    }
    assert!(over > asked / 10 && over < asked * 9 / 10, "{over} of {asked} were over");
}
