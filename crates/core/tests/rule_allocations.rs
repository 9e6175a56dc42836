//! Judging allocates nothing: counted by an allocator, not guessed.
#![allow(unsafe_code, reason = "an allocator that counts is one")]
#![allow(clippy::unwrap_used, reason = "a test shall stop")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tollgate_core::rule::declaration::{Declaration, Domain, Limitation, Pattern, Rule, Value};
use tollgate_core::rule::{Ask, Judgement, KeySecret, RuleSet};

struct CountingAllocator;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get().saturating_add(1)));
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn allocations(run: impl FnOnce()) -> usize {
    let before = COUNT.with(Cell::get);
    run();
    COUNT.with(Cell::get).saturating_sub(before)
}

fn rule(name: &str, matches: &[(&str, &str)], by: &[&str]) -> Rule {
    let mut rule = Rule::new(name);
    for (name, value) in matches {
        let pattern = Pattern::Any(vec![Value::Text((*value).to_owned())]);
        rule.matches.push(((*name).to_owned(), pattern));
    }
    rule.by = by.iter().map(|name| (*name).to_owned()).collect();
    for quota in ["5 per 1m", "50 per 1h"] {
        let quota = quota.parse().unwrap();
        rule.limits.push(Limitation { name: None, quota, algorithm: None });
    }
    rule
}

#[test]
fn an_ask_with_eight_attributes_and_eight_charges_is_made_and_judged_without_allocating() {
    let mut domain = Domain::new("shop");
    domain.partition.push("tenant".to_owned());
    domain.rules = vec![
        rule("global", &[], &["tenant"]),
        rule("per-ip", &[("method", "POST")], &["tenant", "ip"]),
        rule("per-user", &[("host", "a.com"), ("service", "auth")], &["tenant", "user"]),
        rule("order", &[("path", "/orders/{id}")], &["tenant", "path", "path.id"]),
    ];
    let set = RuleSet::new(Declaration { version: 1, domains: vec![domain] }).unwrap();
    let secret = KeySecret::new([7; 16]);

    let count = allocations(|| {
        let ask = Ask::new("shop")
            .ip([192, 0, 2, 1].into())
            .with("path", "/orders/4711")
            .and_then(|ask| ask.with("method", "POST"))
            .and_then(|ask| ask.with("host", "a.com"))
            .and_then(|ask| ask.with("service", "auth"))
            .and_then(|ask| ask.with("user", "alice"))
            .and_then(|ask| ask.with("tenant", "acme"))
            .and_then(|ask| ask.with("header.x-api-key", "k"))
            .unwrap();
        let Judgement::Charges(charges) = set.judge(&ask, &secret) else { panic!() };
        assert_eq!(charges.enforced().len(), 8);
        assert!(charges.partition().is_some());
    });

    assert_eq!(count, 0);
    let boxed = allocations(|| drop(std::hint::black_box(Box::new(1))));
    assert_eq!(boxed, 1, "the allocator counts");
}
