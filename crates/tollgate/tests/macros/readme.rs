//! The library program of the README: it does what the page says, and the page shows what runs here.

use axum::{Router, routing::post};
use tollgate::http::ScopeLayer;
use tollgate::{Refused, limit};

use crate::common::rules;
use crate::wire::{limiter, serve_app};

// README: begin
#[limit("5 per 1m", "20 per 1h", by = ip)]
async fn login() -> Result<&'static str, Refused> {
    Ok("welcome\n")
}
// README: end

/// The same layer as on the page, around a limiter whose clock stands still.
const APP: &str = r#"Router::new().route("/login", post(login)).layer(ScopeLayer::new(limiter));"#;

#[tokio::test]
async fn the_sixth_login_is_refused_and_the_hourly_limit_has_not_counted_it() {
    let app =
        Router::new().route("/login", post(login)).layer(ScopeLayer::new(limiter(rules(1, []))));
    let server = serve_app(app).await;
    for _ in 0..5 {
        let passed = server.ask("POST", "/login", &[]).await;
        assert_eq!((passed.status, passed.body.as_str()), (200, "welcome\n"));
    }

    for _ in 0..3 {
        let refused = server.ask("POST", "/login", &[]).await;
        assert_eq!((refused.status, refused.field("retry-after")), (429, Some("60")));
        let left = refused.field("ratelimit").unwrap();
        assert!(left.contains("\"login/1h\";r=15"), "{left}");
    }
}

#[test]
fn the_pages_show_this_program_and_features_that_exist() {
    let here = include_str!("readme.rs");
    let program = here.split("// README: begin\n").nth(1).unwrap();
    let program = program.split("// README: end").next().unwrap();
    let manifest = include_str!("../../Cargo.toml");
    for page in [include_str!("../../../../README.md"), include_str!("../../../../README.zh-CN.md")]
    {
        assert!(page.contains(program) && page.contains(APP), "the page shows another program");
        let features = page.split("crates/tollgate\", features = [").nth(1).unwrap();
        for feature in features.split(']').next().unwrap().split(", ") {
            let declared = format!("\n{} = [", feature.trim_matches('"'));
            assert!(manifest.contains(&declared), "there is no feature {feature}");
        }
    }
}
