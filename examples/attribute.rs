//! Limits at the handlers themselves: by address, by what the body says, and by a rule.
//!
//! ```console
//! $ cargo run -p tollgate-examples --bin example-attribute
//! listening on http://127.0.0.1:3000
//! $ for _ in 1 2 3 4; do curl -i -d alice http://127.0.0.1:3000/login; done
//! ```

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tollgate::http::LimitLayer;
use tollgate::{EmbeddedStore, Limiter, Refused, limit, rules};

const RULES: &str = "
version: 1
domain: shop
rules:
  - { name: reports, match: { path: /report }, by: [ip], limits: [2 per 1h] }
";

/// By account and by address, in one decision: who is refused by one is not charged by the other.
#[limit("3 per 1m", by = user, message = "too many attempts, try again later")]
#[limit("100 per 1h", by = ip)]
async fn login(user: String) -> Result<String, Refused> {
    Ok(format!("welcome {user}\n"))
}

/// One at a time in all of the process, as often as the rule allows.
#[limit(rule = "reports")]
#[limit("1 concurrent")]
async fn report() -> Result<&'static str, Refused> {
    Ok("all is well\n")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::new(EmbeddedStore::new());
    limiter.set_rules(rules::load(RULES, rules::Format::Yaml)?)?;
    // The layer judges by the rules, and tells the functions who asks. What it has charged, they
    // do not charge again.
    let layer = LimitLayer::new(limiter, "shop").with_scope();
    let app = Router::new().route("/login", post(login)).route("/report", get(report)).layer(layer);

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
