//! The peer of a connection, and attributes that only the application knows.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::Extensions;
use http::request::Parts;

/// The value of an attribute, borrowed from the request or built for it.
///
/// ```
/// use tollgate::http::AttributeText;
///
/// let borrowed: AttributeText = "alice".into();
/// let built: AttributeText = format!("tenant-{}", 7).into();
/// # drop((borrowed, built));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeText<'r>(pub(super) Cow<'r, [u8]>);

impl<'r> From<&'r str> for AttributeText<'r> {
    fn from(text: &'r str) -> Self {
        Self(Cow::Borrowed(text.as_bytes()))
    }
}

impl<'r> From<&'r String> for AttributeText<'r> {
    fn from(text: &'r String) -> Self {
        Self(Cow::Borrowed(text.as_bytes()))
    }
}

impl<'r> From<&'r [u8]> for AttributeText<'r> {
    fn from(bytes: &'r [u8]) -> Self {
        Self(Cow::Borrowed(bytes))
    }
}

impl From<String> for AttributeText<'_> {
    fn from(text: String) -> Self {
        Self(Cow::Owned(text.into_bytes()))
    }
}

impl From<Vec<u8>> for AttributeText<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Cow::Owned(bytes))
    }
}

/// Finds the value of an attribute in a request.
pub(super) type AttributeFn =
    Arc<dyn for<'r> Fn(&'r Parts) -> Option<AttributeText<'r>> + Send + Sync>;

/// Finds the peer of a request's connection.
pub(super) type PeerFn = Arc<dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync>;

/// Computes the cost of a request.
pub(super) type CostFn = Arc<dyn Fn(&Parts) -> u64 + Send + Sync>;

/// The peer of the connection that a request came over, as an extension of the request.
///
/// Set it if you write the server yourself. With the feature `axum`, `ConnectInfo<SocketAddr>` is found as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

impl<A: Into<SocketAddr>> From<A> for Peer {
    fn from(address: A) -> Self {
        Self(address.into())
    }
}

/// The place where the peer's address is found.
#[derive(Clone, Default)]
pub(super) enum PeerFrom {
    /// A [`Peer`] or axum's `ConnectInfo` in the extensions.
    #[default]
    Extensions,
    /// A function of the application.
    Application(PeerFn),
}

/// The result of looking for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerLookup {
    Address(IpAddr),
    /// The application says that there is none, for example on a unix socket.
    None,
    /// The extensions hold no address.
    Missing,
}

impl PeerFrom {
    pub(super) fn find(&self, extensions: &Extensions) -> PeerLookup {
        match self {
            Self::Application(find) => {
                find(extensions).map_or(PeerLookup::None, PeerLookup::Address)
            }
            Self::Extensions => {
                if let Some(Peer(address)) = extensions.get::<Peer>() {
                    return PeerLookup::Address(address.ip());
                }
                axum_peer(extensions).map_or(PeerLookup::Missing, PeerLookup::Address)
            }
        }
    }
}

impl fmt::Debug for PeerFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Extensions => "Extensions",
            Self::Application(_) => "Application(..)",
        })
    }
}

#[cfg(feature = "axum")]
fn axum_peer(extensions: &Extensions) -> Option<IpAddr> {
    let info = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>();
    info.map(|info| info.0.ip())
}

#[cfg(not(feature = "axum"))]
const fn axum_peer(_: &Extensions) -> Option<IpAddr> {
    None
}
