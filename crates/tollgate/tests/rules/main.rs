//! Rule files through the public API: what is read, what is refused and where, what is written.

#![expect(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::unwrap_used,
    reason = "a test shall stop at an overflow"
)]

mod broken;
mod docs;
mod generate;
mod problems;
mod reading;
mod round_trip;
mod schema;
