//! An axum service with limits: everybody by address, and logging in far less often.
//!
//! ```console
//! $ cargo run -p tollgate-examples --bin example-axum
//! listening on http://127.0.0.1:3000
//! $ for _ in 1 2 3 4; do curl -i -X POST http://127.0.0.1:3000/login; done
//! ```

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tollgate::http::LimitLayer;
use tollgate::{EmbeddedStore, Limiter, rules};

const RULES: &str = "
version: 1
domain: shop
rules:
  - name: per-ip
    by: [ip]
    limits: [100 per 1s]
  - name: login
    match: { path: /login, method: POST }
    by: [ip]
    limits: [3 per 1m]
";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::new(EmbeddedStore::new());
    limiter.set_rules(rules::load(RULES, rules::Format::Yaml)?)?;
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/login", post(|| async { "welcome\n" }))
        .layer(LimitLayer::new(limiter, "shop"));

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    // With connect info, or the layer does not know whom it limits.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
