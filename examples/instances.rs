//! Three processes on one Redis admit together exactly what one would.
//!
//! ```console
//! $ REDIS_URL=redis://127.0.0.1:6379 cargo run -p tollgate-examples --bin example-instances
//! ```

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use tollgate::Limiter;
use tollgate::redis::{Config, RedisStore};
use tollgate::{Limit, SlidingLog};

const QUESTIONS: u32 = 100;

/// One instance: asks a hundred times, and prints how often it was let through.
#[tokio::main]
async fn instance(url: &str, key: &str) -> Result<(), Box<dyn Error>> {
    // A service would keep the 20 ms that hold unless said, and answer by its rules in an outage.
    let store = RedisStore::connect(Config::new(url)?.deadline(Duration::from_secs(10))).await?;
    let limiter = Limiter::new(store);
    let limit = Limit::new(SlidingLog, "60 per 1h".parse()?)?;
    let mut admitted: u32 = 0;
    for _ in 0..QUESTIONS {
        let admission = limiter.check(key, &limit, 1).await?;
        if let Some(outage) = admission.outage() {
            return Err(format!("Redis did not answer: {:?}", outage.cause).into());
        }
        admitted = admitted.saturating_add(u32::from(admission.passes()));
    }
    println!("{admitted}");
    Ok(())
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let url = std::env::var("TOLLGATE_STORE").or_else(|_| std::env::var("REDIS_URL"));
    let Ok(url) = url else {
        eprintln!("no Redis is named: start one with `redis-server --port 6379`,");
        eprintln!("and say where it is: REDIS_URL=redis://127.0.0.1:6379");
        return Ok(ExitCode::from(2));
    };
    if let Some(key) = std::env::args().nth(1) {
        instance(&url, &key)?;
        return Ok(ExitCode::SUCCESS);
    }
    // A key of its own for each run, or the second one in an hour would find nothing left.
    let key = format!("example:{:x}", RandomState::new().hash_one(0_u8));
    let start = |_| Command::new(std::env::current_exe()?).arg(&key).stdout(Stdio::piped()).spawn();
    let instances = (0..3).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut together: u32 = 0;
    for (number, child) in (1..).zip(instances) {
        let admitted: u32 = String::from_utf8(child.wait_with_output()?.stdout)?.trim().parse()?;
        println!("instance {number}: {admitted} of {QUESTIONS} passed");
        together = together.saturating_add(admitted);
    }
    println!("together: {together} passed, where 60 an hour may");
    Ok(ExitCode::SUCCESS)
}
