//! The code that `#[limit]` expands to: a site for each function, and a call each time it runs.
//!
//! `crates/macros` generates code against `tollgate::__private`, which is this module and not part
//! of the API: change them together.
//!
//! | File | Holds |
//! |---|---|
//! | `site` | the attributes of a function, compiled once |
//! | `call` | one call: its values, costs and limiter |
//! | `plan` | from a call to a plan; pure |
//! | `decide` | from a plan to permits or a refusal |

mod call;
mod decide;
mod plan;
mod site;

pub use call::{LimitCall, enter, enter_now};
pub use decide::AnswersAtOnce;
pub(crate) use decide::AnyLimiter;
pub use site::{KeyPart, LimitAttribute, QuotaText, Site, path};

use crate::Refused;

/// A return type that can express a refusal.
#[diagnostic::on_unimplemented(
    message = "a function under `#[limit]` cannot return `{Self}`: a call may be refused",
    label = "is no `Result`",
    note = "return a `Result<_, E>` where `E: From<tollgate::Refused>`, such as `Refused` itself"
)]
pub trait Refuse {
    /// Converts the refusal.
    fn refuse(refused: Refused) -> Self;
}

impl<T, E: From<Refused>> Refuse for Result<T, E> {
    fn refuse(refused: Refused) -> Self {
        Err(refused.into())
    }
}

/// Converts a refusal into the return type of the function.
pub fn refuse<R: Refuse>(refused: Refused) -> R {
    R::refuse(refused)
}
