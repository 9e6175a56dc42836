//! From a request to an ask: what the rules of a domain want to know of it, and nothing else.
//!
//! A [`RequestReader`] knows the attributes that one version of the rules looks at, and keeps the
//! policies that were written for its limits. A request is malformed only by what rules look at:
//! where no rule asks for a host, two of them harm nobody.

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
use super::refusal::{Malformed, RefusalKind};
use super::segments;
use crate::Ruling;
use crate::decision::RuleSource;
use crate::seen::Seen;

/// Reads what one version of the rules wants to know of a request.
#[derive(Debug)]
pub(super) struct RequestReader {
    pub(super) rules: RuleSource,
    /// Of which edition the rules are at least; 0 before the first request.
    pub(super) edition: u64,
    /// Whether the application looks at requests, which it does in [`Parts`].
    pub(super) wants_parts: bool,
    wants: Vec<(String, AttributeSource)>,
    /// What clients were told of their limits.
    written: PolicyCache,
}

/// What a request says of itself. Borrowed, as a request is too large to be taken apart and put
/// together again for nothing.
#[derive(Clone, Copy)]
pub(super) struct Head<'r> {
    method: &'r Method,
    uri: &'r Uri,
    headers: &'r HeaderMap,
    extensions: &'r Extensions,
    /// For the application; there if the reader wants them.
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

/// Where the value of an attribute is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AttributeSource {
    /// With the application: the extractor at this place.
    Application(usize),
    Method,
    Host,
    Path,
    Route,
    Ip,
    Header(HeaderName),
}

impl AttributeSource {
    /// Where this attribute is, if anybody tells it.
    pub(super) fn of<S>(config: &Config<S>, name: &str) -> Option<Self> {
        let own = config.attributes.iter().position(|(given, _)| given == name);
        own.map(Self::Application).or_else(|| built_in(name))
    }

    /// Looks for it in a request.
    pub(super) fn find<'r, S>(
        &self,
        config: &Config<S>,
        head: Head<'r>,
    ) -> Result<Option<Seen<'r>>, RefusalKind> {
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
            Self::Ip => return Ok(client(config, head)?.map(Seen::Address)),
        };
        Ok(value.map(Seen::Text))
    }
}

impl RequestReader {
    /// What there is before the first request: no rules that any limiter has.
    pub(super) fn none() -> Self {
        Self {
            rules: RuleSource::Rules(Arc::new(RuleSet::empty())),
            edition: 0,
            wants_parts: false,
            wants: Vec::new(),
            written: PolicyCache::new(),
        }
    }

    pub(super) fn new<S>(config: &Config<S>, rules: Arc<RuleSet>, edition: u64) -> Self {
        let wants = rules.wants(&config.domain).iter().filter_map(|name| {
            let want = AttributeSource::of(config, name)?;
            Some((name.clone(), want))
        });
        let wants: Vec<(String, AttributeSource)> = wants.collect();
        let by_application =
            wants.iter().any(|(_, want)| matches!(want, AttributeSource::Application(_)));
        let wants_parts = by_application || config.cost.is_some();
        let rules = RuleSource::Rules(rules);
        Self { rules, edition, wants_parts, wants, written: PolicyCache::new() }
    }

    /// What clients are told of the limits that a ruling looked at, if there are any. Who has waited
    /// may have been judged by earlier rules.
    pub(super) fn policies(&self, ruling: &Ruling) -> Option<PolicyList<'_>> {
        match (self.rules.rules(), ruling.rules.rules()) {
            (Some(ours), Some(its)) if Arc::ptr_eq(ours, its) => self.written.of(ruling),
            _ => Some(PolicyList::New(Box::new(Policies::of(ruling)))),
        }
    }

    /// Adds to an ask what rules want to know of a request. It is filled where it is: an ask is
    /// too large to be moved about for every request.
    pub(super) fn fill<'r, S>(
        &'r self,
        config: &Config<S>,
        head: Head<'r>,
        ask: &mut Ask<'r>,
    ) -> Result<(), RefusalKind> {
        for (name, want) in &self.wants {
            match want.find(config, head)? {
                Some(Seen::Text(value)) => {
                    let pushed = ask.push(name, value);
                    pushed.map_err(|error| RefusalKind::Malformed(error.into()))?;
                }
                Some(Seen::Address(address)) => ask.set_ip(address),
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
        PeerLookup::Nowhere => return Err(RefusalKind::NoPeer),
    };
    let client = config.trust.client(peer, head.headers);
    client.map(Some).map_err(|error| RefusalKind::Malformed(error.into()))
}

/// The host that a request names. It may do so twice, in its target and in a header, if both say
/// the same.
fn named_host(head: Head<'_>) -> Result<Option<&str>, RefusalKind> {
    let malformed = |malformed| Err(RefusalKind::Malformed(malformed));
    let mut lines = head.headers.get_all(HOST).iter();
    let (header, second) = (lines.next(), lines.next());
    if second.is_some() {
        return malformed(Malformed::TwoHosts);
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
        return malformed(Malformed::TwoHosts);
    }
    Ok(Some(header))
}

/// A header; several lines are one value, as the list that they are.
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

/// The path as the client sent it, if rules and routers count its segments alike.
fn path(head: Head<'_>) -> Result<&str, RefusalKind> {
    let path = original_uri(head).path();
    if segments::are_kept(path.as_bytes()) {
        return Ok(path);
    }
    Err(RefusalKind::Malformed(Malformed::Segments))
}

/// The target as the client sent it. Routers within routers take a prefix off, by which no rule
/// should be escaped.
#[cfg(feature = "axum")]
fn original_uri(head: Head<'_>) -> &Uri {
    let original = head.extensions.get::<axum::extract::OriginalUri>();
    original.map_or(head.uri, |original| &original.0)
}

#[cfg(not(feature = "axum"))]
const fn original_uri(head: Head<'_>) -> &Uri {
    head.uri
}

/// The template of the route that axum found.
#[cfg(feature = "axum")]
fn route(head: Head<'_>) -> Option<&str> {
    head.extensions.get::<axum::extract::MatchedPath>().map(axum::extract::MatchedPath::as_str)
}

#[cfg(not(feature = "axum"))]
const fn route(_: Head<'_>) -> Option<&str> {
    None
}
