//! Telemetry: counts, refusals, events, log lines.
//!
//! Protocols record what happened, as they alone know the request; the limiter adds what only
//! it knows. `admin` shows all of it, `metrics` writes the counts for Prometheus.

pub mod counts;
pub mod events;
pub mod latency;
pub mod log;
pub mod metrics;
pub mod refusals;
