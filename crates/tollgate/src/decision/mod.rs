//! The one decision pipeline: from a plan to a ruling, whatever the store does.
//!
//! ```text
//!  planners            plan.rs              run.rs                                         ruling.rs
//!  rules      ┐
//!  #[limit]   │   Plan: charges, each    deny cache → local guard → store → fallback     Ruling: decisions,
//!  Envoy      ├─► with failure policy ─►     synchronous for a local store,           ─► who refuses, source,
//!  check/key  │   and origin                 one await for a remote one                  version
//!  reserve    ┘                          then shadow charges, bans, counts, observers
//! ```
//!
//! | File | Holds |
//! |---|---|
//! | `plan`, `plan_rules` | plans, and the planner of rules |
//! | `run`, `run_each` | the runner; the runner of calls whose charges are decided each by itself |
//! | `deny_cache` | refusals that the store need not be asked for again |
//! | `local_guard` | limiters of this process in front of the store |
//! | `outage_fallback`, `debts` | answers while the store gives none, and what this process then owes it |
//! | `shadow` | shadow rules are charged here |
//! | `bans` | refusals are counted towards bans here |
//! | `background` | the task that does what no caller waits for |
//! | `ruling` | the result |
//! | `lossy_map`, `keys` | a bounded memory; the first byte of every key |

mod background;
mod bans;
mod debts;
mod deny_cache;
pub(crate) mod keys;
mod local_guard;
mod lossy_map;
mod outage_fallback;
mod plan;
mod plan_rules;
mod ruling;
mod run;
mod run_each;
mod shadow;

pub(crate) use background::{Background, Job, once_within};
#[cfg(feature = "macros")]
pub(crate) use plan::Set;
pub(crate) use plan::{
    ChargePolicy, DecidingRules, Intent, Origin, OwnedCounter, Plan, counts_holders,
};
#[cfg(feature = "macros")]
pub(crate) use plan_rules::uncharged;
#[cfg(any(feature = "tower", feature = "macros"))]
pub(crate) use ruling::Cause;
pub use ruling::{Blocked, Finding, Outage, Reason, Ruling, Source};
pub(crate) use run::{Fleet, Runner, poll_once};
