//! Waiting for permission instead of being refused.
//!
//! A [`Gate`] is one counter at which callers wait; a [`Shaper`] runs tasks through one, evenly
//! spaced. Waiting is cancel-safe: whoever drops the future gives the place back.

#[cfg(feature = "tower")]
mod booking;
mod gate;
mod line;
mod shaper;
mod teller;

#[cfg(feature = "tower")]
pub(crate) use booking::Booking;
pub use gate::{Gate, GateError, NotAdmitted};
pub use shaper::{Shaper, ShaperError};
