//! Several limits are one decision, all or none.

use std::sync::atomic::{AtomicUsize, Ordering};

use tollgate::{EmbeddedStore, Limiter, Refused, limit, scope};

use crate::functions::still;

#[limit("5 per 1m", "3 per 1h", by = user)]
#[limit("4 per 1d", message = "enough for today")]
fn order(user: &str) -> Result<(), Refused> {
    Ok(())
}

#[test]
fn one_limit_that_refuses_charges_none_of_the_others() {
    let limiter = still();
    let call = |user: &str| scope::call(&limiter, || order(user));

    assert_eq!((0..9).filter(|_| call("alice").is_ok()).count(), 3, "the hour's");
    let refused = call("alice").unwrap_err();
    assert_eq!(refused.refusing().unwrap().limit.unwrap().name(), "1h");
    assert_eq!(refused.message(), None, "the attribute that refuses has none");

    // Six refusals later, the day still has the one that it should.
    assert!(call("bob").is_ok());
    let refused = call("bob").unwrap_err();
    assert_eq!(refused.message(), Some("enough for today"));
    assert_eq!(refused.refusing().unwrap().rule.unwrap().name(), "order-2");
    let left: Vec<u64> =
        refused.ruling().unwrap().findings().map(|finding| finding.decision.remaining).collect();
    assert_eq!(left, [4, 2, 0], "what refuses charged neither Bob's minute nor his hour");
}

#[limit("100 per 1h")]
#[tollgate::limit("1000 per 1h", by = user, algorithm = token-bucket)]
async fn both(user: usize) -> Result<(), Refused> {
    Ok(())
}

#[test]
fn threads_that_race_pass_exactly_as_often_as_all_limits_allow() {
    let limiter = Limiter::new(EmbeddedStore::new());
    let passed = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        for user in 0..4 {
            let (limiter, passed) = (&limiter, &passed);
            threads.spawn(move || {
                for _ in 0..200 {
                    let call = scope::with(limiter, both(user));
                    if tokio::runtime::Builder::new_current_thread()
                        .build()
                        .unwrap()
                        .block_on(call)
                        .is_ok()
                    {
                        passed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });

    assert_eq!(passed.load(Ordering::Relaxed), 100);
    // A thousand for each but what passed: refusals have charged nobody's bucket.
    let stats = limiter.stats();
    assert_eq!((stats.admitted, stats.refused), (100, 700), "one decision for each call");
}
