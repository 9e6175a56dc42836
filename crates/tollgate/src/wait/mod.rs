//! Waiting for permission instead of being refused.
//!
//! A [`Gate`] is one counter at which callers wait; a [`Shaper`] runs tasks through one, evenly
//! spaced. Waiting is cancel-safe: dropping the future gives the place back.

mod batcher;
mod gate;
#[cfg(feature = "tower")]
mod reserved_place;
mod shaper;
mod wait_queue;

pub use gate::{Gate, GateError, NotAdmitted};
#[cfg(feature = "tower")]
pub(crate) use reserved_place::ReservedPlace;
pub use shaper::{Shaper, ShaperError};
