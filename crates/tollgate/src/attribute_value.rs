//! The value of a request's attribute, before it has its one spelling.

use std::borrow::Cow;
use std::net::IpAddr;

/// The value of an attribute, before it is put into its one spelling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttributeValue<'r> {
    Text(Cow<'r, [u8]>),
    Address(IpAddr),
}
