//! The store on a real Redis, in one program: linking takes longer than running.

mod common;

mod batch_queue;
mod clock;
mod faults;
mod large;
mod latency;
mod lock_fast_paths;
mod lock_rights;
mod locks;
mod once;
mod overload;
mod poison;
mod processes;
mod runtimes;
mod store;
mod suite;
mod ttl;
