//! Where the limiter comes from.

use std::time::Duration;

use tollgate::scope::{self, Scope};
use tollgate::{Limiter, Refused, RefusedKind, limit};

use crate::common::{ConnectionState, StoreConnection, backend};
use crate::functions::still;

#[limit("1 per 1h")]
async fn once() -> Result<(), Refused> {
    tokio::task::yield_now().await;
    Ok(())
}

#[limit("1 per 1h")]
fn once_sync() -> Result<(), Refused> {
    Ok(())
}

#[limit("1 per 1h", by = ip)]
async fn by_address() -> Result<(), Refused> {
    Ok(())
}

#[limit("1 per 1h", by = (header("X-Key"), attribute("user")))]
async fn by_attributes() -> Result<(), Refused> {
    Ok(())
}

#[tokio::test]
async fn outside_of_every_scope_nothing_passes() {
    for refused in [once().await.unwrap_err(), once_sync().unwrap_err()] {
        assert_eq!(refused.kind(), RefusedKind::Misconfigured);
        let told = refused.to_string();
        assert!(told.contains("no limiter is in scope: write `limiter = …`"), "{told}");
    }
}

#[tokio::test]
async fn the_innermost_scope_counts_and_ends_where_it_ends() {
    let (outer, inner) = (still(), still());
    scope::with(&outer, async {
        assert!(once().await.is_ok());
        assert!(scope::with(&inner, once()).await.is_ok());
        assert!(once().await.is_err(), "the outer one again");
        assert!(scope::call(&inner, once_sync).is_ok());
        assert!(once_sync().is_ok());
    })
    .await;
    assert!(once_sync().is_err());
}

#[tokio::test]
async fn futures_that_take_turns_keep_their_own_scope() {
    let limiters: Vec<_> = (0..8).map(|_| still()).collect();
    let calls = limiters.iter().map(|limiter| {
        tokio::spawn(scope::with(limiter, async { (once().await.is_ok(), once().await.is_err()) }))
    });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap(), (true, true));
    }
    let (one, other) = (still(), still());
    let both = tokio::join!(scope::with(&one, once()), scope::with(&other, once()));
    assert!(both.0.is_ok() && both.1.is_ok());
}

#[tokio::test]
async fn a_panic_leaves_no_scope_behind() {
    let limiter = still();
    let panics = std::panic::AssertUnwindSafe(|| scope::call(&limiter, || panic!("as ordered")));
    assert!(std::panic::catch_unwind(panics).is_err());
    assert!(Scope::current().is_none());
}

#[tokio::test]
async fn what_nobody_tells_is_refused_and_says_what_to_write() {
    let limiter = still();
    let refused = scope::with(&limiter, by_address()).await.unwrap_err();
    assert_eq!(refused.kind(), RefusedKind::Misconfigured);
    assert!(refused.to_string().contains("`LimitLayer::with_scope`"), "{refused}");
    let refused = scope::with(&limiter, by_attributes()).await.unwrap_err();
    assert!(
        refused.to_string().contains("nothing provides the request's `header.x-key`"),
        "{refused}"
    );
}

#[tokio::test]
async fn addresses_count_as_in_rules() {
    let limiter = still();
    let from = |address: &str| Scope::new(&limiter).ip(address.parse().unwrap()).run(by_address());
    assert!(from("2001:db8::1").await.is_ok());
    assert!(from("2001:db8::2").await.is_err(), "of one /64");
    assert!(from("2001:db8:0:1::1").await.is_ok());
    assert!(from("203.0.113.9").await.is_ok());
    assert!(from("::ffff:203.0.113.9").await.is_err(), "the same");
}

#[tokio::test]
async fn attributes_are_values_like_others() {
    let limiter = still();
    let from = |key: &str, user: &str| {
        let scope = Scope::new(&limiter).attribute("header.x-key", key);
        scope.attribute("user", "nobody").attribute("user", user).run(by_attributes())
    };
    assert!(from("k1", "alice").await.is_ok());
    assert!(from("k1", "alice").await.is_err());
    assert!(from("k1", "bob").await.is_ok());
    assert!(from("k2", "alice").await.is_ok());
}

#[tokio::test]
async fn a_remote_store_is_waited_for_by_async_functions_only() {
    let connection = StoreConnection::to(&backend());
    let limiter = Limiter::new(connection.clone());
    assert!(scope::with(&limiter, once()).await.is_ok());
    let refused = scope::with(&limiter, once()).await.unwrap_err();
    assert!(refused.retry_after().unwrap() > Duration::from_secs(3000));

    let refused = scope::call(&limiter, once_sync).unwrap_err();
    assert_eq!(refused.kind(), RefusedKind::Misconfigured);
    assert!(refused.to_string().ends_with("make it `async`"), "{refused}");

    connection.set(ConnectionState::Closed);
    let elsewhere = Scope::new(&limiter).ip([10, 0, 0, 1].into());
    assert!(elsewhere.clone().run(by_address()).await.is_ok(), "by this process's share");
    assert!(elsewhere.run(by_address()).await.is_err());
}
