//! A limiter that warms up: after a cold start it lets little through, and more and more.
//!
//! For what is slow at first, such as a database with empty caches. Time is virtual, so this ends
//! at once.
//!
//! ```console
//! $ cargo run -p tollgate-examples --bin example-warm-up
//! ```

mod virtual_time;

use std::error::Error;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tollgate::Smooth;
use tollgate::{Gate, Limiter};
use tollgate::{Limit, Store};

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::new(virtual_time::store());
    // One a second when warm, one in three seconds when cold, sixteen seconds between.
    let smooth = Smooth::warming_up(Duration::from_secs(16));
    let gate = limiter.gate("database", Limit::new(smooth, "1 per 1s".parse()?)?)?;

    println!("cold:");
    queries(&gate, 11).await?;
    sleep(Duration::from_secs(60)).await;
    println!("after a minute without queries, cold again:");
    queries(&gate, 3).await
}

/// Sends queries one after the other, as fast as they are let through.
async fn queries<S: Store + 'static>(gate: &Gate<S>, count: u32) -> Result<(), Box<dyn Error>> {
    for query in 1..=count {
        let asked = Instant::now();
        gate.acquire(1).await?;
        println!("  query {query:2} waited {:.1} s", asked.elapsed().as_secs_f64());
    }
    Ok(())
}
