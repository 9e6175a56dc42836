//! An observer of your own: who is refused, by what, and why.
//!
//! ```console
//! $ cargo run -p tollgate-examples --bin example-observer
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::sync::mpsc::{Sender, channel};

use tollgate::Ask;
use tollgate::{Blocked, EmbeddedStore, Event, Limiter, Observer, rules};

const RULES: &str = "
version: 1
domain: shop
rules:
  - { name: per-ip, by: [ip], limits: [100 per 1m] }
  - { name: login, match: { path: /login }, by: [ip], limits: [2 per 1h] }
lists:
  block: [203.0.113.66]
";

/// Prints refusals. It runs on a thread of its own, so requests do not wait for the terminal.
struct Refusals {
    /// Closed when there is nothing more to tell.
    _done: Sender<Infallible>,
}

impl Observer for Refusals {
    fn observe(&self, event: &Event) {
        let Event::Refused { ruling } = event else { return };
        match (ruling.refusing().and_then(|finding| finding.rule), ruling.blocked_by()) {
            (Some(rule), _) => println!("refused by the limit of rule {}", rule.name()),
            (_, Some(Blocked::List { entry })) => println!("refused by the block list: {entry}"),
            _ => println!("refused: {:?}", ruling.reason()),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (sender, done) = channel();
    let observer = Refusals { _done: sender };
    let limiter = Limiter::builder(EmbeddedStore::new()).observer(observer).build();
    limiter.set_rules(rules::load(RULES, rules::Format::Yaml)?)?;

    for ip in ["203.0.113.9", "203.0.113.9", "203.0.113.9", "203.0.113.66"] {
        let ask = Ask::new("shop").with("path", "/login")?.with("ip", ip)?;
        let _ = limiter.admit(&ask).await;
    }

    let stats = limiter.stats();
    // Events that are under way are still told, and then the observer is dropped.
    drop(limiter);
    let _ = done.recv();
    println!("{} passed, {} were refused", stats.admitted, stats.refused);
    Ok(())
}
