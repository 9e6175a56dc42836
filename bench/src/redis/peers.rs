//! The peers on the same server: one script a decision, a pipeline of two commands, and
//! Redis's own benchmark as the machine's measure.

use std::process::Command;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use tollgate_bench::{Name, Random};
use tollgate_core::{Charge, Key, Limit, Request, Store};
use tollgate_harness::RedisServer;
use tollgate_redis::{Config, RedisStore};

use crate::load::Asker;

/// Which key is asked for.
#[derive(Clone)]
pub enum Keys {
    /// Each of so many as likely as another.
    Uniform(u64),
    /// The i-th of them with a probability as 1 / i^s: their cumulative shares.
    Zipf(Arc<[f64]>),
}

impl Keys {
    pub fn zipf(count: u64, exponent: f64) -> Self {
        let mut sum = 0.0;
        let mut shares: Vec<f64> = (1..=count)
            .map(|i| {
                sum += (i as f64).powf(-exponent);
                sum
            })
            .collect();
        shares.iter_mut().for_each(|share| *share /= sum);
        Self::Zipf(shares.into())
    }

    fn pick(&self, random: &mut Random) -> u64 {
        match self {
            Self::Uniform(count) => random.below(*count),
            Self::Zipf(shares) => {
                let unit = random.unit();
                shares.partition_point(|share| *share < unit) as u64
            }
        }
    }
}

/// Our store, one request of one charge for each of its limits.
#[derive(Clone)]
pub struct Ours {
    pub store: Arc<RedisStore>,
    pub name: &'static str,
    pub limits: Arc<[(Keys, Limit)]>,
}

impl Ours {
    pub async fn connect(
        server: &RedisServer,
        name: &'static str,
        limits: impl Into<Arc<[(Keys, Limit)]>>,
    ) -> Self {
        let config = Config::new(&server.url()).unwrap();
        // The bench fills the queue: what is measured is throughput, not how failures are cut short.
        let config = config.deadline(std::time::Duration::from_secs(5));
        let store = RedisStore::connect(config).await.unwrap();
        Self { store: Arc::new(store), name, limits: limits.into() }
    }
}

impl Asker for Ours {
    async fn ask(&self, random: &mut Random) -> bool {
        let mut names = [Name::default(); 3];
        for (i, (name, (keys, _))) in names.iter_mut().zip(&*self.limits).enumerate() {
            *name = Name::new(self.name, i, keys.pick(random));
        }
        let charge = |i: usize| {
            let key = Key::new(names[i].bytes()).unwrap();
            Charge::take(key, &self.limits[i].1, 1).unwrap()
        };
        let answer = match self.limits.len() {
            1 => self.store.decide(&Request::new(&[charge(0)]).unwrap()).await,
            _ => {
                let charges = [charge(0), charge(1), charge(2)];
                self.store.decide(&Request::new(&charges).unwrap()).await
            }
        };
        answer.unwrap().passes()
    }
}

/// The same store, asked for 64 decisions at once, as a protocol with pipelines would.
#[derive(Clone)]
pub struct Batches(pub Ours);

impl Asker for Batches {
    const DECISIONS: u64 = 64;

    async fn ask(&self, random: &mut Random) -> bool {
        let (keys, limit) = &self.0.limits[0];
        let names: [Name; 64] =
            std::array::from_fn(|_| Name::new(self.0.name, 0, keys.pick(random)));
        let charges: [[Charge<'_>; 1]; 64] = std::array::from_fn(|i| {
            [Charge::take(Key::new(names[i].bytes()).unwrap(), limit, 1).unwrap()]
        });
        let requests: [Request<'_>; 64] =
            std::array::from_fn(|i| Request::new(&charges[i]).unwrap());
        self.0.store.charge(&requests).await.unwrap().iter().all(|answer| answer.passes())
    }
}

/// A token bucket as people write it: read, compute, write, one script a decision.
const ONE_KEY: &str = "
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local tat = tonumber(redis.call('GET', KEYS[1]) or 0)
if tat < now then tat = now end
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local new = tat + interval
if new - now > burst then return {0, new - now - burst} end
redis.call('SET', KEYS[1], string.format('%.0f', new), 'PX', math.floor((new - now) / 1000) + 1)
return {1, 0}
";

/// One `EVALSHA` a decision through the multiplexed client that most would use.
#[derive(Clone)]
pub struct OneScript {
    connection: MultiplexedConnection,
    sha: Arc<str>,
    keys: Keys,
}

impl OneScript {
    pub async fn connect(server: &RedisServer, keys: Keys) -> Self {
        let mut connection = connect(server).await;
        let sha = load(&mut connection, ONE_KEY).await;
        Self { connection, sha, keys }
    }
}

impl Asker for OneScript {
    async fn ask(&self, random: &mut Random) -> bool {
        let key = format!("peer:{}", self.keys.pick(random));
        let mut connection = self.connection.clone();
        let mut command = redis::cmd("EVALSHA");
        command.arg(&*self.sha).arg(1).arg(key).arg(36_000_000).arg(3_600_000_000_u64);
        let (passes, _): (u8, u64) = command.query_async(&mut connection).await.unwrap();
        passes == 1
    }
}

/// Reads and writes every key of a batch, and decides nothing: what no script that does both can beat.
const TO_AND_FRO: &str = "
redis.call('TIME')
local values = redis.call('MGET', unpack(KEYS))
for i = 1, #KEYS do redis.call('SET', KEYS[i], ARGV[1], 'PX', ARGV[2]) end
return #values
";

/// One `EVALSHA` of `TO_AND_FRO` for as many decisions as a batch of ours has.
#[derive(Clone)]
pub struct Floor {
    connection: MultiplexedConnection,
    sha: Arc<str>,
    keys: Keys,
}

impl Floor {
    pub async fn connect(server: &RedisServer, keys: Keys) -> Self {
        let mut connection = connect(server).await;
        let sha = load(&mut connection, TO_AND_FRO).await;
        Self { connection, sha, keys }
    }
}

impl Asker for Floor {
    const DECISIONS: u64 = 128;

    async fn ask(&self, random: &mut Random) -> bool {
        let mut connection = self.connection.clone();
        let mut command = redis::cmd("EVALSHA");
        command.arg(&*self.sha).arg(Self::DECISIONS);
        for _ in 0..Self::DECISIONS {
            command.arg(format!("floor:{}", self.keys.pick(random)));
        }
        command.arg("0123456789abcdef0123456789").arg(60_000);
        let read: u64 = command.query_async(&mut connection).await.unwrap();
        read == Self::DECISIONS
    }
}

async fn load(connection: &mut MultiplexedConnection, script: &str) -> Arc<str> {
    let sha: String =
        redis::cmd("SCRIPT").arg("LOAD").arg(script).query_async(connection).await.unwrap();
    sha.into()
}

/// `INCR` and `EXPIRE` in one pipeline a decision: what the articles do, and not exact.
#[derive(Clone)]
pub struct IncrExpire {
    connection: MultiplexedConnection,
    keys: Keys,
}

impl IncrExpire {
    pub async fn connect(server: &RedisServer, keys: Keys) -> Self {
        Self { connection: connect(server).await, keys }
    }
}

impl Asker for IncrExpire {
    async fn ask(&self, random: &mut Random) -> bool {
        let key = format!("incr:{}", self.keys.pick(random));
        let mut connection = self.connection.clone();
        let mut pipe = redis::pipe();
        pipe.cmd("INCR").arg(&key).cmd("EXPIRE").arg(&key).arg(1).ignore();
        let (count,): (u64,) = pipe.query_async(&mut connection).await.unwrap();
        count <= 1_000_000
    }
}

async fn connect(server: &RedisServer) -> MultiplexedConnection {
    let client = redis::Client::open(server.url()).unwrap();
    let config = redis::AsyncConnectionConfig::new()
        .set_response_timeout(Some(std::time::Duration::from_secs(5)));
    client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

/// Commands a second by `redis-benchmark`, over a million random keys, 32 connections.
pub fn redis_benchmark(server: &RedisServer, pipeline: u32, command: &[&str]) -> f64 {
    let requests = if pipeline == 1 { 100_000 } else { 800_000 };
    let output = Command::new("redis-benchmark")
        .args(["-h", "127.0.0.1", "-p", &server.port().to_string(), "-c", "32", "-r", "1000000"])
        .args(["-n", &requests.to_string(), "-P", &pipeline.to_string(), "--csv"])
        .args(command)
        .output()
        .expect("redis-benchmark comes with redis-tools");
    let text = String::from_utf8(output.stdout).unwrap();
    let last = text.lines().last().unwrap_or_default();
    let field = last.split(',').nth(1).unwrap_or_default();
    field.trim_matches('"').parse().unwrap_or_else(|_| panic!("redis-benchmark said {text}"))
}
