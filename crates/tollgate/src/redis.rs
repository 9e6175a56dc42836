//! The store in Redis or Valkey, shared by many processes.

pub use tollgate_redis::{
    BreakerSettings, Config, ConnectError, ConnectErrorKind, FencedWrite, RedisReleaseSubscription,
    RedisStats, RedisStore, RetryPolicy, Warning,
};
