//! The attributes `#[limit(…)]` and `#[lock(…)]` of the crate `tollgate`. It re-exports them with
//! the feature `macros`, and documents them there.
//!
//! | File | Holds |
//! |---|---|
//! | `arguments` | the text between the parentheses |
//! | `key_parts` | the parts of a counter's key |
//! | `quota` | limits, checked by the core's own parser |
//! | `function` | the function, and its other `#[limit]`s |
//! | `expand` | the code |
//! | `lock` | `#[lock]`: its arguments, the name of the lock, the code |
//! | `nearest` | which word was meant |
//!
//! The code uses `tollgate::__private`: change them together.

#![forbid(unsafe_code)]
#![allow(clippy::arithmetic_side_effects, reason = "counts arguments and letters of source code")]

mod arguments;
mod expand;
mod function;
mod key_parts;
mod lock;
mod nearest;
mod quota;

use proc_macro::TokenStream;

/// Limits the calls of a function. See the documentation of `tollgate::limit`.
#[proc_macro_attribute]
pub fn limit(arguments: TokenStream, item: TokenStream) -> TokenStream {
    function::limit(arguments.into(), &item.into()).into()
}

/// Runs a function under a lock. See the documentation of `tollgate::lock`.
#[proc_macro_attribute]
pub fn lock(arguments: TokenStream, item: TokenStream) -> TokenStream {
    lock::lock(arguments.into(), &item.into()).into()
}
