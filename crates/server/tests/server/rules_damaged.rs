//! A set of rules in Redis that is damaged: whoever writes the next one is told so, and how.

use tollgate_harness::RedisServer;

use super::program::{run, serve};
use super::rules_redis::{KEY, hset, store, version};
use super::support::TempDir;

#[test]
fn rules_put_says_that_what_is_stored_is_damaged_and_how_to_replace_it() {
    let redis = RedisServer::start().unwrap();
    let program = serve(&["--rules-from", &redis.url()], &[]);
    let admin = format!("http://{}", program.at[2]);
    let dir = TempDir::new();
    let put = |number: u64, expect: Option<&str>| {
        let file = dir.path().join(format!("{number}.yaml"));
        std::fs::write(&file, version(number)).unwrap();
        let mut args = vec!["rules", "put", "--admin", &admin, file.to_str().unwrap()];
        args.extend(expect.iter().flat_map(|version| ["--expect", version]));
        let output = run(&args);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert_eq!(put(1, None).0, Some(0));

    // Cut short, by hand or by a fault; and whole, but no rules.
    hset(&redis, KEY, &[("version", b"8")]);
    for (stored, why) in [("8", "`sum` does not match"), ("9", ":2:1: unknown field `rule`")] {
        if stored == "9" {
            store(&redis, KEY, 9, "version: 9\nrule: []\n");
        }
        let (code, told) = put(2, None);
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains(&format!("409 Conflict: version {stored} is stored but damaged")));
        assert!(told.contains(why), "{told}");
        assert!(told.contains(&format!("`tollgate rules put --expect {stored}`")), "{told}");
        assert!(!told.contains("read them again"), "that would not help: {told}");
    }
    let (code, told) = put(9, Some("9"));
    assert_eq!(code, Some(1), "{told}");
    let (code, told) = put(10, Some("9"));
    assert_eq!((code, told.trim()), (Some(0), r#"{"from":1,"to":10}"#));

    // One that is well is what applies, and is worth reading.
    let (code, told) = put(11, Some("3"));
    assert_eq!(code, Some(1));
    assert!(told.contains("version 10 of the rules applies now: read them again"), "{told}");
}
