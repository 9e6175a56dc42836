//! One test for each parser: it is total, and its results are right.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderMap, HeaderValue};
use tollgate::envoy::EnvoyRules;
use tollgate::http::Trust;
use tollgate::rules::{self, Format};

use super::fuzz;
use crate::http::checked_input::InputCheck as _;
use crate::http::framing::Framing;
use crate::protocols::grpc::json;
use crate::protocols::http::{CheckRequest, read, whole_length};
use crate::protocols::resp::parse::{Args, MAX_ARGS, MAX_COMMAND, parse};

/// A command is within its input, its arguments are within it in order, and the same bytes one more
/// at a time are the same command.
#[test]
fn resp() {
    let texts: [&[u8]; 4] = [
        b"*5\r\n$11\r\nCL.THROTTLE\r\n$3\r\nkey\r\n$2\r\n15\r\n$2\r\n30\r\n$2\r\n60\r\n",
        b"*3\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$7\r\nSETNAME\r\n*1\r\n$4\r\nPING\r\n",
        b"CL.THROTTLE \"a b\\x41\" 'c' 1 1 1\r\nPING\r\n",
        b"*0\r\n\r\n*1\r\n$0\r\n\r\n",
    ];
    let words = "\r\n~*~$~*-1\r\n~$-1\r\n~*256\r\n~*257\r\n~$16384\r\n~$16385\r\n~\
                 *9223372036854775807\r\n~\"~\\x";
    fuzz(&texts, words, |input| {
        let mut args = Args::new();
        let parsed = parse(input, &mut args);
        if let Ok(Some(length)) = parsed {
            assert!((1..=input.len().min(MAX_COMMAND)).contains(&length));
            assert!(args.len() <= MAX_ARGS);
            let mut end = 0;
            for range in &args {
                assert!(range.start >= end && range.start <= range.end && range.end <= length);
                end = range.end;
            }
            let found = args.clone();
            assert_eq!(parse(&input[..length], &mut args), Ok(Some(length)), "and nothing behind");
            assert_eq!(args, found);
            assert_ne!(parse(&input[..length - 1], &mut args), Ok(Some(length)));
        }
        if parsed == Ok(None) {
            assert!(input.len() < MAX_COMMAND, "nobody has to keep more than a command");
        }
    });
}

/// Ambiguous input is found however it is split, and within its bytes; a request that is answered
/// without hyper ends where it is said to end.
#[test]
fn requests_of_http() {
    let texts: [&[u8]; 4] = [
        b"POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n{}\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /v1/check HTTP/1.1\r\nHost: a\r\nX: b\r\nContent-Length: 0\r\nAccept: c\r\n\r\nPOST /v1/check HTTP/1.1\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\nT: v\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    ];
    let words = "\r\n~\n~\r~Content-Length: 1\r\n~content-length:~Transfer-Encoding: chunked\r\n~\
                 ffffffffffffffff~18446744073709551615~0\r\n\r\n~ ";
    let taken = AtomicUsize::new(0);
    fuzz(&texts, words, |input| {
        let whole = Framing::default().pass(input);
        assert!(whole.err().is_none_or(|at| at < input.len()));
        for split in [1, 5] {
            let mut framing = Framing::default();
            let parts = input.chunks(split).try_for_each(|part| framing.pass(part));
            assert_eq!(parts.is_err(), whole.is_err());
        }
        if let (Ok(()), Some(length)) = (whole, whole_length(input)) {
            let mut framing = Framing::default();
            assert_eq!(framing.pass(&input[..length]), Ok(()));
            assert_eq!(framing.pass(b"\n"), Err(0), "it is between two requests");
            taken.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert!(taken.load(Ordering::Relaxed) > 100, "many were of that kind");
}

#[test]
fn checks_in_json() {
    let texts: [&[u8]; 2] = [
        br#"{"domain":"shop","attributes":{"user":"alice","ip":"203.0.113.9"},"cost":3,"patience_ms":5}"#,
        br#"{"domain":"s\u0068op","attributes":{"pa\nth":"/\ud83d\ude00"},"lifetime_ms":null}"#,
    ];
    let words = "{~}~[~]~\"~,~:~null~1e400~-0~NaN~\\u0000~\"domain\":\"x\",~18446744073709551616";
    fuzz(&texts, words, |input| {
        if let Ok(check) = read::<CheckRequest<'_>>(input)
            && let Ok(ask) = check.ask()
        {
            let again: serde_json::Value = serde_json::from_slice(input).expect("it was read");
            assert_eq!(again["domain"], *ask.domain());
        }
    });
}

#[test]
fn calls_of_envoy_in_json() {
    let texts: [&[u8]; 2] = [
        br#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"a"}],"hitsAddend":"7"}],"hitsAddend":2}"#,
        br#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"limit":{"requests_per_unit":5,"unit":"MINUTE"},"is_negative_hits":true}]}"#,
    ];
    let words = "{~}~[~]~\"~,~null~4294967296~-1~1.5~\"unit\":3,~\"hits_addend\":0,";
    fuzz(&texts, words, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        assert!(json::read(text).err().is_none_or(|error| !error.to_string().is_empty()));
    });
}

#[test]
fn files_of_envoy() {
    let texts: [&[u8]; 2] = [
        b"domain: shop\ndescriptors:\n  - key: user\n    value: \"a*b\"\n    share_threshold: true\n    rate_limit: {unit: minute, requests_per_unit: 5, name: n, replaces: [{name: m}]}\n    metadata: {a: [1, {b: null}]}\n",
        b"domain: d\ndescriptors:\n  - key: a\n    descriptors:\n      - key: b\n        shadow_mode: true\n        quota_mode: true\n        rate_limit: {unlimited: true}\n",
    ];
    let words = "\n~  - ~: ~{~}~[~&a ~*a~!!int ~|\n~\t~null~value: \"**\"\n~\
                 requests_per_unit: 4294967296\n";
    fuzz(&texts, words, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        match EnvoyRules::load(1, [("fuzz.yaml", text)]) {
            Ok(rules) => assert_eq!(rules.version(), 1),
            Err(problems) => assert!(!problems.to_string().is_empty()),
        }
    });
}

/// Rules that load are written in each format so that the same load again.
#[test]
fn rule_files() {
    let texts: [&[u8]; 3] = [
        b"version: 1\ndomain: shop\nrules:\n  - name: a\n    match: { path: /login, method: POST }\n    by: [ip]\n    limits:\n      - 5 per 1m\n      - { count: 20, per: 1h, algorithm: sliding-log }\n    on-outage: local\nlists:\n  exempt: [10.0.0.0/8]\n",
        b"version = 1\ndomain = \"d\"\n[[rules]]\nname = \"r\"\nby = [\"user\"]\nlimits = [\"3 per 1s\"]\n",
        br#"{"version":1,"domain":"j","rules":[{"name":"r","by":[],"limits":["1 per 1h"],"mode":"shadow"}]}"#,
    ];
    let words = "\n~  - ~: ~{~}~[~]~&a ~*a~0 per 1s~1 per 0s~99999999999999999999~mode: off\n~\
                 replaces: [a]\n";
    fuzz(&texts, words, |input| {
        let Ok(text) = rules::decode(input) else { return };
        for format in [Format::Yaml, Format::Toml, Format::Json] {
            match rules::load(text, format) {
                Ok(set) => {
                    let written = rules::write(set.declaration(), format);
                    let again = rules::load(&written, format);
                    let again = again.unwrap_or_else(|error| panic!("{written}: {error}"));
                    assert_eq!(again.declaration(), set.declaration());
                }
                Err(problems) => assert!(!problems.to_string().is_empty()),
            }
        }
    });
}

/// E40: text in front of what trusted proxies append changes nothing.
#[test]
fn forwarded_headers() {
    let texts: [&[u8]; 3] = [
        b"203.0.113.9, 10.0.0.1, 10.0.0.2",
        b"1.2.3.4:80, [2001:db8::1]:443, unknown, _hidden",
        b"::ffff:1.2.3.4, fe80::1%eth0,\t10.0.0.9",
    ];
    let words = ",~, ~\t~[~]~::~%~10.0.0.1~unknown~256.1.1.1";
    let trust = Trust::proxies(["10.0.0.0/8"]).unwrap();
    let peer = IpAddr::from([10, 0, 0, 1]);
    let client = |said: &[u8]| {
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-for", HeaderValue::from_bytes(said).ok()?);
        trust.client(peer, &headers).ok()
    };
    fuzz(&texts, words, |input| {
        let Some(found) = client(input) else { return };
        let IpAddr::V6(v6) = found else {
            if found != peer && !found.to_string().starts_with("10.") {
                let before = client(&[b"198.51.100.7, ", input].concat());
                assert!(before.is_none_or(|before| before == found), "{found}: {before:?}");
            }
            return;
        };
        assert_eq!(v6.to_ipv4_mapped(), None, "no IPv4 address in IPv6 clothes");
    });
}
