//! Locks that a child can take: ours, and rslock's.

use std::time::Duration;

use rslock::LockManager;
use tollgate::redis::{Config, RedisStore};
use tollgate::{LockGuard, Locks};

/// Of every contender alike: Redisson's, and our own default.
const LEASE: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub enum Contender {
    Ours(Locks<RedisStore>),
    /// The simple kind of ours, which is all that the peers have.
    OursSimple(Locks<RedisStore>),
    Rslock(LockManager),
}

pub enum BenchGuard {
    Ours(LockGuard),
    Rslock(rslock::LockGuard),
}

impl Contender {
    pub async fn connect(name: &str, port: &str) -> Self {
        let url = format!("redis://127.0.0.1:{port}");
        match name {
            "ours" | "ours-simple" => {
                // The bench measures speed, not deadlines.
                let config = Config::new(&url).unwrap().deadline(Duration::from_secs(5));
                let locks = Locks::new(RedisStore::connect(config).await.unwrap());
                if name == "ours" { Self::Ours(locks) } else { Self::OursSimple(locks) }
            }
            "rslock" => Self::Rslock(LockManager::new(vec![url])),
            // As one would set it who cares for hand-overs and not for what they cost Redis.
            "rslock-5ms" => {
                let mut manager = LockManager::new(vec![url]);
                manager.set_retry(3, Duration::from_millis(5));
                Self::Rslock(manager)
            }
            _ => panic!("no contender has the name {name}"),
        }
    }

    pub async fn lock(&self, name: &str) -> BenchGuard {
        match self {
            Self::Ours(locks) => BenchGuard::Ours(locks.lock(name).await.unwrap()),
            Self::OursSimple(locks) => {
                BenchGuard::Ours(locks.named(name).unwrap().simple().lock().await.unwrap())
            }
            Self::Rslock(manager) => {
                BenchGuard::Rslock(manager.acquire(name, LEASE).await.unwrap())
            }
        }
    }
}

impl BenchGuard {
    pub async fn release(self) {
        match self {
            Self::Ours(guard) => drop(guard.release().await.unwrap()),
            Self::Rslock(guard) => guard.release().await,
        }
    }
}
