//! One connection over which releases are heard, for all locks of a store.
//!
//! It is made when somebody listens first, and kept. A task on the thread of the store owns it: it is
//! told that something about a channel changed, and makes what is subscribed what is wanted, many
//! channels at a time. When the connection was lost, releases may have been missed: as soon as it is
//! back, every bell is rung.
//!
//! Not here: who is woken by a bell, and what it does then.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout, timeout_at};
use tollgate_core::StoreError;
use tollgate_core::lock::{Bell, LockName};

use super::names;
use crate::error::Cause;
use crate::link::{Hearing, Link};
use crate::{RedisStore, clock, random};

/// Channels subscribed with one command.
const AT_ONCE: usize = 128;
/// How often the connection is asked for a sign of life, and how long it may take.
const HEARTBEAT: Duration = Duration::from_secs(5);
const STALLED: Duration = Duration::from_secs(1);
/// The pause before the connection is made again, cut by up to half at random; it doubles while that
/// fails. Meanwhile waiters ask by themselves.
const FIRST_PAUSE: Duration = Duration::from_millis(40);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The bells of a store.
#[derive(Debug, Default)]
pub(super) struct Bells {
    /// Where the task is told of changes, once it runs.
    tower: OnceLock<Arc<Tower>>,
}

/// What listeners and the task share.
#[derive(Debug)]
struct Tower {
    channels: Mutex<HashMap<Vec<u8>, Channel>>,
    /// Channels to look at. There are never more than listeners came and went since the last look.
    changed: mpsc::UnboundedSender<Vec<u8>>,
}

#[derive(Debug)]
struct Channel {
    rings: Vec<Ring>,
    next: u64,
    /// Whether it is subscribed.
    live: watch::Sender<bool>,
}

/// A bell, and for which lock: two names may share a channel, as Redisson names them.
#[derive(Clone)]
struct Ring {
    number: u64,
    name: LockName,
    bell: Arc<dyn Bell>,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Listens for the releases of a lock until it is dropped.
#[derive(Debug)]
pub struct Ear {
    tower: Weak<Tower>,
    channel: Vec<u8>,
    number: u64,
}

impl Drop for Ear {
    fn drop(&mut self) {
        let Some(tower) = self.tower.upgrade() else { return };
        let mut channels = tower.lock();
        let Some(channel) = channels.get_mut(&self.channel) else { return };
        channel.rings.retain(|ring| ring.number != self.number);
        if channel.rings.is_empty() {
            channels.remove(&self.channel);
            drop(channels);
            let _ = tower.changed.send(std::mem::take(&mut self.channel));
        }
    }
}

impl Tower {
    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Channel>> {
        // Every edit is whole before anything could panic.
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rings the bells of a channel, outside the lock.
    fn ring(&self, channel: &[u8]) {
        let rings = self.lock().get(channel).map(|channel| channel.rings.clone());
        for Ring { name, bell, .. } in rings.into_iter().flatten() {
            bell.ring(&name);
        }
    }

    /// Says that these are subscribed.
    fn set_live<'a>(&self, channels: impl Iterator<Item = &'a Vec<u8>>) {
        let all = self.lock();
        for channel in channels.filter_map(|name| all.get(name)) {
            channel.live.send_replace(true);
        }
    }

    fn set_dead(&self) {
        for channel in self.lock().values() {
            channel.live.send_replace(false);
        }
    }
}

impl RedisStore {
    fn tower(&self) -> Arc<Tower> {
        let tower = self.locks.bells.tower.get_or_init(|| {
            let (changed, changes) = mpsc::unbounded_channel();
            let tower = Arc::new(Tower { channels: Mutex::default(), changed });
            // The task holds no tower: it ends when the store does, whose queue it is told by.
            let keep = keep(Arc::clone(&self.link), Arc::downgrade(&tower), changes);
            self.driver.spawn(keep);
            tower
        });
        Arc::clone(tower)
    }

    /// Listens, and returns once the channel is subscribed.
    pub(super) async fn hear(
        &self,
        name: &LockName,
        bell: Arc<dyn Bell>,
    ) -> Result<Ear, StoreError> {
        let (tower, channel) = (self.tower(), names::channel(name).into_bytes());
        let (ear, mut live) = {
            let mut channels = tower.lock();
            let place = channels.entry(channel.clone()).or_insert_with(|| Channel {
                rings: Vec::new(),
                next: 0,
                live: watch::Sender::new(false),
            });
            let number = place.next;
            place.next = number.wrapping_add(1);
            place.rings.push(Ring { number, name: name.clone(), bell });
            let tower = Arc::downgrade(&tower);
            (Ear { tower, channel: channel.clone(), number }, place.live.subscribe())
        };
        if tower.changed.send(channel).is_err() {
            return Err(Cause::Stopped.unavailable());
        }
        let now = clock::now();
        let deadline = now.checked_add(self.locks.patience).unwrap_or(now);
        // Nothing waits for a runtime of the caller's but this timer's; the store may be used from
        // any, so it runs on the store's.
        let subscribed = self.driver.run(async move {
            timeout_at(deadline, live.wait_for(|live| *live)).await.is_ok_and(|live| live.is_ok())
        });
        if subscribed.await == Some(true) { Ok(ear) } else { Err(Cause::NoReply.unavailable()) }
    }
}

/// Keeps the connection until the store is dropped.
async fn keep(link: Arc<Link>, tower: Weak<Tower>, mut changes: mpsc::UnboundedReceiver<Vec<u8>>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let wanted: Vec<Vec<u8>> = {
            let Some(tower) = tower.upgrade() else { return };
            tower.lock().keys().cloned().collect()
        };
        if wanted.is_empty() && changes.recv().await.is_none() {
            return;
        }
        let rung = tower.clone();
        let hear = move |channel: &[u8], _: &[u8]| {
            if let Some(tower) = rung.upgrade() {
                tower.ring(channel);
            }
        };
        if let Ok(hearing) = link.listen(Box::new(hear)).await {
            let mut session = Session { hearing, tower: tower.clone(), subscribed: HashSet::new() };
            // One that was of use is no reason to be slow with the next.
            if session.serve(&mut changes).await == Served::Some {
                pause = FIRST_PAUSE;
            }
            let Some(tower) = tower.upgrade() else { return };
            tower.set_dead();
        }
        let half = pause.checked_div(2).unwrap_or_default();
        sleep(random::within(&(half..=pause))).await;
        pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
    }
}

/// The connection failed, or nobody needs it any more.
struct Over;

/// Whether a connection was of use before it ended.
#[derive(PartialEq, Eq)]
enum Served {
    None,
    Some,
}

/// One connection.
struct Session {
    hearing: Hearing,
    tower: Weak<Tower>,
    subscribed: HashSet<Vec<u8>>,
}

impl Session {
    /// Serves until the connection ends.
    async fn serve(&mut self, changes: &mut mpsc::UnboundedReceiver<Vec<u8>>) -> Served {
        let Some(tower) = self.tower.upgrade() else { return Served::None };
        let all = tower.lock().keys().cloned().collect();
        drop(tower);
        if self.look_at(all).await.is_err() {
            return Served::None;
        }
        // What was published while there was no connection, nobody heard.
        if let Some(tower) = self.tower.upgrade() {
            self.subscribed.iter().for_each(|channel| tower.ring(channel));
        }
        let mut changed = Vec::new();
        loop {
            let done = tokio::select! {
                () = self.hearing.ended() => Err(Over),
                count = changes.recv_many(&mut changed, AT_ONCE) => {
                    if count == 0 { Err(Over) } else { self.look_at(std::mem::take(&mut changed)).await }
                }
                () = sleep(HEARTBEAT) => self.beat().await,
            };
            if done.is_err() {
                return Served::Some;
            }
        }
    }

    async fn beat(&mut self) -> Result<(), Over> {
        let pulse = timeout(STALLED, self.hearing.beat()).await;
        pulse.is_ok_and(|pulse| pulse.is_ok()).then_some(()).ok_or(Over)
    }

    /// Makes these channels what they should be: subscribed if anybody listens.
    async fn look_at(&mut self, mut channels: Vec<Vec<u8>>) -> Result<(), Over> {
        channels.sort_unstable();
        channels.dedup();
        let (wanted, unwanted): (Vec<_>, Vec<_>) = {
            let tower = self.tower.upgrade().ok_or(Over)?;
            let listened = tower.lock();
            channels.into_iter().partition(|channel| listened.contains_key(channel))
        };
        let gone: Vec<&[u8]> = unwanted
            .iter()
            .filter(|channel| self.subscribed.remove(*channel))
            .map(Vec::as_slice)
            .collect();
        for part in gone.chunks(AT_ONCE) {
            let done = timeout(STALLED, self.hearing.unsubscribe(part)).await;
            done.map_err(|_| Over)?.map_err(|_| Over)?;
        }
        for part in wanted.chunks(AT_ONCE) {
            let new = part.iter().filter(|channel| !self.subscribed.contains(*channel));
            let new: Vec<&[u8]> = new.map(Vec::as_slice).collect();
            if !new.is_empty() {
                let done = timeout(STALLED, self.hearing.subscribe(&new)).await;
                let done = done.map_err(|_| Over)?.map_err(|_| Over)?;
                let done = new.iter().zip(done).filter(|(_, subscribed)| *subscribed);
                self.subscribed.extend(done.map(|(channel, _)| channel.to_vec()));
            }
            // Also one that has been subscribed all along: a listener may be new to it.
            let live = part.iter().filter(|channel| self.subscribed.contains(*channel));
            self.tower.upgrade().ok_or(Over)?.set_live(live);
        }
        Ok(())
    }
}
