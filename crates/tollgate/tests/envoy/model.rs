//! Random files and calls, answered alike by the limiter and by a model that keeps plain counts.
//!
//! Which rule applies is taken from the rules themselves (`matching.rs` judges that). A call names no
//! counter twice here; `deciding.rs` has those.

use std::collections::HashMap;
use std::time::Duration;

use tollgate::Timestamp;
use tollgate::envoy::{Charge, Conduct, EnvoyRules, Mode, Override, RateLimit, Unit};
use tollgate::store::Clock;
use tollgate::{EmbeddedStore, Limiter};
use tollgate_core::testing::{ManualClock, Rng};

use crate::support::{Asked, NOW, ask_as, d, entries, told};

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
fn call(rng: &mut Rng) -> Vec<(String, Asked<'static>)> {
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

/// What a counter is known by: the unit, and its entries or the pattern that they share.
type Name = (Unit, String);

/// What each window was used.
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

/// What is known of a descriptor before anything is counted.
enum Known {
    NoRule,
    Unlimited,
    Due(Due),
}

struct Due {
    name: Name,
    rate: RateLimit,
    mode: Mode,
    cost: u64,
    gives_back: bool,
}

impl Due {
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

fn known(rules: &EnvoyRules, call: &[(String, Asked<'_>)], hits: u32) -> Vec<Known> {
    let found = |text: &str| rules.find("shop", &entries(text));
    let plain = |asked: &Asked<'_>| asked.limit.is_none();
    let replaced = |name: &str| {
        let mut others = call.iter().filter(|(_, asked)| plain(asked));
        others.any(|(text, _)| found(text).is_some_and(|rule| rule.replaces(name)))
    };
    let one = |(text, asked): &(String, Asked<'_>)| {
        let cost = asked.hits.unwrap_or(u64::from(hits.max(1)));
        let due = |name: String, rate: RateLimit, mode| {
            Known::Due(Due {
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
                return due(text.clone(), rate, Mode::Enforce);
            }
            (None, None) => return Known::NoRule,
            (None, Some(rule)) => rule,
        };
        match rule.rate_limit() {
            None => Known::Unlimited,
            Some(_) if replaced(rule.name()) => Known::NoRule,
            Some(rate) => {
                // The path says the pattern; which rules share is in the text of the test's file.
                let shares = rule.path().contains('*') && rule.metadata().is_some();
                let name = if shares { rule.path().to_owned() } else { text.clone() };
                // Giving back to a block is OK, and no reason to let the others of a group pass.
                let idle = rate.requests_per_unit() == 0 && asked.gives_back && cost > 0;
                let apart = idle && rule.mode() == Mode::Quota;
                due(name, rate, if apart { Mode::Enforce } else { rule.mode() })
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
fn model(counts: &mut Counts, known: &[Known], charge: Charge, now: u64) -> String {
    let dues: Vec<&Due> = known
        .iter()
        .filter_map(|it| if let Known::Due(due) = it { Some(due) } else { None })
        .collect();
    let of = |mode: Mode| dues.iter().copied().filter(move |due| due.mode == mode);
    let mut said: HashMap<*const Due, (bool, u64)> = HashMap::new();
    let over = if charge == Charge::All {
        for due in &dues {
            let used = counts.used(&due.name, now);
            let (mut passes, left) = match due.counts() {
                false => (!due.blocks(), 0),
                true => {
                    let passes = due.passes(*used);
                    *used = due.after(*used);
                    (passes && (due.cost > 0 || due.left(*used) > 0), due.left(*used))
                }
            };
            passes |= due.mode == Mode::Shadow;
            said.insert(*due, (passes, left));
        }
        let refused = |due: &Due| !said[&std::ptr::from_ref(due)].0;
        let quotas = of(Mode::Quota).count();
        of(Mode::Enforce).any(refused) || (quotas > 0 && of(Mode::Quota).all(refused))
    } else {
        together(counts, &dues, now, &mut said)
    };
    let code = |passes: bool| if passes { "OK" } else { "OVER" };
    let each: Vec<String> = known
        .iter()
        .map(|it| match it {
            Known::NoRule => "OK 0".to_owned(),
            Known::Unlimited => format!("OK {}", u32::MAX),
            Known::Due(due) => {
                let (passes, left) = said[&std::ptr::from_ref(due)];
                format!("{} {}", code(passes), if passes { left } else { 0 })
            }
        })
        .collect();
    format!("{}: {}", code(!over), each.join(", "))
}

/// One decision over all; whether it is a refusal.
fn together(
    counts: &mut Counts,
    dues: &[&Due],
    now: u64,
    said: &mut HashMap<*const Due, (bool, u64)>,
) -> bool {
    let of = |mode: Mode| dues.iter().copied().filter(move |due| due.mode == mode);
    for due in dues {
        said.insert(*due, (!due.blocks() || due.mode == Mode::Shadow, 0));
    }
    let quotas = of(Mode::Quota).count();
    let all_blocked = quotas > 0 && of(Mode::Quota).all(Due::blocks);
    if of(Mode::Enforce).any(Due::blocks) || all_blocked {
        return true;
    }
    let mut passes = |due: &Due| !due.counts() || due.passes(*counts.used(&due.name, now));
    let any = of(Mode::Quota).any(|due| !due.blocks() && passes(due));
    let over = !of(Mode::Enforce).all(&mut passes) || (quotas > 0 && !any);
    let mut tell = |due: &Due, charged: bool| {
        let used = counts.used(&due.name, now);
        let passes = due.passes(*used);
        if passes && charged {
            *used = due.after(*used);
        }
        (passes, if passes { due.left(*used) } else { 0 })
    };
    for due in of(Mode::Enforce).chain(of(Mode::Quota)).filter(|due| due.counts()) {
        said.insert(due, tell(due, !over));
    }
    if !over {
        let shadows: Vec<&Due> = of(Mode::Shadow).filter(|due| due.counts()).collect();
        let pass = shadows.iter().all(|due| tell(due, false).0);
        for due in shadows {
            let (_, left) = tell(due, pass);
            said.insert(due, (true, left));
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
        let charge = rng.pick(&[Charge::AllOrNone, Charge::AllOrNone, Charge::All]);
        let mut counts = Counts::default();
        for step in 0..60 {
            if rng.chance(1, 5) {
                clock.advance(Duration::from_millis(rng.below(3_000)));
            }
            let (call, hits) = (call(&mut rng), rng.below(3) as u32);
            let now = clock.now().as_micros() / 1_000_000;
            let expected = model(&mut counts, &known(&rules, &call, hits), charge, now);
            let descriptors: Vec<Asked<'_>> =
                call.iter().map(|(entries, asked)| Asked { entries, ..*asked }).collect();

            let answer = ask_as(&limiter, &descriptors, hits, Conduct::DEFAULT.charging(charge));

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
