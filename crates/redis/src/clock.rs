//! The only module of this crate that reads a clock: the monotonic one.
//!
//! Deadlines, the breaker and the age of readings use it. Decisions do not: their time is the server's,
//! read in the script.

pub(crate) use tokio::time::Instant;

/// The present moment of tokio's clock, which a test may pause.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The moment that lies this far ahead; the present one if there is no such moment.
pub(crate) fn ahead(span: std::time::Duration) -> Instant {
    let now = now();
    now.checked_add(span).unwrap_or(now)
}

/// Whole microseconds, saturating.
pub(crate) fn micros(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
