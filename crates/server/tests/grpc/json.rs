//! `/json`, as the reference answers it.

use tollgate_server::protocols::grpc::{
    GrpcSettings, HeaderNames, MAX_MESSAGE, Metadata, RateLimits,
};

use crate::support::limiter;

const SHOP: &str = "
domain: shop
descriptors:
  - { key: two, metadata: { tier: 1 }, rate_limit: { unit: minute, requests_per_unit: 2, name: pair } }
  - { key: free, rate_limit: { unlimited: true } }
";

#[tokio::test]
async fn a_request_in_json_is_answered_in_json() {
    let limits = RateLimits::new(limiter(SHOP), GrpcSettings::default());
    let ask = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"two","value":"a"}]}, {"entries":[{"key":"x","value":""}]}]}"#;

    let (status, body) = limits.answer_json(ask).await;

    assert_eq!(status, 200);
    assert_eq!(
        body,
        r#"{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"name":"pair","requestsPerUnit":2,"unit":"MINUTE"},"durationUntilReset":"40s","limitRemaining":1},{"code":"OK"}]}"#
    );
    assert_eq!(limits.answer_json(ask).await.0, 200);
    let (status, body) = limits.answer_json(ask).await;
    assert_eq!(status, 429);
    assert!(
        body.starts_with(r#"{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT","#),
        "{body}"
    );
}

#[tokio::test]
async fn every_field_has_its_spellings() {
    let limits = RateLimits::new(limiter(SHOP), GrpcSettings::default());
    let asked = |descriptor: &str| format!(r#"{{"domain":"shop","descriptors":[{descriptor}]}}"#);
    let entries = r#""entries":[{"key":"two","value":"a"}]"#;
    for (descriptor, status, left) in [
        (format!(r#"{{{entries},"hitsAddend":"2"}}"#), 200, None),
        (format!(r#"{{{entries},"hits_addend":0}}"#), 200, None),
        (format!(r#"{{{entries},"hitsAddend":1}}"#), 429, None),
        (format!(r#"{{{entries},"hitsAddend":1,"isNegativeHits":true}}"#), 200, Some(1)),
        (format!(r#"{{{entries},"is_negative_hits":false,"limit":null}}"#), 200, None),
        (format!(r#"{{{entries},"limit":{{"requestsPerUnit":5,"unit":"HOUR"}}}}"#), 200, Some(4)),
        (format!(r#"{{{entries},"limit":{{"requests_per_unit":5,"unit":3}}}}"#), 200, Some(3)),
    ] {
        let (answered, body) = limits.answer_json(&asked(&descriptor)).await;
        assert_eq!(answered, status, "{descriptor}: {body}");
        let remaining = left.map(|left: u32| format!(r#""limitRemaining":{left}"#));
        let has = body.contains(r#""limitRemaining""#);
        assert!(remaining.map_or(!has, |text| body.contains(&text)), "{descriptor}: {body}");
    }
    let wide = r#"{"domain":"shop","hitsAddend":3,"descriptors":[{"entries":[{"key":"two","value":"b"}]}]}"#;
    assert_eq!(limits.answer_json(wide).await.0, 429);
}

#[tokio::test]
async fn whatever_goes_wrong_is_400() {
    let limits = RateLimits::new(limiter(SHOP), GrpcSettings::default());
    for (text, says) in [
        ("", "EOF"),
        ("[]", "the request is not an object"),
        ("{", "EOF"),
        (r#"{"domain":"shop"}"#, "rate limit descriptor list must not be empty"),
        (r#"{"descriptors":[{}]}"#, "rate limit domain must not be empty"),
        (r#"{"domain":1}"#, "`domain` is not a string"),
        (r#"{"domain":"a","domain":"b"}"#, "a field is repeated"),
        (r#"{"domian":"a"}"#, "unknown field \"domian\""),
        (r#"{"hitsAddend":-1}"#, "`hitsAddend` is not a whole number in range"),
        (r#"{"hitsAddend":4294967296}"#, "`hitsAddend` is not a whole number in range"),
        (r#"{"hitsAddend":1e400}"#, "number out of range"),
        (r#"{"hitsAddend":1.5}"#, "`hitsAddend` is not a whole number in range"),
        (r#"{"descriptors":{}}"#, "`descriptors` is not a list"),
        (r#"{"descriptors":[7]}"#, "a descriptor is not an object"),
        (r#"{"descriptors":[{"entries":[{"keys":"a"}]}]}"#, "unknown field \"keys\""),
        (r#"{"descriptors":[{"limit":{"unit":"WEEK"}}]}"#, "unknown name of `unit`"),
        (r#"{"descriptors":[{"isNegativeHits":1}]}"#, "`isNegativeHits` is neither true nor false"),
        (
            r#"{"domain":"shop","descriptors":[{"entries":[{"key":"two"}],"limit":{"unit":0}}]}"#,
            "has no known unit",
        ),
    ] {
        let (status, body) = limits.answer_json(text).await;
        assert_eq!(status, 400, "{text}");
        assert!(body.contains(says), "{text}: {body}");
    }
    let deep = "[".repeat(100_000);
    assert_eq!(limits.answer_json(&deep).await.0, 400, "too deep");
    let entry = |len: usize| {
        let value = "x".repeat(len);
        format!(
            r#"{{"domain":"d","descriptors":[{{"entries":[{{"key":"k","value":"{value}"}}]}}]}}"#
        )
    };
    let longest = MAX_MESSAGE - entry(0).len();
    assert_eq!(limits.answer_json(&entry(longest)).await.0, 200);
    assert_eq!(limits.answer_json(&entry(longest + 1)).await.0, 400);
    let fields: Vec<String> = (0..100).map(|i| format!(r#""f{i}":0"#)).collect();
    assert_eq!(limits.answer_json(&format!("{{{}}}", fields.join(","))).await.0, 400);
}

#[tokio::test]
async fn headers_and_metadata_are_in_the_body() {
    let mut settings = GrpcSettings::default();
    settings.headers = Some(HeaderNames::default());
    settings.metadata = Metadata::Include;
    let limits = RateLimits::new(limiter(SHOP), settings);
    let ask = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"two","value":"a"}]}]}"#;

    let (_, body) = limits.answer_json(ask).await;

    assert!(body.contains(r#""responseHeadersToAdd":[{"key":"RateLimit-Limit","value":"2"},{"key":"RateLimit-Remaining","value":"1"},{"key":"RateLimit-Reset","value":"40"}]"#), "{body}");
    assert!(body.contains(r#""dynamicMetadata":{"descriptors":[{"entries":["two=a"]}],"domain":"shop","metadata":{"tier":1.0}}"#), "{body}");
}
