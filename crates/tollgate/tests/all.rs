//! The limiter in virtual time and on a real Redis, in one program: linking takes longer than running.

mod common;

mod attacks;
mod bans;
mod both_stores;
mod bounds_doc;
mod debts_in_redis;
mod deny_cache;
mod edits;
mod far_gates;
mod guards;
mod holders;
mod limiter;
mod observers;
mod outage;
mod outage_fallback;
mod programs;
mod regressions;
mod reservations;
mod reset;
mod rule_changes;
mod waiting;
