//! The layer that limits incoming requests, and its configuration.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use bytes::Bytes;
use http::request::Parts;
use http::{Extensions, Response};
use tollgate_core::rule::{Ask, Judgement};
use tollgate_core::{Cost, Store};
use tollgate_embedded::EmbeddedStore;
use tower_layer::Layer;

use super::ask::{Head, RequestReader};
use super::attributes::{AttributeFn, AttributeText, CostFn, PeerFrom};
use super::client::Trust;
use super::fields::{LegacyReset, RateLimitFields, ResponseFields, add_retry_after};
use super::inner_call::record_ruling;
use super::refusal::{Refusal, RefusalKind, RespondFn};
use super::request_permits::{BodyPermits, RequestPermits};
use super::rulings::{LimiterDomain, Rulings};
#[cfg(feature = "macros")]
use super::scope::ScopeLayer;
use super::service::LimitService;
use super::wait_limit::{WaitLimit, WaitSlot};
use crate::decision::{Intent, Plan};
#[cfg(feature = "macros")]
use crate::function::AnyLimiter;
use crate::random;
use crate::wait::ReservedPlace;
use crate::{Admission, Limiter, Permits, Reason, Ruling};

/// The most jitter: a day. A longer time would turn clients away rather than spread them out.
const MAX_JITTER: Duration = Duration::from_secs(24 * 60 * 60);

/// Limits incoming requests by the rules of a domain. Clones share everything.
///
/// Rules can look at these attributes:
///
/// | Attribute | Value |
/// |---|---|
/// | `method`, `host`, `path` | of the request, in canonical form; 400 if there is none |
/// | `route` | axum's template of the route, such as `/orders/{id}` (feature `axum`) |
/// | `ip` | the client's address, see [`LimitLayer::trust`] |
/// | `header.<name>` | a header; several lines are joined by commas |
/// | `user`, … | the result of [`LimitLayer::attribute`] |
///
/// `path` is the path that the client sent, matched with the templates of the *rules*. `route` is
/// axum's own template, compared byte for byte. Limit by `path` if your rules name the routes, and by
/// `route` (`by: [route]`) to count each of the application's routes without naming them. Layers
/// added with `Router::layer` and `route_layer` see the route; a layer around a whole router does not.
///
/// Requests that pass carry a mark. An inner layer with the same limiter and domain does not charge
/// them again.
///
/// ```
/// use http::request::Parts;
/// use tollgate::http::{LimitLayer, Trust};
/// use tollgate::{EmbeddedStore, Limiter};
///
/// #[derive(Clone)]
/// struct Account { id: String } // set by the layer that checked the password
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let layer = LimitLayer::new(Limiter::new(EmbeddedStore::new()), "shop")
///     .trust(Trust::proxies(["10.0.0.0/8"])?)
///     .attribute("user", |request| Some(request.extensions.get::<Account>()?.id.as_str().into()))
///     .attribute("service", |_| Some("orders".into()));
/// # Ok(()) }
/// ```
pub struct LimitLayer<S = EmbeddedStore> {
    config: Arc<Config<S>>,
}

/// The configuration of a layer.
pub(super) struct Config<S> {
    pub(super) limiter: Limiter<S>,
    pub(super) domain: Arc<str>,
    limiter_domain: LimiterDomain,
    leaves_rulings: bool,
    pub(super) trust: Trust,
    pub(super) peer: PeerFrom,
    pub(super) attributes: Vec<(String, AttributeFn)>,
    pub(super) cost: Option<CostFn>,
    respond: Option<RespondFn>,
    legacy: Option<LegacyReset>,
    ratelimit_fields: RateLimitFields,
    /// The limiter for functions behind the layer, if it provides one.
    #[cfg(feature = "macros")]
    pub(super) provides: Option<Arc<dyn AnyLimiter>>,
    jitter: Duration,
    patience: Duration,
    wait_limit: WaitLimit,
    reader: ArcSwap<RequestReader>,
}

impl<S: Store + 'static> LimitLayer<S> {
    /// A layer that asks this limiter in this domain, and trusts no proxy.
    pub fn new(limiter: Limiter<S>, domain: impl Into<Arc<str>>) -> Self {
        let domain = domain.into();
        let config = Config {
            limiter_domain: LimiterDomain::new(limiter.identity(), &domain),
            limiter,
            domain,
            leaves_rulings: false,
            trust: Trust::nobody(),
            peer: PeerFrom::default(),
            attributes: Vec::new(),
            cost: None,
            respond: None,
            legacy: None,
            ratelimit_fields: RateLimitFields::default(),
            #[cfg(feature = "macros")]
            provides: None,
            jitter: Duration::ZERO,
            patience: Duration::ZERO,
            wait_limit: WaitLimit::default(),
            reader: ArcSwap::from_pointee(RequestReader::none()),
        };
        Self { config: Arc::new(config) }
    }

    /// Trusts these proxies about the client's address. By default the client is the peer of the
    /// connection.
    pub fn trust(self, trust: Trust) -> Self {
        self.edit(|config| config.trust = trust)
    }

    /// Finds the peer's address in the extensions of a request. By default that is a
    /// [`Peer`](super::Peer), or (feature `axum`) a `ConnectInfo<SocketAddr>`. `None` means that
    /// there is no address: rules by `ip` then follow their `on-missing`.
    ///
    /// For tonic: `layer.peer(|it| Some(it.get::<TcpConnectInfo>()?.remote_addr()?.ip()))`.
    pub fn peer(
        self,
        find: impl Fn(&Extensions) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> Self {
        self.edit(|config| config.peer = PeerFrom::Application(Arc::new(find)))
    }

    /// Adds an attribute that only the application knows, such as the user or the tenant. The
    /// function runs only if a rule looks at the attribute. It takes precedence over the layer's own
    /// attribute of that name, and over an earlier function for it.
    ///
    /// Return a *verified* value: a limit by a user name that anybody can claim limits nobody.
    pub fn attribute(
        self,
        name: impl Into<String>,
        find: impl for<'r> Fn(&'r Parts) -> Option<AttributeText<'r>> + Send + Sync + 'static,
    ) -> Self {
        let name = name.into();
        self.edit(|config| {
            config.attributes.retain(|(earlier, _)| *earlier != name);
            config.attributes.push((name, Arc::new(find)));
        })
    }

    /// Sets the cost of a request; 1 by default.
    pub fn cost(self, cost: impl Fn(&Parts) -> Cost + Send + Sync + 'static) -> Self {
        self.edit(|config| config.cost = Some(Arc::new(cost)))
    }

    /// Answers refusals in the application's words. `Retry-After` and the other fields are added
    /// to whatever it says.
    ///
    /// ```
    /// # use tollgate::{EmbeddedStore, Limiter, http::LimitLayer};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let limiter = Limiter::new(EmbeddedStore::new());
    /// let layer = LimitLayer::new(limiter, "shop").refuse_with(|refusal| {
    ///     let mut response = http::Response::new("Too fast. Take a breath.".into());
    ///     *response.status_mut() = refusal.status();
    ///     response
    /// });
    /// # }
    /// ```
    pub fn refuse_with(
        self,
        respond: impl Fn(&Refusal<'_>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.edit(|config| config.respond = Some(Arc::new(respond)))
    }

    /// Also adds `X-RateLimit-Limit`, `-Remaining` and `-Reset`, for older clients.
    pub fn legacy_fields(self, legacy: LegacyReset) -> Self {
        self.edit(|config| config.legacy = Some(legacy))
    }

    /// Sets which responses carry the `RateLimit` fields; all of them by default.
    pub fn ratelimit_fields(self, fields: RateLimitFields) -> Self {
        self.edit(|config| config.ratelimit_fields = fields)
    }

    /// Leaves the ruling in requests that pass, as [`Rulings`](super::Rulings) in their extensions, for
    /// handlers that look at it.
    pub fn with_rulings(self) -> Self {
        self.edit(|config| config.leaves_rulings = true)
    }

    /// Lets functions under `#[limit]` behind this layer find its limiter, its domain and the request,
    /// whose head is copied for them. A rule that this layer has charged is not charged again by a
    /// function that names it.
    #[cfg(feature = "macros")]
    pub fn with_scope(self) -> Self {
        self.edit(|config| {
            config.limiter.note_scopes();
            config.provides = Some(Arc::new(config.limiter.clone()));
        })
    }

    /// A layer that judges nothing and only provides the scope of [`LimitLayer::with_scope`], with
    /// this layer's configuration.
    #[cfg(feature = "macros")]
    pub fn only_scope(self) -> ScopeLayer<S> {
        ScopeLayer::of(self.config)
    }

    /// Adds a random time, up to this one, to the times in each response, so that clients that were
    /// refused together do not come back together. Zero by default; at most a day.
    ///
    /// `Retry-After`, each `t`, `X-RateLimit-Reset` and gRPC's `RetryInfo` of one response get the same
    /// delay. None is ever earlier than the exact time, and no `t` later than `Retry-After`.
    pub fn jitter(self, most: Duration) -> Self {
        self.edit(|config| config.jitter = most.min(MAX_JITTER))
    }

    /// Lets requests wait up to this long for a place in the future instead of refusing them. Zero by
    /// default.
    ///
    /// Leaky queue and meter, token bucket and smooth limits grant such places. Of several limits one
    /// grants the place, and the others must pass at once. A request whose place would come later is
    /// refused at once. A client that goes away while it waits gives its place back, as far as nobody
    /// is behind it.
    ///
    /// Keep it shorter than the time-outs of clients and proxies.
    ///
    /// ```
    /// # use tollgate::{EmbeddedStore, Limiter, http::LimitLayer};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let limiter = Limiter::new(EmbeddedStore::new());
    /// use std::time::Duration;
    ///
    /// let layer = LimitLayer::new(limiter, "shop").patience(Duration::from_secs(2)).max_waiting(500);
    /// # }
    /// ```
    pub fn patience(self, patience: Duration) -> Self {
        self.edit(|config| config.patience = patience)
    }

    /// Sets how many requests may wait at once, including those that the store has not answered yet;
    /// 6000 by default. Further requests pass at once or are refused.
    pub fn max_waiting(self, most: usize) -> Self {
        self.edit(|config| config.wait_limit = WaitLimit::of(most))
    }

    fn edit(mut self, edit: impl FnOnce(&mut Config<S>)) -> Self {
        let config = Arc::make_mut(&mut self.config);
        // A reader refers to the attribute functions by their index.
        config.reader = ArcSwap::from_pointee(RequestReader::none());
        edit(config);
        self
    }
}

/// The answer to a request, and the place in the future that it grants.
pub(super) struct BookedAdmission {
    admission: Admission,
    booking: ReservedPlace,
    wait_slot: Option<WaitSlot>,
}

impl BookedAdmission {
    /// Waits for that place. Dropping the future gives it back.
    pub(super) async fn wait(self) -> Admission {
        let _wait_slot = self.wait_slot;
        self.booking.wait().await;
        self.admission
    }
}

/// The result of judging a request within the call.
pub(super) enum LocalOutcome {
    /// The ruling is where the caller wanted it.
    Decided(Permits),
    Unjudged(RefusalKind),
    /// The request was granted a place in the future. Boxed, because few are.
    Granted(Box<BookedAdmission>),
    /// The store takes a round trip.
    Remote,
}

/// The response fields and permits of a request that passes.
pub(super) struct PassedRequest {
    pub(super) fields: ResponseFields,
    pub(super) permits: BodyPermits,
}

impl<S: Store + 'static> Config<S> {
    /// The reader of the rules that apply now.
    pub(super) fn reader(&self) -> Guard<Arc<RequestReader>> {
        // Read before the rules: the reader may then have later rules than its edition says, and never
        // earlier ones.
        let edition = self.limiter.shared.edition.load(Ordering::Acquire);
        let reader = self.reader.load();
        if reader.edition == edition {
            return reader;
        }
        let reader = Arc::new(RequestReader::new(self, self.limiter.rules(), edition));
        self.reader.store(Arc::clone(&reader));
        Guard::from_inner(reader)
    }

    /// True if this limiter has judged the request in this domain already.
    pub(super) fn has_judged(&self, extensions: &Extensions) -> bool {
        Rulings::has(extensions, &self.limiter_domain)
    }

    /// Asks the limiter about a request, unless the request is malformed.
    pub(super) async fn judge(
        &self,
        reader: &RequestReader,
        head: Head<'_>,
    ) -> Result<BookedAdmission, RefusalKind> {
        let mut ask = Ask::new(&self.domain);
        reader.fill(self, head, &mut ask)?;
        let (wait_slot, patience) = self.wait_slot();
        let (admission, booking) =
            self.limiter.admit_with_place(&ask, patience, &reader.rules).await;
        Ok(BookedAdmission { admission, booking, wait_slot })
    }

    /// Decides within the call, on a store in this process. A future would have to be moved, which
    /// takes longer than running it.
    /// The ruling is written in place, because it is too large to be moved.
    pub(super) fn judge_now(
        &self,
        reader: &RequestReader,
        head: Head<'_>,
        ruling: &mut Option<Ruling>,
    ) -> LocalOutcome {
        if self.limiter.store().is_remote() {
            return LocalOutcome::Remote;
        }
        let mut ask = Ask::new(&self.domain);
        if let Err(kind) = reader.fill(self, head, &mut ask) {
            return LocalOutcome::Unjudged(kind);
        }
        let (wait_slot, patience) = self.wait_slot();
        let mut judgement = Judgement::UnknownDomain;
        self.limiter.judge(&ask, &reader.rules, &mut judgement);
        let intent = Intent::Charge { patience };
        let mut plan = Plan::empty(&reader.rules, intent, Reason::NoRule);
        self.limiter.plan(&judgement, &mut plan);
        let filled = ruling.insert(Ruling::of(&plan));
        let Some(permits) = self.limiter.run_now(&plan, Some(&ask), filled) else {
            return LocalOutcome::Remote;
        };
        if filled.wait().is_zero() {
            return LocalOutcome::Decided(permits);
        }
        let booking = self.limiter.reserve_place(&plan, filled);
        let admission = Admission { ruling: filled.clone(), permits };
        LocalOutcome::Granted(Box::new(BookedAdmission { admission, booking, wait_slot }))
    }

    /// Reserves a slot to wait in, and the patience. The patience is zero if too many wait already.
    fn wait_slot(&self) -> (Option<WaitSlot>, Duration) {
        if self.patience.is_zero() {
            return (None, Duration::ZERO);
        }
        let slot = self.wait_limit.reserve();
        let patience = if slot.is_some() { self.patience } else { Duration::ZERO };
        (slot, patience)
    }

    /// The jitter of one response.
    fn delay(&self) -> Duration {
        random::within(&(Duration::ZERO..=self.jitter))
    }

    /// Prepares a request that passes: its fields, and the ruling in its extensions.
    pub(super) fn pass(
        &self,
        ruling: &Ruling,
        permits: Permits,
        reader: &RequestReader,
        extensions: &mut Extensions,
    ) -> PassedRequest {
        let fields = self.fields(ruling, reader, self.delay());
        record_ruling(self.limiter.identity(), &self.domain, ruling);
        let left = self.leaves_rulings || self.limiter.has_scopes();
        Rulings::leave(extensions, &self.limiter_domain, left.then(|| Arc::new(ruling.clone())));
        PassedRequest { fields, permits: RequestPermits::leave(extensions, permits) }
    }

    /// The response to a request that does not pass.
    pub(super) fn refuse(
        &self,
        ruling: &Ruling,
        reader: &RequestReader,
        parts: &Parts,
    ) -> Response<Bytes> {
        let later = self.delay();
        let refusal = Refusal::judged(ruling, later, parts);
        self.respond(&refusal, self.fields(ruling, reader, later))
    }

    /// The response to a request that the limiter could not be asked about.
    pub(super) fn unjudged(&self, kind: RefusalKind, parts: &Parts) -> Response<Bytes> {
        self.respond(&Refusal::unjudged(kind, parts), ResponseFields::default())
    }

    /// The fields of a ruling, with `later` added to every time.
    #[inline]
    fn fields(&self, ruling: &Ruling, reader: &RequestReader, later: Duration) -> ResponseFields {
        if self.ratelimit_fields.apply_to(ruling.verdict())
            && let Some(policies) = reader.policies(ruling)
        {
            return ResponseFields::new(ruling, &policies, self.legacy, later);
        }
        ResponseFields::default()
    }

    fn respond(&self, refusal: &Refusal<'_>, fields: ResponseFields) -> Response<Bytes> {
        let mut response = match &self.respond {
            Some(respond) => respond(refusal),
            None => refusal.respond(),
        };
        add_retry_after(refusal.retry_after(), response.headers_mut());
        fields.add_to(response.headers_mut());
        response
    }
}

impl<Svc, S> Layer<Svc> for LimitLayer<S> {
    type Service = LimitService<Svc, S>;

    fn layer(&self, inner: Svc) -> Self::Service {
        LimitService::new(inner, Arc::clone(&self.config))
    }
}

impl<S> Clone for LimitLayer<S> {
    fn clone(&self) -> Self {
        Self { config: Arc::clone(&self.config) }
    }
}

impl<S> fmt::Debug for LimitLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitLayer").field("config", &self.config).finish()
    }
}

impl<S> Clone for Config<S> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            domain: Arc::clone(&self.domain),
            limiter_domain: self.limiter_domain.clone(),
            leaves_rulings: self.leaves_rulings,
            trust: self.trust.clone(),
            peer: self.peer.clone(),
            attributes: self.attributes.clone(),
            cost: self.cost.clone(),
            respond: self.respond.clone(),
            legacy: self.legacy,
            ratelimit_fields: self.ratelimit_fields,
            #[cfg(feature = "macros")]
            provides: self.provides.clone(),
            jitter: self.jitter,
            patience: self.patience,
            wait_limit: self.wait_limit.clone(),
            reader: ArcSwap::from_pointee(RequestReader::none()),
        }
    }
}

impl<S> fmt::Debug for Config<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attributes: Vec<_> = self.attributes.iter().map(|(name, _)| name).collect();
        f.debug_struct("Config")
            .field("domain", &self.domain)
            .field("trust", &self.trust)
            .field("peer", &self.peer)
            .field("attributes", &attributes)
            .finish_non_exhaustive()
    }
}
