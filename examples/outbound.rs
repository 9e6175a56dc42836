//! Calls to a third party that takes six a minute: they wait for their turn, but not for ever.
//!
//! Time is virtual, so this ends at once.
//!
//! ```console
//! $ cargo run -p tollgate-examples --bin example-outbound
//! ```

mod virtual_time;

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

use tokio::time::Instant;
use tollgate::Limiter;
use tollgate::http::OutboundLayer;
use tollgate::{Limit, TokenBucket};
use tower::{Layer, ServiceExt, service_fn};

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Box<dyn Error>> {
    // On Redis, all instances of this program would stand in one line.
    let limiter = Limiter::new(virtual_time::store());
    let limit = Limit::new(TokenBucket, "6 per 1m burst 1".parse()?)?;
    let patience = Duration::from_secs(25);
    let layer = OutboundLayer::new(limiter.gate("bank", limit)?, patience);

    let start = Instant::now();
    // Stands for a client of HTTP or gRPC: hyper's, reqwest's and tonic's are services as well.
    let bank = layer.layer(service_fn(move |payment: u32| async move {
        println!("{:3} s: the bank sees payment {payment}", start.elapsed().as_secs());
        Ok::<_, Infallible>(format!("receipt {payment}"))
    }));

    let mut payments = Vec::new();
    for payment in 1..=5 {
        let call = bank.clone().oneshot(payment);
        payments.push(tokio::spawn(async move {
            if let Err(error) = call.await {
                let why = error.source().map(ToString::to_string).unwrap_or_default();
                let second = start.elapsed().as_secs();
                println!("{second:3} s: payment {payment} failed: {error}: {why}");
            }
        }));
    }
    for payment in payments {
        payment.await?;
    }
    Ok(())
}
