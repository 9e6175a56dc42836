//! Wrong tokens over gRPC.

use crate::process::Program;
use crate::program::{SHOP, file};
use crate::server::{TempDir, metric};
use crate::support::{Client, d, shop};

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_is_counted_and_logged_with_the_peer_and_the_id() {
    let dir = TempDir::new();
    let rules = file(&dir, "shop.yaml", SHOP);
    let program = Program::serve(&["--envoy-rules", &rules, "--api-token=canary-32-right"], 7);
    let mut client = Client::at(program.grpc).await;
    let mut wrong = tonic::Request::new(shop(&[d("two=a")]));
    wrong.metadata_mut().insert("authorization", "Bearer canary-32-wrong".parse().unwrap());
    wrong.metadata_mut().insert("x-request-id", "mine-2".parse().unwrap());

    assert_eq!(client.raw(wrong).await.unwrap_err().code(), tonic::Code::Unauthenticated);
    let none = tonic::Request::new(shop(&[d("two=a")]));
    assert_eq!(client.raw(none).await.unwrap_err().code(), tonic::Code::Unauthenticated);

    assert_eq!(metric(program.admin, "tollgate_wrong_tokens_total{listener=\"grpc\"}"), 2);
    program.terminate();
    let (_, log) = program.ended();
    let line = log.lines().find(|line| line.contains("wrong token")).unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!((&line["listener"], &line["request"]), (&"grpc".into(), &"mine-2".into()));
    assert!(line["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    assert!(!log.contains("canary-32"), "{log}");
}
