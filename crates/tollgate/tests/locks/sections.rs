//! E41, E42: guarded sections while the store forgets, connections break and scripts vanish. What the
//! resource accepts is never of an older holder after a newer one, and no two holders share a fence.
//!
//! Ten thousand of them; `TOLLGATE_SOAK=100` makes it a million.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::redis::RedisStore;
use tollgate::{LockError, Locks, ProtectedOutput};
use tollgate_core::testing::Rng;
use tollgate_harness::{FaultProxy, RedisServer};

use crate::stage::without_timeout;

/// The resource that the locks protect. It checks fences, as every such resource should.
#[derive(Default)]
struct Resource {
    newest: u64,
    owners: HashMap<u64, String>,
    accepted: u64,
    stale: u64,
}

impl Resource {
    fn write(&mut self, fence: u64, owner: &str) {
        let first = self.owners.entry(fence).or_insert_with(|| owner.to_owned());
        assert_eq!(first, owner, "two holders have the fence {fence}");
        if fence < self.newest {
            self.stale += 1;
        } else {
            self.newest = fence;
            self.accepted += 1;
        }
    }
}

fn sections() -> u64 {
    let soak = std::env::var("TOLLGATE_SOAK").map_or(1, |times| times.parse::<u64>().unwrap());
    10_000 * soak
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_stale_holder_is_accepted_whatever_breaks() {
    let server = Arc::new(RedisServer::start().unwrap());
    let proxy = Arc::new(FaultProxy::start(server.address()).unwrap());
    let (left, over) = (Arc::new(AtomicU64::new(sections())), Arc::new(AtomicBool::new(false)));
    let resources = Arc::new([("a", Mutex::default()), ("b", Mutex::default())]);
    let mut tasks = Vec::new();
    for process in 0..4 {
        let store = RedisStore::connect(without_timeout(&proxy.url())).await.unwrap();
        let locks = Locks::new(store);
        for _ in 0..4 {
            let (locks, left) = (locks.clone(), Arc::clone(&left));
            let resources = Arc::clone(&resources);
            tasks.push(tokio::spawn(async move {
                let mut rng = Rng::new(process);
                while left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
                    section(&locks, &resources[rng.below(2) as usize], &mut rng).await;
                }
            }));
        }
    }
    let breaker = {
        let (server, proxy) = (Arc::clone(&server), Arc::clone(&proxy));
        let (over, left) = (Arc::clone(&over), Arc::clone(&left));
        std::thread::spawn(move || {
            let mut rng = Rng::new(41);
            let mut told = left.load(SeqCst);
            while !over.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(rng.within(20, 200)));
                match rng.below(4) {
                    0 => proxy.reset_open(),
                    1 => drop(server.command(&[b"FLUSHALL"]).unwrap()),
                    2 => drop(server.command(&[b"SCRIPT", b"FLUSH", b"SYNC"]).unwrap()),
                    _ => drop(server.command(&[b"CLIENT", b"KILL", b"TYPE", b"pubsub"]).unwrap()),
                }
                let now = left.load(SeqCst);
                if told - now >= 100_000 {
                    println!("{now} sections left");
                    told = now;
                }
            }
        })
    };
    for task in tasks {
        task.await.unwrap();
    }
    over.store(true, SeqCst);
    breaker.join().unwrap();

    let sum = |part: fn(&Resource) -> u64| -> u64 {
        resources.iter().map(|(_, resource)| part(&resource.lock().unwrap())).sum()
    };
    let (accepted, stale) = (sum(|resource| resource.accepted), sum(|resource| resource.stale));
    println!("{accepted} accepted, {stale} refused as stale");
    assert!(accepted > sections() / 2, "most sections did their work");
    assert!(stale > 0, "some were outlived, and their fences kept them out");
}

/// One section: it writes by its fence, holding on for a while, as one does that was stopped.
async fn section(
    locks: &Locks<RedisStore>,
    (name, resource): &(&str, Mutex<Resource>),
    rng: &mut Rng,
) {
    let guard = match locks.lock(name).await {
        Ok(guard) => guard,
        Err(LockError::Store(_)) => return,
        Err(error) => panic!("{error}"),
    };
    let (fence, owner) = (guard.fence().get(), guard.owner().to_string());
    let pauses = rng.below(3);
    if rng.chance(1, 100) {
        // Somebody takes it by force, and this one goes on all the same when others have had it.
        let _ = locks.force_release(name, "a fault").await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let work = async {
        for _ in 0..pauses {
            tokio::task::yield_now().await;
        }
        resource.lock().unwrap().write(fence, &owner);
    };
    let done = guard.protect(work).await;
    assert!(matches!(
        done,
        ProtectedOutput::Sure(()) | ProtectedOutput::Unsure(()) | ProtectedOutput::Lost(_)
    ));
    if rng.chance(1, 10) {
        drop(guard);
    } else {
        let _ = guard.release().await;
    }
}
