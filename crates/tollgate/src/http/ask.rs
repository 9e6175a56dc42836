//! Builds an ask from a request: the attributes that the rules of a domain look at, and no others.
//!
//! A [`RequestReader`] knows these attributes for one version of the rules, and caches the policies
//! of its limits. Only attributes that rules look at can make a request malformed: two `Host` fields
//! are no error where no rule asks for the host.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use http::header::{COOKIE, HOST, HeaderName};
use http::request::Parts;
use http::{Extensions, HeaderMap, Method, Request, Uri};
use tollgate_core::rule::{Ask, AskError, RuleSet, host};

use super::attributes::PeerLookup;
use super::layer::Config;
use super::policies::{Policies, PolicyCache, PolicyList};
use super::refusal::{MalformedRequest, RefusalKind};
use super::segments;
use crate::Ruling;
use crate::attribute_value::AttributeValue;
use crate::decision::DecidingRules;

/// Reads the attributes that one version of the rules looks at.
#[derive(Debug)]
pub(super) struct RequestReader {
    pub(super) rules: DecidingRules,
    /// The edition of the rules, or an earlier one; 0 before the first request.
    pub(super) edition: u64,
    /// True if a function of the application looks at requests. It is given [`Parts`].
    pub(super) wants_parts: bool,
    attributes: Vec<(String, AttributeSource)>,
    policies: PolicyCache,
}

/// The head of a request, borrowed: taking a request apart and putting it together again costs more
/// than reading it.
#[derive(Clone, Copy)]
pub(super) struct Head<'r> {
    method: &'r Method,
    uri: &'r Uri,
    headers: &'r HeaderMap,
    extensions: &'r Extensions,
    /// For functions of the application; present if the reader wants parts.
    parts: Option<&'r Parts>,
}

impl<'r> Head<'r> {
    /// For a reader that wants no parts.
    pub(super) fn of<Q>(request: &'r Request<Q>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
            parts: None,
        }
    }

    pub(super) const fn of_parts(parts: &'r Parts) -> Self {
        Self {
            method: &parts.method,
            uri: &parts.uri,
            headers: &parts.headers,
            extensions: &parts.extensions,
            parts: Some(parts),
        }
    }
}

/// The place where the value of an attribute is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AttributeSource {
    /// The application's function with this index.
    Application(usize),
    Method,
    Host,
    Path,
    Route,
    Ip,
    Header(HeaderName),
}

impl AttributeSource {
    /// The source of this attribute; `None` if neither the application nor the request has one.
    pub(super) fn of<S>(config: &Config<S>, name: &str) -> Option<Self> {
        let own = config.attributes.iter().position(|(given, _)| given == name);
        own.map(Self::Application).or_else(|| built_in(name))
    }

    /// Reads the attribute from a request.
    pub(super) fn find<'r, S>(
        &self,
        config: &Config<S>,
        head: Head<'r>,
    ) -> Result<Option<AttributeValue<'r>>, RefusalKind> {
        let value = match self {
            Self::Application(at) => {
                let extract =
                    config.attributes.get(*at).map(|(_, extract)| extract).zip(head.parts);
                extract.and_then(|(extract, parts)| extract(parts)).map(|value| value.0)
            }
            Self::Method => Some(Cow::Borrowed(head.method.as_str().as_bytes())),
            Self::Host => named_host(head)?.map(|host| Cow::Borrowed(host.as_bytes())),
            Self::Path => Some(Cow::Borrowed(path(head)?.as_bytes())),
            Self::Route => route(head).map(|route| Cow::Borrowed(route.as_bytes())),
            Self::Header(name) => header(head.headers, name),
            Self::Ip => return Ok(client(config, head)?.map(AttributeValue::Address)),
        };
        Ok(value.map(AttributeValue::Text))
    }
}

impl RequestReader {
    /// The reader before the first request. Its rules belong to no limiter.
    pub(super) fn none() -> Self {
        Self {
            rules: DecidingRules::None,
            edition: 0,
            wants_parts: false,
            attributes: Vec::new(),
            policies: PolicyCache::new(),
        }
    }

    pub(super) fn new<S>(config: &Config<S>, rules: Arc<RuleSet>, edition: u64) -> Self {
        let sources = rules
            .wants(&config.domain)
            .iter()
            .filter_map(|name| Some((name.clone(), AttributeSource::of(config, name)?)));
        let attributes: Vec<(String, AttributeSource)> = sources.collect();
        let by_application =
            attributes.iter().any(|(_, source)| matches!(source, AttributeSource::Application(_)));
        let wants_parts = by_application || config.cost.is_some();
        let rules = DecidingRules::Rules(rules);
        Self { rules, edition, wants_parts, attributes, policies: PolicyCache::new() }
    }

    /// The policies of a ruling's limits; `None` if it has no limits. A request that has waited may
    /// have been judged by earlier rules, whose policies are not cached.
    #[inline]
    pub(super) fn policies(&self, ruling: &Ruling) -> Option<PolicyList<'_>> {
        match (self.rules.rules(), ruling.rules.rules()) {
            (Some(ours), Some(its)) if Arc::ptr_eq(ours, its) => self.policies.of(ruling),
            _ => Some(PolicyList::New(Box::new(Policies::of(ruling)))),
        }
    }

    /// Adds the attributes of a request to an ask, in place: an ask is too large to be moved for every
    /// request.
    pub(super) fn fill<'r, S>(
        &'r self,
        config: &Config<S>,
        head: Head<'r>,
        ask: &mut Ask<'r>,
    ) -> Result<(), RefusalKind> {
        for (name, source) in &self.attributes {
            match source.find(config, head)? {
                Some(AttributeValue::Text(value)) => {
                    let pushed = ask.push(name, value);
                    pushed.map_err(|error| RefusalKind::Malformed(error.into()))?;
                }
                Some(AttributeValue::Address(address)) => ask.set_ip(address),
                None => {}
            }
        }
        if let (Some(cost), Some(parts)) = (&config.cost, head.parts) {
            ask.set_cost(cost(parts));
        }
        Ok(())
    }
}

fn built_in(name: &str) -> Option<AttributeSource> {
    match name {
        "method" => Some(AttributeSource::Method),
        "host" => Some(AttributeSource::Host),
        "path" => Some(AttributeSource::Path),
        "route" => Some(AttributeSource::Route),
        "ip" => Some(AttributeSource::Ip),
        _ => name.strip_prefix("header.")?.parse().ok().map(AttributeSource::Header),
    }
}

fn client<S>(config: &Config<S>, head: Head<'_>) -> Result<Option<IpAddr>, RefusalKind> {
    let peer = match config.peer.find(head.extensions) {
        PeerLookup::Address(peer) => peer,
        PeerLookup::None => return Ok(None),
        PeerLookup::Missing => return Err(RefusalKind::NoPeer),
    };
    let client = config.trust.client(peer, head.headers);
    client.map(Some).map_err(|error| RefusalKind::Malformed(error.into()))
}

/// The host of a request. The target and the header may both name it, if they agree.
fn named_host(head: Head<'_>) -> Result<Option<&str>, RefusalKind> {
    let malformed = |malformed| Err(RefusalKind::Malformed(malformed));
    let mut lines = head.headers.get_all(HOST).iter();
    let (header, second) = (lines.next(), lines.next());
    if second.is_some() {
        return malformed(MalformedRequest::TwoHosts);
    }
    let target = head.uri.authority().map(http::uri::Authority::as_str);
    let Some(header) = header else { return Ok(target) };
    let Ok(header) = std::str::from_utf8(header.as_bytes()) else {
        return malformed(AskError::Host(host::HostError::Malformed).into());
    };
    if let Some(target) = target
        && target != header
        && host::canonical(target).ok() != host::canonical(header).ok()
    {
        return malformed(MalformedRequest::TwoHosts);
    }
    Ok(Some(header))
}

/// The value of a header. Several lines are joined into one list.
fn header<'r>(headers: &'r HeaderMap, name: &HeaderName) -> Option<Cow<'r, [u8]>> {
    let mut lines = headers.get_all(name).iter();
    let first = lines.next()?;
    let mut value = Cow::Borrowed(first.as_bytes());
    for line in lines {
        let joint: &[u8] = if *name == COOKIE { b"; " } else { b", " };
        let joined = value.to_mut();
        joined.extend_from_slice(joint);
        joined.extend_from_slice(line.as_bytes());
    }
    Some(value)
}

/// The path as the client sent it, if rules and routers count the same segments in it.
fn path(head: Head<'_>) -> Result<&str, RefusalKind> {
    let path = original_uri(head).path();
    if segments::are_kept(path.as_bytes()) {
        return Ok(path);
    }
    Err(RefusalKind::Malformed(MalformedRequest::Segments))
}

/// The target as the client sent it. Nested routers strip a prefix, which must not get a request
/// around a rule.
#[cfg(feature = "axum")]
fn original_uri(head: Head<'_>) -> &Uri {
    let original = head.extensions.get::<axum::extract::OriginalUri>();
    original.map_or(head.uri, |original| &original.0)
}

#[cfg(not(feature = "axum"))]
const fn original_uri(head: Head<'_>) -> &Uri {
    head.uri
}

/// The template of the route that axum matched.
#[cfg(feature = "axum")]
fn route(head: Head<'_>) -> Option<&str> {
    head.extensions.get::<axum::extract::MatchedPath>().map(axum::extract::MatchedPath::as_str)
}

#[cfg(not(feature = "axum"))]
const fn route(_: Head<'_>) -> Option<&str> {
    None
}
