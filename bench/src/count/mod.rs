//! Code that the tools `count-library` and `count-macros` share.

use crate::Random;
use crate::clock::Quanta;
use tollgate::EmbeddedStore;

/// A name, and what sends so many requests.
pub type Case = (&'static str, fn(u64));

/// Addresses or users. Under a tool that counts, a request takes so long that of many keys most would
/// be idle, and be dropped, before they come again.
pub const KEYS: u64 = 400;

/// Runs the case that the arguments name, or lists all of them where there is none.
pub fn run(cases: &[Case]) {
    let mut args = std::env::args().skip(1);
    let Some(case) = args.next() else {
        for (name, _) in cases {
            println!("{name}");
        }
        return;
    };
    let usage = "usage: CASE REQUESTS, or nothing to list the cases";
    let requests = args.next().and_then(|number| number.parse().ok()).expect(usage);
    let (_, send) = cases.iter().find(|(name, _)| *name == case).expect(usage);
    send(requests);
}

/// The function whose instructions callgrind counts.
#[inline(never)]
pub fn counted<R>(work: impl FnOnce() -> R) -> R {
    work()
}

pub fn store() -> EmbeddedStore<Quanta> {
    EmbeddedStore::builder().max_keys(100_000).with_clock(Quanta::new())
}

/// The names of the keys, written before anything is counted.
pub fn users() -> Vec<String> {
    (0..KEYS).map(|key| format!("user:{key}")).collect()
}

/// The keys of so many requests.
pub fn keys(requests: u64) -> impl Iterator<Item = usize> {
    let mut random = Random::new(1);
    (0..requests).map(move |_| random.below(KEYS) as usize)
}
