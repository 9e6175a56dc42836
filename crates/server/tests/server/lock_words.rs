//! Error messages of `tollgate lock` and `tollgate locks`, in terms of locks.

use tollgate_harness::RedisServer;

use super::lock::{run, text};

#[test]
fn what_is_no_lock_is_named_as_it_was_written() {
    let redis = RedisServer::start().unwrap();
    redis.command(&[b"SET", b"strlock", b"text"]).unwrap();

    let output = run(&redis, &["lock", "-n", "strlock", "--", "true"]);

    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{told}");
    assert_eq!(
        told.trim_end(),
        "tollgate: the key of \"strlock\" does not hold a lock of this kind: choose another name"
    );
}

#[test]
fn a_redis_that_is_away_is_no_matter_of_charges() {
    let redis = RedisServer::start().unwrap();
    for args in [
        &["lock", "--store=redis://127.0.0.1:1", "--store-deadline=250ms", "-n", "a", "--", "true"]
            [..],
        &["locks", "--store=redis://127.0.0.1:1", "--store-deadline=250ms", "list"],
    ] {
        let output = run(&redis, args);
        let told = text(&output.stderr);
        assert_ne!(output.status.code(), Some(0), "{told}");
        assert!(told.contains("the store is unreachable or refuses"), "{told}");
        assert!(!told.contains("charge"), "{told}");
    }
}
