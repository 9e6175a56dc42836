//! The server state, which all listeners share: one limiter, one set of rules, one account of what happened.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tollgate::Ask;
use tollgate::{Admission, Limiter};

use crate::enum_text::text_enum;
use crate::envoy::EnvoyRuleSource;
use crate::failed_logins::FailedLogins;
use crate::listener::PerListener;
use crate::rules::RuleSource;
use crate::settings::Settings;
use crate::settings::value::WithoutRules;
use crate::store::AnyStore;
use crate::telemetry::counts::{Counts, Outcome, Protocol};
use crate::telemetry::events::Events;
use crate::telemetry::log::LevelHandle;
use crate::telemetry::refusals::{RefusalLog, RefusalRecord};
use crate::tls::Tls;

/// State that all listeners share.
#[derive(Debug)]
pub struct ServerState {
    /// Decides requests.
    pub limiter: Limiter<AnyStore>,
    /// Source of the rules.
    pub rules: RuleSource,
    /// Settings of the process.
    pub settings: Settings,
    /// Request counts.
    pub counts: Counts,
    /// Recent refusals.
    pub refusals: RefusalLog,
    /// Event streams.
    pub events: Arc<Events>,
    /// Log level.
    pub level: LevelHandle,
    /// The certificate of the listeners, if they speak TLS.
    pub tls: Option<Arc<Tls>>,
    /// Source of Envoy's rules.
    pub envoy: EnvoyRuleSource,
    /// Connections of each listener.
    pub connections: PerListener<Connections>,
    /// Wrong tokens.
    pub(crate) failed_logins: FailedLogins,
    draining: AtomicBool,
    next_request: AtomicU64,
    node: u64,
}

/// Connection counts of a listener.
#[derive(Debug, Default)]
pub struct Connections {
    /// Open now.
    pub open: AtomicU64,
    /// Served or being served.
    pub accepted: AtomicU64,
    /// Rejected: the listener was full.
    pub rejected: AtomicU64,
    /// Closed because their client took too long.
    pub timed_out: AtomicU64,
}

text_enum! {
    /// Readiness of a server for requests.
    pub enum Readiness {
        /// Ready for requests.
        Ready = "ready",
        /// Stopping.
        Draining = "draining",
        /// Rules are configured, and none were ever loaded.
        NoRules = "no rules",
    }
}

impl ServerState {
    pub(crate) fn new(
        limiter: Limiter<AnyStore>,
        settings: Settings,
        events: Arc<Events>,
        level: LevelHandle,
        tls: Option<Arc<Tls>>,
    ) -> Result<Self, tollgate::redis::ConnectError> {
        use std::hash::{BuildHasher as _, RandomState};
        Ok(Self {
            rules: RuleSource::new(&settings)?,
            envoy: EnvoyRuleSource::new(&settings),
            limiter,
            settings,
            counts: Counts::default(),
            refusals: RefusalLog::default(),
            events,
            level,
            tls,
            connections: PerListener::default(),
            failed_logins: FailedLogins::default(),
            draining: AtomicBool::new(false),
            next_request: AtomicU64::new(0),
            node: RandomState::new().hash_one(0_u8),
        })
    }

    /// Current readiness.
    pub fn readiness(&self) -> Readiness {
        if self.is_draining() {
            Readiness::Draining
        } else if self.rules.are_missing() || self.envoy.are_missing() {
            Readiness::NoRules
        } else {
            Readiness::Ready
        }
    }

    /// True if the server is stopping.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Reason why the last good rules cannot be saved in `--state-dir`.
    pub fn save_error(&self) -> Option<String> {
        self.rules.save_error().or_else(|| self.envoy.save_error())
    }

    /// Begins to drain: reports not ready from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// True if requests are refused because no rules were ever loaded.
    pub fn refuses_all(&self) -> bool {
        self.settings.without_rules == WithoutRules::Refuse && self.rules.are_missing()
    }

    /// True if Envoy's calls are refused because no rules were ever loaded.
    pub fn refuses_envoy(&self) -> bool {
        self.settings.without_rules == WithoutRules::Refuse && self.envoy.are_missing()
    }

    /// True if a call about this domain is refused because our own rules were never loaded: they may
    /// define the domain.
    pub(crate) fn refuses_envoy_in(&self, domain: &str) -> bool {
        self.refuses_all() && !self.limiter.envoy_rules().has_domain(domain)
    }

    /// A name for a request that brought none: sixteen digits that no other request of this fleet
    /// is likely to have.
    pub fn request_id(&self) -> String {
        let number = self.next_request.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}", self.node.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Counts the decision about a request, and records a refusal.
    pub fn record(&self, protocol: Protocol, ask: &Ask<'_>, admission: &Admission) {
        let ruling = admission.ruling();
        self.counts
            .count_decision(protocol, ruling, Outcome::of(admission), || self.limiter.rules());
        if !admission.passes() {
            let retry = admission.retry_after().map(ceil_millis);
            self.record_refusal(RefusalRecord::new(protocol, ask, ruling, retry), 1);
        }
    }

    /// Records a refusal that stands for `weight` of them, and publishes it.
    pub(crate) fn record_refusal(&self, mut refusal: RefusalRecord, weight: u64) {
        if refusal.at_us == 0 {
            // Blocks and repeated refusals do not ask the store.
            refusal.at_us = self.limiter.store().now().as_micros();
        }
        self.events.publish_refusal(&refusal);
        self.refusals.add(refusal, weight);
    }
}

/// Returns the duration in whole milliseconds, rounded up.
pub(crate) fn ceil_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}
