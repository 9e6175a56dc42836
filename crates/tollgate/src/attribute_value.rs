//! What is seen of a request when somebody looks for an attribute.

use std::borrow::Cow;
use std::net::IpAddr;

/// The value of an attribute, before it is put into its one spelling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttributeValue<'r> {
    Text(Cow<'r, [u8]>),
    Address(IpAddr),
}
