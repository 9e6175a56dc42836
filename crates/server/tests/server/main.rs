//! The server on real sockets: in this process where that suffices, as a program where it does not.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    clippy::too_many_lines,
    reason = "tests"
)]

mod accounts;
mod admin;
mod auth;
mod auth_query;
mod canary;
mod conflicts;
mod docs;
mod help;
mod hostile_http;
mod http;
mod json_latency;
mod kills;
mod lock;
mod lock_stopped;
mod lock_time;
mod lock_words;
mod locks;
mod nginx;
mod program;
mod ranges;
mod readme;
mod redis;
mod redis_py;
mod refused_at;
mod resp;
mod resp_clients;
mod resp_hostile;
mod rules;
mod rules_damaged;
mod rules_hashes;
mod rules_poison;
mod rules_redis;
mod rules_soon;
mod state;
mod support;
mod tls;
mod tokens;
mod without_hyper;
