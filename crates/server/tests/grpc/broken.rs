//! Ten thousand requests, broken in every way, as bytes and as JSON: an answer or an error.

use prost::Message;
use tollgate_core::testing::Rng;
use tollgate_server::protocols::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollgate_server::protocols::grpc::{GrpcSettings, Metadata, RateLimits};

use crate::support::{d, limiter, shop};

const SHOP: &str = "
domain: shop
descriptors:
  - { key: two, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: free, value: 'a*', rate_limit: { unlimited: true } }
";

/// Changes some bytes, to those of the alphabet if there is one.
fn broken(rng: &mut Rng, bytes: &mut Vec<u8>, alphabet: &[u8]) {
    for _ in 0..=rng.below(2) {
        let at = rng.below(bytes.len() as u64 + 1) as usize;
        let byte = if alphabet.is_empty() { rng.any() as u8 } else { rng.pick(alphabet) };
        match rng.below(8) {
            0..5 if at < bytes.len() => bytes[at] = byte,
            5 => bytes.insert(at, byte),
            6 if at < bytes.len() => drop(bytes.remove(at)),
            _ => bytes.truncate(at),
        }
    }
}

#[tokio::test]
async fn broken_requests_are_answered_or_refused() {
    let mut settings = GrpcSettings::default();
    settings.metadata = Metadata::Include;
    let limits = RateLimits::new(limiter(SHOP), settings);
    let whole = envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest {
        hits_addend: 3,
        ..shop(&[d("two=a free=b"), d("free=ab"), d("two=a")])
    };
    let whole = whole.encode_to_vec();
    let text = r#"{"domain":"shop","hitsAddend":3,"descriptors":[{"entries":[{"key":"two","value":"a"}],"limit":{"requestsPerUnit":5,"unit":"HOUR"},"hitsAddend":"2","isNegativeHits":true}]}"#;
    let (mut answered, mut read) = (0, 0);
    for seed in 0..10_000 {
        let mut rng = Rng::new(seed);
        let mut bytes = whole.clone();
        broken(&mut rng, &mut bytes, &[]);
        if let Ok(asked) = RateLimitRequest::decode(&*bytes) {
            answered += u64::from(limits.answer(&asked).await.is_ok());
        }
        let mut bytes = text.as_bytes().to_vec();
        broken(&mut rng, &mut bytes, br#"0123456789ab",:{}[]- "#);
        let (status, _) = limits.answer_json(&String::from_utf8_lossy(&bytes)).await;
        assert!([200, 400, 429].contains(&status), "seed {seed}: {status}");
        read += u64::from(status != 400);
    }
    // Requests that are all refused, or all fine, would test only half of the promise.
    assert!((1_000..9_900).contains(&answered), "{answered} were answered");
    assert!((300..9_900).contains(&read), "{read} were read");
}
