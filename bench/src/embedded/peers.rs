//! The contenders, behind one trait so that each is timed by the same loop.
#![allow(clippy::ptr_arg, reason = "governor's keyed limiter takes a reference to the owned key")]

use std::num::NonZeroU32;
use std::sync::Mutex;
use std::time::Duration;

use governor::clock::QuantaClock;
use governor::{
    DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota as GovernorQuota, RateLimiter,
};
use throttlecrab::{PeriodicStore, RateLimiter as CrabLimiter};
use tollgate_core::algorithm::TokenBucket;
use tollgate_core::{Charge, Key, Limit, Quota, Request};
use tollgate_embedded::{EmbeddedStore, Single};

use tollgate_bench::clock::Quanta;

/// The limit that every contender enforces.
#[derive(Clone, Copy)]
pub enum Traffic {
    /// A burst that the run does not use up, refilled at one a second, so that counters stay
    /// live between two hits.
    Admit,
    /// One an hour.
    Refuse,
}

impl Traffic {
    pub const ALL: [(Self, &'static str); 2] = [(Self::Admit, "admit"), (Self::Refuse, "refuse")];

    fn seconds_per_permit(self) -> u64 {
        match self {
            Self::Admit => 1,
            Self::Refuse => 3600,
        }
    }

    fn burst(self) -> u32 {
        match self {
            Self::Admit => 100_000_000,
            Self::Refuse => 1,
        }
    }

    fn limit(self) -> Limit {
        let quota = Quota::new(1, Duration::from_secs(self.seconds_per_permit())).expect("valid");
        let quota = quota.with_burst(self.burst().into()).expect("valid");
        Limit::new(TokenBucket, quota).expect("valid")
    }

    fn governor(self) -> GovernorQuota {
        let burst = NonZeroU32::new(self.burst()).expect("not zero");
        let interval = Duration::from_secs(self.seconds_per_permit());
        GovernorQuota::with_period(interval).expect("not zero").allow_burst(burst)
    }
}

/// A keyed limiter.
pub trait Contender: Sync {
    fn check(&self, key: &String) -> bool;
}

pub struct Ours {
    pub store: EmbeddedStore<Quanta>,
    limit: Limit,
}

impl Ours {
    pub fn new(traffic: Traffic) -> Self {
        Self::with_room_for(traffic, 1_200_000)
    }

    pub fn with_room_for(traffic: Traffic, keys: usize) -> Self {
        let store = EmbeddedStore::builder().max_keys(keys).with_clock(Quanta::new());
        Self { store, limit: traffic.limit() }
    }
}

impl Contender for Ours {
    #[inline]
    fn check(&self, key: &String) -> bool {
        let key = Key::new(key).expect("a short key");
        let charge = Charge::take(key, &self.limit, 1).expect("fits");
        self.store.charge_one(&charge).passes()
    }
}

pub struct Governor(DefaultKeyedRateLimiter<String>);

impl Governor {
    pub fn new(traffic: Traffic) -> Self {
        Self(RateLimiter::dashmap_with_clock(traffic.governor(), QuantaClock::default()))
    }
}

impl Contender for Governor {
    #[inline]
    fn check(&self, key: &String) -> bool {
        self.0.check_key(key).is_ok()
    }
}

/// Throttlecrab's library is for one thread; a lock makes it one for two.
pub struct Throttlecrab {
    limiter: Mutex<CrabLimiter<PeriodicStore>>,
    clock: Quanta,
    traffic: Traffic,
}

impl Throttlecrab {
    pub fn new(traffic: Traffic) -> Self {
        let limiter = Mutex::new(CrabLimiter::new(PeriodicStore::with_capacity(4_000_000)));
        Self { limiter, clock: Quanta::new(), traffic }
    }
}

impl Contender for Throttlecrab {
    #[inline]
    fn check(&self, key: &String) -> bool {
        let now = self.clock.system_time();
        let mut limiter = self.limiter.lock().expect("no panics");
        let (burst, period) =
            (self.traffic.burst().into(), self.traffic.seconds_per_permit() as i64);
        let answer = limiter.rate_limit(key, burst, 1, period, 1, now);
        answer.is_ok_and(|(allowed, _)| allowed)
    }
}

/// One limiter without keys.
pub struct OurSingle(Single<Quanta>);

impl OurSingle {
    pub fn new(traffic: Traffic) -> Self {
        Self(Single::with_clock(traffic.limit(), Quanta::new()).expect("a rate"))
    }
}

impl Contender for OurSingle {
    #[inline]
    fn check(&self, _: &String) -> bool {
        self.0.take(1).passes()
    }
}

pub struct GovernorDirect(DefaultDirectRateLimiter);

impl GovernorDirect {
    pub fn new(traffic: Traffic) -> Self {
        Self(RateLimiter::direct_with_clock(traffic.governor(), QuantaClock::default()))
    }
}

impl Contender for GovernorDirect {
    #[inline]
    fn check(&self, _: &String) -> bool {
        self.0.check().is_ok()
    }
}

/// Three rules on one request: a global one, one by address, one by user.
pub trait ThreeRules: Sync {
    fn check(&self, global: &String, address: &String, user: &String) -> bool;
}

impl ThreeRules for Ours {
    #[inline]
    fn check(&self, global: &String, address: &String, user: &String) -> bool {
        let charge =
            |key| Charge::take(Key::new(key).expect("a short key"), &self.limit, 1).expect("fits");
        let charges = [charge(global), charge(address), charge(user)];
        let request = Request::new(&charges).expect("three charges");
        self.store.charge_request(&request).passes()
    }
}

/// Three limiters asked in turn: not atomic, and the first ones are charged when a later refuses.
pub struct GovernorThrice(pub [Governor; 3]);

impl ThreeRules for GovernorThrice {
    #[inline]
    fn check(&self, global: &String, address: &String, user: &String) -> bool {
        let [a, b, c] = &self.0;
        a.check(global) && b.check(address) && c.check(user)
    }
}
