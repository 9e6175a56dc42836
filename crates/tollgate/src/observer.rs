//! Observers of events. No request waits for them.
//!
//! Events go through a bounded queue to a thread of their own. If observers are slower than
//! requests, the queue fills, and further events are dropped and counted.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

use tollgate_core::Cost;
use tollgate_core::rule::{Ask, Attribute};

use crate::decision::{Outage, Ruling};

/// Receives events, in order, on one thread.
///
/// An observer that panics still gets the next event. Up to 8 192 events wait for it;
/// [`Stats::dropped_events`](crate::Stats::dropped_events) counts those dropped beyond that.
///
/// ```
/// use std::sync::mpsc::{Sender, channel};
/// use tollgate::{EmbeddedStore, Event, Limit, Limiter, Observer, SlidingLog};
///
/// struct Refusals(Sender<u64>);
///
/// impl Observer for Refusals {
///     fn observe(&self, event: &Event) {
///         if let Event::Refused { ruling } = event {
///             let _ = self.0.send(ruling.version());
///         }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (sender, refusals) = channel();
/// let limiter = Limiter::builder(EmbeddedStore::new()).observer(Refusals(sender)).build();
/// let limit = Limit::new(SlidingLog, "1 per 1h".parse()?)?;
/// for _ in 0..2 {
///     let _ = limiter.check("k", &limit, 1).await?;
/// }
///
/// assert_eq!(refusals.recv()?, 0, "by the rules of version 0, which are none");
/// # Ok(()) }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Handles an event. If it takes too long, later events are dropped.
    fn observe(&self, event: &Event);

    /// True if the observer wants every request: [`Event::Admitted`], [`Event::Refused`] and
    /// [`Event::Degraded`]. The answer must not change. If no observer wants them, requests do not
    /// pay for them.
    fn hears_requests(&self) -> bool {
        true
    }

    /// True if the observer wants every ask with its ruling: [`Event::Asked`]. The answer must not
    /// change. If no observer wants them, nothing is copied.
    fn hears_asks(&self) -> bool {
        false
    }
}

impl<O: Observer> Observer for Arc<O> {
    fn observe(&self, event: &Event) {
        (**self).observe(event);
    }

    fn hears_requests(&self) -> bool {
        (**self).hears_requests()
    }

    fn hears_asks(&self) -> bool {
        (**self).hears_asks()
    }
}

/// An event.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A request passed.
    Admitted {
        /// The ruling.
        ruling: Ruling,
    },
    /// A request was refused.
    Refused {
        /// The ruling.
        ruling: Ruling,
    },
    /// A request was answered without the store.
    Degraded {
        /// The ruling.
        ruling: Ruling,
        /// The outage.
        outage: Outage,
    },
    /// An ask was decided, with its ruling. For recorders, which request it by
    /// [`Observer::hears_asks`].
    Asked {
        /// The ask.
        ask: RecordedAsk,
        /// The ruling on it.
        ruling: Ruling,
    },
    /// A shadow rule would have refused a request.
    ShadowRefused {
        /// The ruling of the shadow rules.
        ruling: Ruling,
    },
    /// A client was banned.
    Banned {
        /// The rule.
        rule: Arc<str>,
        /// The rule's domain.
        domain: Arc<str>,
        /// The key of the ban, as the store knows it.
        key: Box<[u8]>,
    },
    /// The rules for Envoy's calls were replaced.
    EnvoyRulesChanged {
        /// The version before.
        from: u64,
        /// The version after.
        to: u64,
    },
    /// An event of a lock.
    Lock(crate::LockEvent),
    /// The rules were replaced.
    RulesChanged {
        /// The version before.
        from: u64,
        /// The version after.
        to: u64,
    },
}

/// A copy of an ask.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedAsk {
    /// The domain.
    pub domain: Box<str>,
    /// The cost.
    pub cost: Cost,
    /// The attributes, in the order in which they were given. Each value is cut at
    /// [`RecordedAsk::MAX_VALUE`] bytes.
    pub attributes: Vec<(Box<str>, Box<[u8]>)>,
}

impl RecordedAsk {
    /// The longest value that is kept: enough for a person, and far less than an attacker may send.
    pub const MAX_VALUE: usize = 256;

    fn new(ask: &Ask<'_>) -> Self {
        let value = |value: Attribute<'_>| -> Box<[u8]> {
            match value {
                Attribute::Text(text) => text.get(..Self::MAX_VALUE).unwrap_or(text).into(),
                Attribute::Address(address) => address.to_string().into_bytes().into(),
            }
        };
        let attributes = ask.attributes().map(|(name, it)| (name.into(), value(it))).collect();
        Self { domain: ask.domain().into(), cost: ask.own_cost(), attributes }
    }
}

impl Event {
    const fn is_request(&self) -> bool {
        matches!(self, Self::Admitted { .. } | Self::Refused { .. } | Self::Degraded { .. })
    }
}

/// The most events that may wait. With a stuck observer, it lasts for some seconds at a thousand a
/// second.
const QUEUE: usize = 8_192;

/// The queue to all observers.
#[derive(Clone, Default)]
pub(crate) struct Observers {
    queue: Option<SyncSender<Event>>,
    /// True if an observer wants requests.
    requests: bool,
    /// True if an observer wants asks.
    asks: bool,
    dropped: Arc<AtomicU64>,
}

opaque_debug!(Observers: |it| dropped = it.dropped);

impl Observers {
    pub(crate) fn start(observers: Vec<Box<dyn Observer>>) -> Self {
        if observers.is_empty() {
            return Self::default();
        }
        let (queue, events) = sync_channel::<Event>(QUEUE);
        let requests = observers.iter().any(|observer| observer.hears_requests());
        let asks = observers.iter().any(|observer| observer.hears_asks());
        let run = move || {
            for event in events {
                for observer in &observers {
                    let hears = match event {
                        Event::Asked { .. } => observer.hears_asks(),
                        _ => !event.is_request() || observer.hears_requests(),
                    };
                    if !hears {
                        continue;
                    }
                    // One that panics must not silence the others, or itself for good.
                    let told = std::panic::AssertUnwindSafe(|| observer.observe(&event));
                    if let Err(thrown) = std::panic::catch_unwind(told) {
                        discard(thrown);
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("tollgate-observers".into()).spawn(run);
        Self { queue: thread.is_ok().then_some(queue), requests, asks, dropped: Arc::default() }
    }

    /// Sends an event. It is built only if there is an observer.
    #[inline]
    pub(crate) fn tell(&self, event: impl FnOnce() -> Event) {
        if let Some(queue) = &self.queue
            && queue.try_send(event()).is_err()
        {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends the events of a request, if an observer wants requests or asks.
    #[inline]
    pub(crate) fn tell_request(&self, ask: Option<&Ask<'_>>, ruling: &Ruling) {
        if self.asks || self.requests {
            self.send_request(ask, ruling);
        }
    }

    fn send_request(&self, ask: Option<&Ask<'_>>, ruling: &Ruling) {
        if let Some(ask) = ask.filter(|_| self.asks) {
            let ask = RecordedAsk::new(ask);
            self.tell(|| Event::Asked { ask, ruling: ruling.clone() });
        }
        if self.requests {
            self.tell(|| {
                let ruling = ruling.clone();
                match ruling.outage() {
                    Some(outage) => Event::Degraded { ruling, outage },
                    None if ruling.passes() => Event::Admitted { ruling },
                    None => Event::Refused { ruling },
                }
            });
        }
    }

    /// The number of events that were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Drops the payload of a panic. If that panics in turn, the second payload is leaked, as its drop
/// could panic for ever.
fn discard(thrown: Box<dyn Any + Send>) {
    let dropped = std::panic::AssertUnwindSafe(move || drop(thrown));
    if let Err(again) = std::panic::catch_unwind(dropped) {
        std::mem::forget(again);
    }
}
