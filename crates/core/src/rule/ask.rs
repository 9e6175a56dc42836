//! The attributes of a request, as its caller knows them.
//!
//! An ask holds attributes by name. It normalizes `path`, `host`, `method` and `ip` when they are
//! added, so that rules, keys and lists see one form. `header.<name>` ignores the case of the
//! name. All other values are taken byte for byte. A value that is in normal form already is not
//! copied.
//!
//! The caller decides which attributes to trust (a verified user, an address behind trusted
//! proxies): see `SECURITY.md`.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use smallvec::SmallVec;

use super::host::{self, HostError};
use super::path::{self, PathError};
use crate::Cost;

/// The attributes and the cost of a request in a domain.
///
/// ```
/// use tollgate_core::rule::{Ask, AskError, Attribute};
///
/// let ask = Ask::new("shop")
///     .ip([203, 0, 113, 7].into())
///     .with("path", "/api//Login?next=/")?
///     .with("header.X-Api-Key", "k1")?;
///
/// assert_eq!(ask.attribute("path"), Some(Attribute::Text(b"/api/Login")));
/// assert_eq!(ask.attribute("header.x-api-key"), Some(Attribute::Text(b"k1")));
/// assert_eq!(ask.with("path", "/other").unwrap_err(), AskError::Twice);
/// # Ok::<(), AskError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    domain: &'a str,
    cost: Cost,
    attributes: SmallVec<[(AttributeName<'a>, AttributeValue<'a>); 8]>,
}

/// The value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Attribute<'a> {
    /// Bytes; mostly text.
    Text(&'a [u8]),
    /// The client's address, `ip`. An IPv4-mapped IPv6 address is stored as IPv4.
    Address(IpAddr),
}

/// The name of an attribute. Names with a special meaning are recognised when the ask is built, so
/// that judging it need not look them up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AttributeName<'a> {
    /// A position in [`AttributeName::KNOWN`].
    Known(u8),
    /// Any other name, in its normal form.
    Other(Cow<'a, str>),
}

impl<'a> AttributeName<'a> {
    /// The attributes with a special meaning.
    pub(super) const KNOWN: [&'static str; 6] = ["path", "ip", "host", "method", "service", "user"];

    const IP: Self = Self::Known(1);

    pub(super) fn new(name: &'a str) -> Self {
        match name {
            "path" => Self::Known(0),
            "ip" => Self::IP,
            "host" => Self::Known(2),
            "method" => Self::Known(3),
            "service" => Self::Known(4),
            "user" => Self::Known(5),
            _ => Self::Other(folded(name)),
        }
    }

    pub(super) fn text(&self) -> &str {
        match self {
            Self::Known(at) => Self::KNOWN.get(usize::from(*at)).copied().unwrap_or_default(),
            Self::Other(name) => name,
        }
    }
}

#[derive(Clone, Debug)]
enum AttributeValue<'a> {
    Text(Cow<'a, [u8]>),
    Address(IpAddr),
}

impl<'a> Ask<'a> {
    /// The most attributes: twice the number of interesting headers of a request.
    pub const MAX_ATTRIBUTES: usize = 64;

    /// The longest name of an attribute: the name of a header with its prefix.
    pub const MAX_NAME: usize = 128;

    /// The longest value of an attribute. Long values become a hash in a key. Megabytes are an
    /// attack that the listener should have refused.
    pub const MAX_VALUE: usize = 1 << 20;

    /// An ask of cost 1 in this domain, with no attributes.
    pub fn new(domain: &'a str) -> Self {
        Self { domain, cost: 1, attributes: SmallVec::new() }
    }

    /// Adds an attribute; `path`, `host`, `method` and `ip` are parsed.
    ///
    /// # Errors
    ///
    /// When the attribute is present already, is malformed or too long, or there are too many; and
    /// for `path.…`, because rules capture these and callers must not claim them.
    pub fn with<V: AsRef<[u8]> + ?Sized>(
        mut self,
        name: &'a str,
        value: &'a V,
    ) -> Result<Self, AskError> {
        self.push(name, value.as_ref())?;
        Ok(self)
    }

    /// Adds an attribute as [`Ask::with`] does. An error leaves the ask unchanged.
    ///
    /// # Errors
    ///
    /// As [`Ask::with`].
    pub fn push(&mut self, name: &'a str, value: impl Into<Cow<'a, [u8]>>) -> Result<(), AskError> {
        let value = value.into();
        if name.is_empty() || name.len() > Self::MAX_NAME {
            return Err(AskError::Name);
        }
        if value.len() > Self::MAX_VALUE {
            return Err(AskError::ValueTooLong);
        }
        let name = AttributeName::new(name);
        if self.held(&name).is_some() {
            return Err(AskError::Twice);
        }
        if self.attributes.len() >= Self::MAX_ATTRIBUTES {
            return Err(AskError::TooMany);
        }
        let held = match value {
            Cow::Borrowed(value) => read(name.text(), value)?,
            Cow::Owned(value) => read(name.text(), &value)?.into_owned(),
        };
        self.attributes.push((name, held));
        Ok(())
    }

    /// Sets the client's address, and replaces an earlier `ip`.
    pub fn ip(mut self, address: IpAddr) -> Self {
        self.set_ip(address);
        self
    }

    /// Sets the client's address as [`Ask::ip`] does.
    #[inline]
    pub fn set_ip(&mut self, address: IpAddr) {
        let held = AttributeValue::Address(address.to_canonical());
        let ip = AttributeName::IP;
        match self.attributes.iter_mut().find(|(name, _)| *name == ip) {
            Some((_, earlier)) => *earlier = held,
            // One more than by `with`, so that an address cannot be crowded out.
            None => self.attributes.push((ip, held)),
        }
    }

    /// Sets the cost; 0 asks without spending.
    pub const fn cost(mut self, cost: Cost) -> Self {
        self.set_cost(cost);
        self
    }

    /// Sets the cost as [`Ask::cost`] does.
    pub const fn set_cost(&mut self, cost: Cost) {
        self.cost = cost;
    }

    /// The domain whose rules judge the ask.
    pub const fn domain(&self) -> &'a str {
        self.domain
    }

    /// The cost of the request under rules that set none.
    pub const fn own_cost(&self) -> Cost {
        self.cost
    }

    /// The value of this attribute, in its normal form. Captured `path.…` are not here, because
    /// they belong to a rule.
    pub fn attribute(&self, name: &str) -> Option<Attribute<'_>> {
        self.held(&AttributeName::new(name)).map(AttributeValue::attribute)
    }

    /// All attributes, in the order in which they were added.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, Attribute<'_>)> {
        self.named().map(|(name, value)| (name.text(), value))
    }

    pub(super) fn named(&self) -> impl Iterator<Item = (&AttributeName<'a>, Attribute<'_>)> {
        self.attributes.iter().map(|(name, held)| (name, held.attribute()))
    }

    fn held(&self, name: &AttributeName<'_>) -> Option<&AttributeValue<'a>> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, held)| held)
    }
}

impl AttributeValue<'_> {
    fn into_owned<'o>(self) -> AttributeValue<'o> {
        match self {
            Self::Text(bytes) => AttributeValue::Text(Cow::Owned(bytes.into_owned())),
            Self::Address(address) => AttributeValue::Address(address),
        }
    }

    fn attribute(&self) -> Attribute<'_> {
        match self {
            Self::Text(bytes) => Attribute::Text(bytes),
            Self::Address(address) => Attribute::Address(*address),
        }
    }
}

/// The normal form of an attribute's name: header names ignore case.
pub(super) fn folded(name: &str) -> Cow<'_, str> {
    match name.strip_prefix("header.") {
        Some(header) if header.bytes().any(|byte| byte.is_ascii_uppercase()) => {
            Cow::Owned(name.to_ascii_lowercase())
        }
        _ => Cow::Borrowed(name),
    }
}

fn read<'a>(name: &str, value: &'a [u8]) -> Result<AttributeValue<'a>, AskError> {
    let text = |error| std::str::from_utf8(value).map_err(|_| error);
    Ok(match name {
        "path" => AttributeValue::Text(path::canonical_bytes(value).map_err(AskError::Path)?),
        "host" => {
            let host = host::canonical(text(AskError::Host(HostError::Malformed))?);
            AttributeValue::Text(path::bytes(host.map_err(AskError::Host)?))
        }
        "method" => AttributeValue::Text(method(value).ok_or(AskError::Method)?),
        "ip" => {
            let address: IpAddr =
                text(AskError::Address)?.parse().map_err(|_| AskError::Address)?;
            AttributeValue::Address(address.to_canonical())
        }
        _ if name.starts_with("path.") => return Err(AskError::Captured),
        _ => AttributeValue::Text(Cow::Borrowed(value)),
    })
}

/// The normal form of a method: capitals, because some servers accept `post` for `POST`.
pub(super) fn method(value: &[u8]) -> Option<Cow<'_, [u8]>> {
    // Nearly every request has one of these.
    if matches!(value, b"GET" | b"POST" | b"PUT" | b"DELETE" | b"HEAD" | b"PATCH" | b"OPTIONS") {
        return Some(Cow::Borrowed(value));
    }
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    if value.is_empty() || value.len() > MAX_METHOD || !value.iter().all(fits) {
        return None;
    }
    Some(if value.iter().any(u8::is_ascii_lowercase) {
        Cow::Owned(value.to_ascii_uppercase())
    } else {
        Cow::Borrowed(value)
    })
}

/// The longest method: three times the longest registered one.
const MAX_METHOD: usize = 64;

/// The reason why an attribute cannot be part of an ask. A server answers 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AskError {
    /// The attribute is present already. Of two values, no one knows which one counts.
    Twice,
    /// There are [`Ask::MAX_ATTRIBUTES`] already.
    TooMany,
    /// The name is empty or longer than [`Ask::MAX_NAME`].
    Name,
    /// The value is longer than [`Ask::MAX_VALUE`].
    ValueTooLong,
    /// Rules capture `path.…`, so a caller must not claim it.
    Captured,
    /// The path cannot be normalized.
    Path(PathError),
    /// The host is malformed.
    Host(HostError),
    /// The method is not a token.
    Method,
    /// The `ip` is not an address.
    Address,
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Twice => "the attribute is given twice",
            Self::TooMany => "more than 64 attributes",
            Self::Name => "the attribute's name is empty or longer than 128 bytes",
            Self::ValueTooLong => "the attribute's value is longer than 1 MiB",
            Self::Captured => "`path.…` attributes are captured by rules and cannot be given",
            Self::Path(_) => "the path cannot be matched",
            Self::Host(_) => "the host cannot be matched",
            Self::Method => "the method is not a token of at most 64 bytes",
            Self::Address => "`ip` is not an address",
        })
    }
}

impl std::error::Error for AskError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Path(error) => Some(error),
            Self::Host(error) => Some(error),
            _ => None,
        }
    }
}
