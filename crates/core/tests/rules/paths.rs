//! Paths, hosts and methods cannot be spelled around (C13 to C17, E39).

use std::collections::BTreeSet;

use tollgate_core::rule::declaration::{Domain, PathCase};
use tollgate_core::rule::host::HostError;
use tollgate_core::rule::path::{MAX_LEN, MAX_SEGMENTS, PathError, canonical};
use tollgate_core::rule::{Ask, AskError, Attribute};
use tollgate_core::testing::Rng;

use crate::support::{With, ask, charged, key, rule, set, set_of, shop};

#[test]
fn every_spelling_of_a_path_has_one_canonical_form() {
    let spellings = [
        ("/", "/"),
        ("//", "/"),
        ("/.", "/"),
        ("/a/..", "/"),
        ("/login?", "/login"),
        ("/login?a=/../..", "/login"),
        ("/api/login/", "/api/login/"),
        ("//api//login", "/api/login"),
        ("/api/./login", "/api/login"),
        ("/x/../api/login", "/api/login"),
        ("/x/%2e%2E/api/login", "/api/login"),
        ("/x/.%2e/api/%2E/login", "/api/login"),
        ("/api/login/.", "/api/login/"),
        ("/api/login/x/..", "/api/login/"),
        ("/%61pi/lo%67in", "/api/login"),
        ("/API/Login", "/API/Login"),
        ("/....//admin", "/..../admin"),
        ("/.../admin", "/.../admin"),
        ("/a%2db%5fc%7e", "/a-b_c~"),
        ("/a%3ab%3b", "/a%3Ab%3B"),
        ("/a b", "/a%20b"),
        ("/é", "/%C3%A9"),
        ("/%c3%a9", "/%C3%A9"),
        ("/100%25", "/100%25"),
        ("/100%25/x", "/100%25/x"),
        ("/%25z", "/%25z"),
        ("/a;jsessionid=1/b", "/a;jsessionid=1/b"),
    ];
    for (raw, spelled) in spellings {
        assert_eq!(canonical(raw).as_deref(), Ok(spelled), "{raw}");
    }
}

#[test]
fn what_two_servers_could_read_differently_is_refused() {
    let refused = [
        ("", PathError::NotAbsolute),
        ("*", PathError::NotAbsolute),
        ("login", PathError::NotAbsolute),
        ("?/login", PathError::NotAbsolute),
        ("http://evil/login", PathError::NotAbsolute),
        ("example.com:443", PathError::NotAbsolute),
        ("/login#x", PathError::Fragment),
        ("/login?a#x", PathError::Fragment),
        ("/..", PathError::AboveRoot),
        ("/a/../..", PathError::AboveRoot),
        ("/a/%2e%2e/%2e%2e/etc", PathError::AboveRoot),
        ("/a/..;/admin", PathError::DotParameters),
        ("/a/..;x=1/admin", PathError::DotParameters),
        ("/a/.;x/admin", PathError::DotParameters),
        ("/a/%2e%2e;x/admin", PathError::DotParameters),
        ("/a/..%3bx/admin", PathError::DotParameters),
        ("/a%2fb", PathError::EncodedSeparator),
        ("/a%2Fb", PathError::EncodedSeparator),
        ("/a%5cb", PathError::EncodedSeparator),
        ("/a\\b", PathError::Backslash),
        ("/a%00", PathError::Control),
        ("/a\0", PathError::Control),
        ("/a%0d%0ab", PathError::Control),
        ("/a\nb", PathError::Control),
        ("/a%7f", PathError::Control),
        ("/%", PathError::MalformedEscape),
        ("/%2", PathError::MalformedEscape),
        ("/%zz", PathError::MalformedEscape),
        ("/%u002e", PathError::MalformedEscape),
        ("/%+1", PathError::MalformedEscape),
        ("/%252e", PathError::EncodedTwice),
        ("/%25%32%65", PathError::EncodedTwice),
        ("/%252%65", PathError::EncodedTwice),
        ("/%25252e", PathError::EncodedTwice),
        ("/%c0%ae%c0%ae/", PathError::NotUtf8),
        ("/%e0%80%af", PathError::NotUtf8),
        ("/%ff", PathError::NotUtf8),
        ("/%c3", PathError::NotUtf8),
        ("/%c3/%a9", PathError::NotUtf8),
        ("/%ed%a0%80", PathError::NotUtf8),
    ];
    for (raw, error) in refused {
        assert_eq!(canonical(raw), Err(error), "{raw:?}");
    }
}

#[test]
fn a_path_has_at_most_so_many_bytes_and_segments() {
    let long = |len: usize| format!("/{}", "a".repeat(len - 1));
    let deep = |segments: usize| "/a".repeat(segments);

    assert!(canonical(&long(MAX_LEN)).is_ok());
    assert_eq!(canonical(&long(MAX_LEN + 1)), Err(PathError::TooLong));
    assert_eq!(canonical(&format!("/{}", "é".repeat(MAX_LEN / 6 + 1))), Err(PathError::TooLong));
    assert!(canonical(&deep(MAX_SEGMENTS)).is_ok());
    assert_eq!(canonical(&deep(MAX_SEGMENTS + 1)), Err(PathError::TooManySegments));
    let query = format!("/login?{}", "a".repeat(2 * MAX_LEN));
    assert_eq!(canonical(&query).as_deref(), Ok("/login"), "a query does not count");
}

/// E39, over texts made of everything that matters in a path, and over any bytes.
#[test]
fn the_canonical_form_is_its_own_canonical_form() {
    const PIECES: [&str; 32] = [
        "/", "/", "/", "//", ".", "..", "/./", "/../", "%2e", "%2E%2e", "%2f", "%25", "%", "2",
        "e", "5c", ";", "?", "a", "B", "login", "%41", "%c3%a9", "%C0%AE", "é", " ", "~", "%7E",
        ":", "%3a", "{", "\\",
    ];
    let mut rng = Rng::new(39);
    let mut accepted = 0;
    for round in 0..400_000 {
        let mut raw = String::from("/");
        for _ in 0..rng.below(9) {
            if round % 4 == 0 {
                raw.push(char::from(rng.below(256) as u8));
            } else {
                raw.push_str(rng.pick(&PIECES));
            }
        }
        let Ok(once) = canonical(&raw) else { continue };
        accepted += 1;
        assert_eq!(canonical(&once).as_deref(), Ok(once.as_ref()), "{raw:?}");
        assert!(once.starts_with('/') && !once.contains("//") && once.is_ascii(), "{raw:?}");
        assert!(!once.split('/').any(|segment| segment == "." || segment == ".."), "{raw:?}");
        if once == raw.as_str() {
            assert!(matches!(once, std::borrow::Cow::Borrowed(_)), "{raw:?} needs no copy");
        }
    }
    assert!(accepted > 50_000, "{accepted}");
}

#[test]
fn a_rule_is_matched_by_every_spelling_of_its_path_and_counts_them_as_one() {
    let set = set(vec![rule("login").on("path", &["/api/login"]).by(&["ip", "path"])]);
    let spellings = [
        "/api/login",
        "/API/Login",
        "/api/login/",
        "//api//login",
        "/api/./login",
        "/x/../api/login",
        "/api/lo%67in",
        "/api;v=1/login;jsessionid=7",
        "/;x/api/login",
        "/api/;/login",
        "/api/login?next=/",
        "/%41pi/login",
    ];

    let keys: BTreeSet<Vec<u8>> = spellings
        .iter()
        .map(|path| key(&set, &ask(&[("path", path), ("ip", "192.0.2.1")])))
        .collect();

    assert_eq!(keys.len(), 1);
}

/// A custom verb behind a colon, as in Google's APIs: an application decodes `%3A`.
#[test]
fn escapes_of_reserved_characters_match_what_they_stand_for() {
    let set = set(vec![
        rule("a").on("path", &["/v1/jobs:run"]),
        rule("b").on("path", &["/caf%C3%A9", "/tea time"]),
    ]);

    for path in ["/v1/jobs:run", "/v1/jobs%3Arun", "/v1/jobs%3arun"] {
        assert_eq!(charged(&set, &ask(&[("path", path)])), ["a"], "{path}");
    }
    for path in ["/café", "/caf%c3%a9", "/tea%20time", "/tea time"] {
        assert_eq!(charged(&set, &ask(&[("path", path)])), ["b"], "{path}");
    }
    assert!(charged(&set, &ask(&[("path", "/v1/jobs%3Brun")])).is_empty());
}

#[test]
fn what_a_path_captures_counts_alike_however_it_is_spelled() {
    let set = set(vec![
        rule("one").on("path", &["/orders/{id}"]).by(&["path.id"]),
        rule("rest").on("path", &["/files/{*name}"]).by(&["path.name"]),
        rule("whole").on("kind", &["w"]).by(&["path"]),
    ]);
    let key = |path: &str| key(&set, &ask(&[("path", path)]));
    let whole = |path: &str| crate::support::key(&set, &ask(&[("path", path), ("kind", "w")]));

    for path in ["/orders/AB", "/orders/ab;x=1", "/orders/%61b/", "/Orders//ab?x"] {
        assert_eq!(key(path), key("/orders/ab"), "{path}");
    }
    assert_ne!(key("/orders/ab"), key("/orders/ac"));
    assert_eq!(key("/files/A/b/"), key("/files/a;v=1/b"));
    assert_ne!(key("/files/a/b"), key("/files/ab"));
    assert_ne!(key("/files/a/b"), key("/files/a"));
    assert!(key("/files").ends_with(b"t0:"), "the rest may be nothing");
    assert_eq!(whole("/A/b/"), whole("/a/b"));
    assert_ne!(whole("/a/b"), whole("/a/c"));
    assert_ne!(whole("/"), whole("/a"));
}

#[test]
fn case_counts_only_where_the_domain_says_so() {
    let rules = || vec![rule("a").on("path", &["/Login"])];
    let folded = set_of(shop(rules()));
    let strict = set_of(Domain { path_case: PathCase::Sensitive, ..shop(rules()) });
    let asked = |path| ask(&[("path", path)]);

    assert_eq!(charged(&folded, &asked("/lOGIN")), ["a"]);
    assert_eq!(charged(&strict, &asked("/Login")), ["a"]);
    assert!(charged(&strict, &asked("/login")).is_empty());
}

#[test]
fn templates_match_whole_segments() {
    let set = set(vec![
        rule("root").on("path", &["/"]),
        rule("one").on("path", &["/orders/{id}"]),
        rule("rest").on("path", &["/static/{*rest}"]),
        rule("below").on("path", &["/api/*"]),
        rule("slash").on("path", &["/slash/"]),
    ]);
    let matched = |path| charged(&set, &ask(&[("path", path)]));

    assert_eq!(matched("/"), ["root"]);
    assert_eq!(matched("/orders/7"), ["one"]);
    assert_eq!(matched("/orders/7/"), ["one"]);
    assert_eq!(matched("/slash"), ["slash"]);
    for path in ["/static", "/static/", "/static/a", "/static/a/b"] {
        assert_eq!(matched(path), ["rest"], "{path}");
    }
    for path in ["/api", "/api/x", "/api/x/y"] {
        assert_eq!(matched(path), ["below"], "{path}");
    }
    for path in ["/orders", "/orders/", "/orders/7/8", "/statics", "/staticx/a", "/apix"] {
        assert!(matched(path).is_empty(), "{path}");
    }
}

/// C18: a client that rotates a path parameter stays on one counter.
#[test]
fn counting_by_path_counts_by_the_template() {
    let set = set(vec![rule("verify").on("path", &["/verify/{code}", "/verify/me"]).by(&["path"])]);
    let key = |path| key(&set, &ask(&[("path", path)]));

    assert_eq!(key("/verify/1"), key("/verify/2"));
    assert!(key("/verify/1").ends_with(b"p14:/verify/{code}"));
    assert!(key("/verify/me").ends_with(b"p10:/verify/me"), "the most specific one is meant");
}

#[test]
fn a_method_is_matched_in_capitals_and_an_unknown_one_by_the_rule_for_all() {
    let set = set(vec![rule("all"), rule("post").on("method", &["POST"])]);

    for method in ["POST", "post", "pOST"] {
        assert_eq!(charged(&set, &ask(&[("method", method)])), ["post", "all"]);
    }
    assert_eq!(charged(&set, &ask(&[("method", "FOO")])), ["all"]);
    assert_eq!(
        charged(&set, &ask(&[("method", "POST"), ("header.x-http-method-override", "GET")])),
        ["post", "all"],
        "the real method counts"
    );
    for method in ["", "G T", "GET\r\n", "GÉT"] {
        assert_eq!(Ask::new("a").with("method", method).unwrap_err(), AskError::Method);
    }
}

#[test]
fn every_spelling_of_a_host_matches_and_two_hosts_are_refused() {
    let set = set(vec![rule("a").on("host", &["A.com"])]);

    for host in ["a.com", "A.com", "a.com.", "a.com:80", "A.COM.:8080"] {
        assert_eq!(charged(&set, &ask(&[("host", host)])), ["a"], "{host}");
    }
    let two = Ask::new("a").with("host", "a.com").unwrap().with("host", "b.com");
    assert_eq!(two.unwrap_err(), AskError::Twice);
    let empty = Ask::new("a").with("host", "");
    assert_eq!(empty.unwrap_err(), AskError::Host(HostError::Empty));
}

#[test]
fn nobody_claims_what_a_path_captures() {
    assert_eq!(Ask::new("a").with("path.id", "7").unwrap_err(), AskError::Captured);
}

#[test]
fn an_ask_that_is_refused_an_attribute_is_as_it_was() {
    let mut ask = Ask::new("a");
    ask.push("user", b"alice").unwrap();

    assert_eq!(ask.push("user", b"bob"), Err(AskError::Twice));
    assert_eq!(ask.push("path", b"/%ff"), Err(AskError::Path(PathError::NotUtf8)));
    assert_eq!(ask.push("path", b"/\xff"), Err(AskError::Path(PathError::NotUtf8)));
    assert_eq!(ask.push("ip", b"1.2.3"), Err(AskError::Address));

    assert_eq!(ask.attributes().collect::<Vec<_>>(), [("user", Attribute::Text(b"alice"))]);
}

#[test]
fn an_ask_has_at_most_64_attributes_and_names_of_128_and_values_of_a_mebibyte() {
    let names: Vec<String> = (0..65).map(|i| format!("a{i}")).collect();
    let value = vec![0; Ask::MAX_VALUE + 1];
    let name = "n".repeat(Ask::MAX_NAME + 1);
    let mut ask = Ask::new("a");
    for name in &names[..64] {
        ask.push(name, b"").unwrap();
    }

    assert_eq!(ask.push(&names[64], b""), Err(AskError::TooMany));
    assert!(Ask::new("a").with(&name[1..], &value[1..]).is_ok());
    assert_eq!(Ask::new("a").with(&name, "").unwrap_err(), AskError::Name);
    assert_eq!(Ask::new("a").with("", "").unwrap_err(), AskError::Name);
    assert_eq!(Ask::new("a").with("a", &value).unwrap_err(), AskError::ValueTooLong);
    let crowded = ask.ip([192, 0, 2, 1].into());
    assert!(crowded.attribute("ip").is_some(), "an address cannot be crowded out");
}

#[test]
fn of_many_templates_of_one_rule_the_most_specific_one_is_meant() {
    let mut paths: Vec<String> = (0..50).map(|i| format!("/p{i}/{{x}}")).collect();
    paths.extend(["/{*all}".to_owned(), "/p7/special".to_owned(), "/{one}".to_owned()]);
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let set = set(vec![rule("r").on("path", &paths).by(&["path"])]);
    let ends = |path: &str, template: &[u8]| key(&set, &ask(&[("path", path)])).ends_with(template);

    assert!(ends("/p7/special", b":/p7/special"));
    assert!(ends("/p7/other", b":/p7/{x}"));
    assert!(ends("/p7", b":/{one}"));
    assert!(ends("/p7/a/b", b":/{*all}"));
}
