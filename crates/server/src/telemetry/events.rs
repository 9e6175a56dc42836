//! Events of the server, as a stream of the admin API.
//!
//! Nothing waits for a subscriber. A slow one misses events and gets their number. There are at most
//! [`MAX_SUBSCRIBERS`], and at most [`REFUSALS`] refusals are published per second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::broadcast;
use tollgate::{Event, Observer};

use super::refusals::RefusalRecord;
use crate::local_limit::LocalLimit;

/// Event streams that may be open at a time.
pub const MAX_SUBSCRIBERS: usize = 32;

/// Events that may wait for a slow subscriber.
const WAITING: usize = 1_024;

/// Refusals that are published per second.
pub const REFUSALS: u64 = 200;

/// One event as it is sent: a name and an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventMessage {
    /// Its kind.
    pub name: &'static str,
    /// A JSON object, on one line.
    pub data: Arc<str>,
}

/// Publishes events to subscribers.
#[derive(Debug)]
pub struct Events {
    sender: broadcast::Sender<EventMessage>,
    subscribers: Arc<AtomicUsize>,
    refusal_rate: LocalLimit,
    /// The version of the rules that apply, for events without a version of their own.
    rules_version: AtomicU64,
}

/// A subscriber, until dropped.
#[derive(Debug)]
pub struct Subscriber {
    /// Receives the events.
    pub receiver: broadcast::Receiver<EventMessage>,
    subscribers: Arc<AtomicUsize>,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            sender: broadcast::Sender::new(WAITING),
            subscribers: Arc::default(),
            refusal_rate: LocalLimit::new(1, REFUSALS, Duration::from_secs(1)),
            rules_version: AtomicU64::new(0),
        }
    }
}

impl Events {
    /// Adds a subscriber, unless there are too many.
    pub fn subscribe(&self) -> Option<Subscriber> {
        let more = |count: usize| (count < MAX_SUBSCRIBERS).then(|| count.saturating_add(1));
        self.subscribers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        let subscribers = Arc::clone(&self.subscribers);
        Some(Subscriber { receiver: self.sender.subscribe(), subscribers })
    }

    /// Publishes an event, which is built only for subscribers.
    pub fn publish<T: Serialize>(&self, name: &'static str, data: impl FnOnce() -> T) {
        if self.sender.receiver_count() > 0
            && let Ok(data) = serde_json::to_string(&data())
        {
            // The last subscriber may have left meanwhile.
            let _ = self.sender.send(EventMessage { name, data: data.into() });
        }
    }

    /// Logs and publishes that `rules` were rejected while `version` applies.
    pub(crate) fn reject(&self, name: &'static str, rules: &str, error: &str, version: u64) {
        let instead =
            if version == 0 { "there are none yet" } else { "the previous ones still apply" };
        tracing::error!(error, version, "rejected {rules}; {instead}");
        self.publish(name, || serde_json::json!({ "error": error, "version": version }));
    }

    /// Publishes a refusal, unless there are too many.
    pub fn publish_refusal(&self, refusal: &RefusalRecord) {
        if self.sender.receiver_count() > 0 && self.has_room() {
            self.publish("refused", || refusal);
        }
    }

    fn has_room(&self) -> bool {
        self.refusal_rate.take("refusals")
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.subscribers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Forwards the events of the limiter: bans, shadow refusals, new rules.
#[derive(Debug)]
pub struct EventForwarder(pub Arc<Events>);

impl Observer for EventForwarder {
    fn observe(&self, event: &Event) {
        match event {
            Event::Banned { rule, domain, .. } => {
                tracing::info!(rule = &**rule, domain = &**domain, "banned a client");
                let version = self.0.rules_version.load(Ordering::Relaxed);
                self.0.publish("banned", || of_rule(rule, domain, version));
            }
            Event::ShadowRefused { ruling } => {
                let by = ruling.refusing().and_then(|finding| {
                    let own = finding.rule.map(|rule| (rule.name(), rule.domain()));
                    own.or_else(|| finding.envoy.map(|rule| (rule.path(), rule.domain())))
                });
                if let Some((rule, domain)) = by.filter(|_| self.0.has_room()) {
                    self.0.publish("shadow-refused", || of_rule(rule, domain, ruling.version()));
                }
            }
            Event::RulesChanged { from, to } => {
                self.0.rules_version.store(*to, Ordering::Relaxed);
                self.0.publish("rules", || serde_json::json!({ "from": from, "to": to }));
            }
            Event::EnvoyRulesChanged { from, to } => {
                self.0.publish("envoy-rules", || serde_json::json!({ "from": from, "to": to }));
            }
            _ => {}
        }
    }

    fn hears_requests(&self) -> bool {
        false
    }
}

fn of_rule(rule: &str, domain: &str, version: u64) -> serde_json::Value {
    serde_json::json!({ "rule": rule, "domain": domain, "rules_version": version })
}
