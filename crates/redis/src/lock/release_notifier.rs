//! The release notifier: one subscriber connection that announces releases, for all locks of a store.
//!
//! It is opened for the first listener, and kept. A task on the thread of the store owns it. When a
//! channel gains its first listener or loses its last, the task subscribes or unsubscribes, many
//! channels at a time. Releases may be missed
//! while the connection is down, so every listener is notified once it is back.
//!
//! The listeners themselves, and what they do then, are in `tollgate::Locks`.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout, timeout_at};
use tollgate_core::StoreError;
use tollgate_core::lock::{LockName, ReleaseNotifier};

use super::names;
use crate::error::Cause;
use crate::link::{ConnectionClosed, Link, SubscriberConnection};
use crate::{RedisStore, clock, random};
use tollgate_core::lock_mutex;

/// Channels subscribed with one command.
const AT_ONCE: usize = 128;
/// The interval of probes, and how long one may take.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const STALLED: Duration = Duration::from_secs(1);
/// The pause before the next attempt to connect, cut by up to half at random; it doubles while attempts
/// fail. Meanwhile waiters poll.
const FIRST_PAUSE: Duration = Duration::from_millis(40);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The release notifier of a store.
#[derive(Debug, Default)]
pub(super) struct ReleaseSubscriptions {
    /// Shared with the task, once it runs.
    subscriptions: OnceLock<Arc<Subscriptions>>,
}

/// State shared by listeners and the task.
#[derive(Debug)]
struct Subscriptions {
    channels: Mutex<HashMap<Vec<u8>, Channel>>,
    /// Changed channels. There are never more than listeners came and went since the task looked
    /// last.
    changed: mpsc::UnboundedSender<Vec<u8>>,
}

#[derive(Debug)]
struct Channel {
    listeners: Vec<ReleaseListener>,
    next: u64,
    /// The channel is subscribed.
    live: watch::Sender<bool>,
}

/// A listener for one lock. Two names may share a channel, as Redisson names them.
#[derive(Clone)]
struct ReleaseListener {
    number: u64,
    name: LockName,
    notifier: Arc<dyn ReleaseNotifier>,
}

impl fmt::Debug for ReleaseListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReleaseListener").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A subscription to the releases of a lock. Dropping it ends the subscription.
#[derive(Debug)]
pub struct RedisReleaseSubscription {
    subscriptions: Weak<Subscriptions>,
    channel: Vec<u8>,
    number: u64,
}

impl Drop for RedisReleaseSubscription {
    fn drop(&mut self) {
        let Some(subscriptions) = self.subscriptions.upgrade() else { return };
        let mut channels = lock_mutex(&subscriptions.channels);
        let Some(channel) = channels.get_mut(&self.channel) else { return };
        channel.listeners.retain(|listener| listener.number != self.number);
        if channel.listeners.is_empty() {
            channels.remove(&self.channel);
            drop(channels);
            let _ = subscriptions.changed.send(std::mem::take(&mut self.channel));
        }
    }
}

impl Subscriptions {
    fn notify(&self, channel: &[u8]) {
        let listeners =
            lock_mutex(&self.channels).get(channel).map(|channel| channel.listeners.clone());
        for ReleaseListener { name, notifier, .. } in listeners.into_iter().flatten() {
            notifier.notify(&name);
        }
    }

    /// Marks these channels as subscribed.
    fn set_live<'a>(&self, channels: impl Iterator<Item = &'a Vec<u8>>) {
        let all = lock_mutex(&self.channels);
        for channel in channels.filter_map(|name| all.get(name)) {
            channel.live.send_replace(true);
        }
    }

    fn set_dead(&self) {
        for channel in lock_mutex(&self.channels).values() {
            channel.live.send_replace(false);
        }
    }
}

impl RedisStore {
    fn subscriptions(&self) -> Arc<Subscriptions> {
        let subscriptions = self.locks.notifier.subscriptions.get_or_init(|| {
            let (changed, changes) = mpsc::unbounded_channel();
            let subscriptions = Arc::new(Subscriptions { channels: Mutex::default(), changed });
            // The task holds a weak reference only: it ends with the store.
            let keep = keep(Arc::clone(&self.driver.link), Arc::downgrade(&subscriptions), changes);
            self.driver.spawn(keep);
            subscriptions
        });
        Arc::clone(subscriptions)
    }

    /// Adds a listener, and returns once its channel is subscribed.
    pub(super) async fn subscribe_to_releases(
        &self,
        name: &LockName,
        notifier: Arc<dyn ReleaseNotifier>,
    ) -> Result<RedisReleaseSubscription, StoreError> {
        let (subscriptions, channel) = (self.subscriptions(), names::channel(name).into_bytes());
        let (subscription, mut live) = {
            let mut channels = lock_mutex(&subscriptions.channels);
            let place = channels.entry(channel.clone()).or_insert_with(|| Channel {
                listeners: Vec::new(),
                next: 0,
                live: watch::Sender::new(false),
            });
            let number = place.next;
            place.next = number.wrapping_add(1);
            place.listeners.push(ReleaseListener { number, name: name.clone(), notifier });
            let subscriptions = Arc::downgrade(&subscriptions);
            (
                RedisReleaseSubscription { subscriptions, channel: channel.clone(), number },
                place.live.subscribe(),
            )
        };
        if subscriptions.changed.send(channel).is_err() {
            return Err(Cause::Stopped.unavailable());
        }
        let deadline = clock::ahead(self.locks.patience);
        // The timer runs on the store's runtime, because the caller may have none.
        let subscribed = self.driver.run(async move {
            let live = timeout_at(deadline, live.wait_for(|live| *live)).await;
            live.is_ok_and(|live| live.is_ok()).then_some(()).ok_or(Cause::NoReply.unavailable())
        });
        subscribed.await.map_err(|_| Cause::NoReply.unavailable())?;
        Ok(subscription)
    }
}

/// Keeps the connection open until the store is dropped.
async fn keep(
    link: Arc<Link>,
    subscriptions: Weak<Subscriptions>,
    mut changes: mpsc::UnboundedReceiver<Vec<u8>>,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        let wanted: Vec<Vec<u8>> = {
            let Some(subscriptions) = subscriptions.upgrade() else { return };
            lock_mutex(&subscriptions.channels).keys().cloned().collect()
        };
        if wanted.is_empty() && changes.recv().await.is_none() {
            return;
        }
        let notified = subscriptions.clone();
        let on_message = move |channel: &[u8], _: &[u8]| {
            if let Some(subscriptions) = notified.upgrade() {
                subscriptions.notify(channel);
            }
        };
        if let Ok(subscriber) = link.subscribe(Box::new(on_message)).await {
            let mut session = Session {
                subscriber,
                subscriptions: subscriptions.clone(),
                subscribed: HashSet::new(),
            };
            // After a useful connection the pauses start over.
            if session.serve(&mut changes).await {
                pause = FIRST_PAUSE;
            }
            let Some(subscriptions) = subscriptions.upgrade() else { return };
            subscriptions.set_dead();
        }
        let half = pause.checked_div(2).unwrap_or_default();
        sleep(random::within(&(half..=pause))).await;
        pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
    }
}

/// The connection failed, or is no longer needed.
struct SessionOver;

/// Waits for the replies to a request, as long as a connection that works may need.
async fn in_time<T>(
    replies: impl Future<Output = Result<T, ConnectionClosed>>,
) -> Result<T, SessionOver> {
    timeout(STALLED, replies).await.ok().and_then(Result::ok).ok_or(SessionOver)
}

/// One connection and its channels.
struct Session {
    subscriber: SubscriberConnection,
    subscriptions: Weak<Subscriptions>,
    subscribed: HashSet<Vec<u8>>,
}

impl Session {
    /// Serves until the connection ends. Returns whether it ever worked.
    async fn serve(&mut self, changes: &mut mpsc::UnboundedReceiver<Vec<u8>>) -> bool {
        let Some(subscriptions) = self.subscriptions.upgrade() else { return false };
        let all = lock_mutex(&subscriptions.channels).keys().cloned().collect();
        drop(subscriptions);
        if self.look_at(all).await.is_err() {
            return false;
        }
        // Messages published while there was no connection are lost.
        if let Some(subscriptions) = self.subscriptions.upgrade() {
            self.subscribed.iter().for_each(|channel| subscriptions.notify(channel));
        }
        let mut changed = Vec::new();
        loop {
            let done = tokio::select! {
                () = self.subscriber.ended() => Err(SessionOver),
                count = changes.recv_many(&mut changed, AT_ONCE) => {
                    if count == 0 { Err(SessionOver) } else { self.look_at(std::mem::take(&mut changed)).await }
                }
                () = sleep(PING_INTERVAL) => in_time(self.subscriber.ping()).await,
            };
            if done.is_err() {
                return true;
            }
        }
    }

    /// Subscribes to those of these channels that have listeners, and unsubscribes from the others.
    async fn look_at(&mut self, mut channels: Vec<Vec<u8>>) -> Result<(), SessionOver> {
        channels.sort_unstable();
        channels.dedup();
        let (wanted, unwanted): (Vec<_>, Vec<_>) = {
            let subscriptions = self.subscriptions.upgrade().ok_or(SessionOver)?;
            let listened = lock_mutex(&subscriptions.channels);
            channels.into_iter().partition(|channel| listened.contains_key(channel))
        };
        let gone: Vec<&[u8]> = unwanted
            .iter()
            .filter(|channel| self.subscribed.remove(*channel))
            .map(Vec::as_slice)
            .collect();
        for part in gone.chunks(AT_ONCE) {
            in_time(self.subscriber.unsubscribe(part)).await?;
        }
        for part in wanted.chunks(AT_ONCE) {
            let new = part.iter().filter(|channel| !self.subscribed.contains(*channel));
            let new: Vec<&[u8]> = new.map(Vec::as_slice).collect();
            if !new.is_empty() {
                let done = in_time(self.subscriber.subscribe(&new)).await?;
                let done = new.iter().zip(done).filter(|(_, subscribed)| *subscribed);
                self.subscribed.extend(done.map(|(channel, _)| channel.to_vec()));
            }
            // Also one that has been subscribed all along: a listener may be new to it.
            let live = part.iter().filter(|channel| self.subscribed.contains(*channel));
            self.subscriptions.upgrade().ok_or(SessionOver)?.set_live(live);
        }
        Ok(())
    }
}
