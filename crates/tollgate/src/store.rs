//! Requests to a store and its answers, for programs that charge a store directly or write their
//! own.
//!
//! A [`Charge`] is one operation on the counter of a [`Key`] under a [`Limit`](crate::Limit); a
//! [`Request`] makes several charges, all or none. A [`Store`](crate::Store) executes requests.

pub use tollgate_core::{
    Answer, Charge, ChargeError, Clock, Holder, Key, MAX_VALUE, Need, Op, Request, RequestError,
    Revision,
};
