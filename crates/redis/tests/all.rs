//! The store on a real Redis, in one program: linking takes longer than running.

mod common;

mod clock;
mod faults;
mod large;
mod latency;
mod lock_rights;
mod lock_short_cuts;
mod locks;
mod once;
mod overload;
mod poison;
mod processes;
mod queue;
mod runtimes;
mod store;
mod suite;
mod ttl;
