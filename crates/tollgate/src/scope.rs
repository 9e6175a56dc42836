//! Scopes: in them, functions under `#[limit]` find a limiter and the current request. Functions
//! under `#[lock]` find their locks in [`with_locks`].
//!
//! A scope lasts while a future or a closure runs, on any thread. Tasks that you spawn do not
//! inherit it: pass them [`Scope::current`]. There is no limiter for the whole process. Outside of
//! every scope, a function without a `limiter` of its own is refused.
//!
//! ```
//! use tollgate::{EmbeddedStore, Limiter, Refused, limit, scope};
//!
//! #[limit("2 per 1h")]
//! async fn hello() -> Result<&'static str, Refused> {
//!     Ok("hello")
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let limiter = Limiter::new(EmbeddedStore::new());
//! assert_eq!(scope::with(&limiter, hello()).await.unwrap(), "hello");
//! assert!(scope::with(&limiter, hello()).await.is_ok());
//! assert!(scope::with(&limiter, hello()).await.is_err());
//!
//! let outside = hello().await.unwrap_err();
//! assert!(outside.to_string().contains("no limiter is in scope"));
//! # }
//! ```

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use tokio::task::futures::TaskLocalFuture;
use tollgate_core::{Store, lock_mutex};

use crate::attribute_value::AttributeValue;
use crate::function::AnyLimiter;
pub use crate::locks::scope::{LockScope, with_locks};
use crate::{Limiter, Ruling};

/// Runs a future in the scope of this limiter.
pub fn with<S: Store + 'static, F: Future>(limiter: &Limiter<S>, future: F) -> ScopedFuture<F> {
    Scope::new(limiter).run(future)
}

/// Calls a function in the scope of this limiter.
///
/// ```
/// use tollgate::{EmbeddedStore, Limiter, Refused, limit, scope};
///
/// #[limit("1 per 1h", by = name)]
/// fn greet(name: &str) -> Result<String, Refused> {
///     Ok(format!("hello {name}"))
/// }
///
/// let limiter = Limiter::new(EmbeddedStore::new());
/// scope::call(&limiter, || {
///     assert_eq!(greet("alice").unwrap(), "hello alice");
///     assert!(greet("alice").is_err());
///     assert!(greet("bob").is_ok());
/// });
/// ```
pub fn call<S: Store + 'static, T>(limiter: &Limiter<S>, function: impl FnOnce() -> T) -> T {
    Scope::new(limiter).call(function)
}

/// A limiter, and the attributes of the current request. Clones are cheap.
///
/// The layers of `tollgate::http` create one for each request. For a request of another kind, or in
/// a test, set the attributes yourself:
///
/// ```
/// use tollgate::scope::Scope;
/// use tollgate::{EmbeddedStore, Limiter, Refused, limit};
///
/// #[limit("1 per 1h", by = (ip, attribute("user")))]
/// fn order() -> Result<(), Refused> {
///     Ok(())
/// }
///
/// let limiter = Limiter::new(EmbeddedStore::new());
/// let of = |user: &str| Scope::new(&limiter).ip([203, 0, 113, 9].into()).attribute("user", user);
/// assert!(of("alice").call(order).is_ok());
/// assert!(of("alice").call(order).is_err());
/// assert!(of("bob").call(order).is_ok());
/// ```
#[derive(Clone)]
pub struct Scope {
    inner: Arc<ScopeInner>,
}

#[derive(Clone)]
struct ScopeInner {
    limiter: Arc<dyn AnyLimiter>,
    domain: Option<Arc<str>>,
    ip: Option<IpAddr>,
    attributes: Vec<(String, Vec<u8>)>,
    request: Option<Arc<dyn RequestAttributes>>,
    recorded: Arc<Mutex<Vec<RecordedRuling>>>,
}

/// The decision of an inner layer about the request.
struct RecordedRuling {
    limiter: u128,
    domain: Arc<str>,
    ruling: Ruling,
}

/// The most rulings that are recorded for one request: more than any stack of layers makes.
#[cfg(feature = "tower")]
const MAX_RECORDED: usize = 16;

/// The attributes and rulings of a request.
pub(crate) trait RequestAttributes: Send + Sync {
    /// The value of an attribute; `None` if the request has none.
    fn find(&self, name: &str) -> Result<Option<AttributeValue<'_>>, AttributeError>;

    /// The ruling of this limiter in this domain on the request.
    fn ruling(&self, limiter: u128, domain: &str) -> Option<&Ruling>;
}

/// The reason why the value of an attribute is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "tower"), expect(dead_code, reason = "without HTTP no peer is missing"))]
pub(crate) enum AttributeError {
    /// No layer or scope provides it.
    Unknown,
    /// The request is malformed, with the reason.
    Malformed(String),
    /// The server does not provide the address of its peer.
    NoPeer,
}

impl Scope {
    /// The scope of a limiter, without a request.
    pub fn new<S: Store + 'static>(limiter: &Limiter<S>) -> Self {
        let limiter: Arc<dyn AnyLimiter> = Arc::new(limiter.clone());
        let inner = ScopeInner {
            limiter,
            domain: None,
            ip: None,
            attributes: Vec::new(),
            request: None,
            recorded: Arc::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The scope of a request that went through a layer.
    #[cfg(feature = "tower")]
    pub(crate) fn of_request(
        limiter: Arc<dyn AnyLimiter>,
        domain: &Arc<str>,
        request: Arc<dyn RequestAttributes>,
    ) -> Self {
        let inner = ScopeInner {
            limiter,
            domain: Some(domain).filter(|domain| !domain.is_empty()).map(Arc::clone),
            ip: None,
            attributes: Vec::new(),
            request: Some(request),
            recorded: Arc::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Sets the domain in which a `rule` is looked up, unless the attribute names one.
    pub fn domain(mut self, domain: impl Into<Arc<str>>) -> Self {
        Arc::make_mut(&mut self.inner).domain = Some(domain.into());
        self
    }

    /// Sets the client's address.
    pub fn ip(mut self, address: IpAddr) -> Self {
        Arc::make_mut(&mut self.inner).ip = Some(address.to_canonical());
        self
    }

    /// Sets another attribute. A later value replaces an earlier one of the same name. The name of
    /// a header is `header.<name>`.
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        let name = name.into();
        let attributes = &mut Arc::make_mut(&mut self.inner).attributes;
        attributes.retain(|(earlier, _)| *earlier != name);
        attributes.push((name, value.into()));
        self
    }

    /// The current scope, to pass to a task that you spawn.
    ///
    /// ```
    /// use tollgate::scope::{self, Scope};
    /// use tollgate::{EmbeddedStore, Limiter, Refused, limit};
    ///
    /// #[limit("1 per 1h")]
    /// async fn mail() -> Result<(), Refused> { Ok(()) }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// scope::with(&Limiter::new(EmbeddedStore::new()), async {
    ///     let scope = Scope::current().unwrap();
    ///     assert!(tokio::spawn(scope.run(mail())).await.unwrap().is_ok());
    ///     assert!(tokio::spawn(mail()).await.unwrap().is_err(), "a task is in no scope by itself");
    /// }).await;
    /// # }
    /// ```
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Option::clone).ok().flatten()
    }

    /// Runs a future in this scope.
    pub fn run<F: Future>(self, future: F) -> ScopedFuture<F> {
        CURRENT.scope(Some(self), future)
    }

    /// Calls a function in this scope.
    pub fn call<T>(self, function: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(Some(self), function)
    }

    pub(crate) fn limiter(&self) -> &dyn AnyLimiter {
        &*self.inner.limiter
    }

    pub(crate) fn own_domain(&self) -> Option<&str> {
        self.inner.domain.as_deref()
    }

    /// Finds an attribute: first among those set here, then in the request.
    pub(crate) fn find(&self, name: &str) -> Result<Option<AttributeValue<'_>>, AttributeError> {
        if let (Some(address), "ip") = (self.inner.ip, name) {
            return Ok(Some(AttributeValue::Address(address)));
        }
        let said = self.inner.attributes.iter().find(|(known, _)| known == name);
        if let Some((_, value)) = said {
            return Ok(Some(AttributeValue::Text(value.into())));
        }
        self.inner
            .request
            .as_ref()
            .map_or(Err(AttributeError::Unknown), |request| request.find(name))
    }

    /// True if a layer with this limiter and domain has let the request through, and `holds` is
    /// true of its ruling.
    pub(crate) fn judged(
        &self,
        limiter: u128,
        domain: &str,
        mut holds: impl FnMut(&Ruling) -> bool,
    ) -> bool {
        let request = self.inner.request.as_ref();
        if let Some(ruling) = request.and_then(|request| request.ruling(limiter, domain)) {
            return holds(ruling);
        }
        let recorded = lock_mutex(&self.inner.recorded);
        let same = |note: &&RecordedRuling| note.limiter == limiter && *note.domain == *domain;
        recorded.iter().find(same).is_some_and(|note| holds(&note.ruling))
    }

    /// Records a layer's decision for functions inside it. A scope without a request records
    /// nothing: it may see many requests, and a decision on one says nothing about the next.
    #[cfg(feature = "tower")]
    pub(crate) fn note(limiter: u128, domain: &Arc<str>, ruling: &Ruling) {
        let record = |current: &Option<Self>| {
            let Some(scope) = current.as_ref().filter(|scope| scope.inner.request.is_some()) else {
                return;
            };
            let mut recorded = lock_mutex(&scope.inner.recorded);
            if recorded.len() < MAX_RECORDED {
                let (domain, ruling) = (Arc::clone(domain), ruling.clone());
                recorded.push(RecordedRuling { limiter, domain, ruling });
            }
        };
        // Without a scope there is nothing to record for.
        let _ = CURRENT.try_with(record);
    }
}

opaque_debug! {
    Scope: |it| domain = it.inner.domain,
    attributes = it.inner.attributes.iter().map(|(name, _)| name).collect::<Vec<_>>(),
    request = it.inner.request.is_some()
}

tokio::task_local! {
    static CURRENT: Option<Scope>;
}

/// A future that runs in a scope.
pub type ScopedFuture<F> = TaskLocalFuture<Option<Scope>, F>;
