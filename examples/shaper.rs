//! A shaper: whatever comes in, and however suddenly, goes out one by one at an even rate.
//!
//! Time is virtual, so this ends at once.
//!
//! ```console
//! $ cargo run -p tollgate-examples --bin example-shaper
//! ```

mod virtual_time;

use std::error::Error;

use tokio::time::Instant;
use tollgate::{Limiter, Shaper};

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::new(virtual_time::store());
    // Two a second, of which at most five wait in line.
    let shaper = Shaper::new(&limiter, "mails", "2 per 1s burst 5".parse()?)?;

    let start = Instant::now();
    let mut mails = Vec::new();
    for mail in 1..=8 {
        let shaper = shaper.clone();
        mails.push(tokio::spawn(async move {
            let sent = shaper.run(async {
                println!("{:.1} s: mail {mail} goes out", start.elapsed().as_secs_f64());
            });
            if let Err(full) = sent.await {
                let now = start.elapsed().as_secs_f64();
                println!("{now:.1} s: no room in line for mail {mail}: {full}");
            }
        }));
    }
    for mail in mails {
        mail.await?;
    }
    Ok(())
}
