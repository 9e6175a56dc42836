//! The value of a request's attribute, before normalization.

use std::borrow::Cow;
use std::net::IpAddr;

/// The value of an attribute, before it is normalized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttributeValue<'r> {
    Text(Cow<'r, [u8]>),
    Address(IpAddr),
}
