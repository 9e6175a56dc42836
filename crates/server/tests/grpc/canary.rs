//! A secret that is said to the server comes out nowhere over gRPC either (C30); `tests/server/canary.rs`
//! is the same for the other listeners.

use tokio_stream::StreamExt as _;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

use crate::process::Program;
use crate::program::{SHOP, file};
use crate::server::TempDir;
use crate::support::{Client, RateLimitRequest, channel, d, shop};

const CANARY: &str = "canary-9b70";
const FLEET: &str = "9b709b709b709b709b709b709b709b70";

fn asked<M>(token: &str, message: M) -> tonic::Request<M> {
    let mut request = tonic::Request::new(message);
    let said = format!("Bearer {token}").parse().unwrap();
    request.metadata_mut().insert("authorization", said);
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn no_output_of_the_grpc_listener_holds_a_secret() {
    let dir = TempDir::new();
    let rules = file(&dir, "shop.yaml", SHOP);
    let program = Program::serve(
        &[
            "--envoy-rules",
            &rules,
            "--log-level=trace",
            "--envoy-headers=on",
            "--envoy-metadata=include",
            "--store=redis://user:canary-9b70-redis@127.0.0.1:1/0",
            "--store-password=canary-9b70-password",
            "--api-token=canary-9b70-api",
            "--admin-token=canary-9b70-admin",
            &format!("--secret={FLEET}"),
        ],
        7,
    );
    let mut outputs = vec![program.said.clone()];
    let mut client = Client::at(program.grpc).await;

    let wrong = client.raw(asked("canary-9b70-wrong", shop(&[d("two=a")]))).await.unwrap_err();
    assert_eq!(wrong.code(), tonic::Code::Unauthenticated);
    outputs.push(format!("{wrong:?}"));
    for message in [shop(&[d("two=a"), d("ten=a")]), shop(&[]), RateLimitRequest::default()] {
        let answered = client.raw(asked("canary-9b70-api", message)).await;
        outputs.push(format!("{answered:?}"));
    }
    let health = HealthClient::new(channel(program.grpc).await)
        .check(asked("canary-9b70-api", HealthCheckRequest::default()))
        .await;
    outputs.push(format!("{:?}", health.unwrap()));
    let all = MessageRequest::ListServices(String::new());
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(all) };
    let mut reflected = ServerReflectionClient::new(channel(program.grpc).await)
        .server_reflection_info(tokio_stream::once(request))
        .await
        .unwrap();
    outputs.push(format!("{:?}", reflected.metadata()));
    outputs.push(format!("{:?}", reflected.get_mut().next().await.unwrap().unwrap()));

    program.terminate();
    let (code, log) = program.ended();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("gRPC call"), "the log is as loud as can be: {log}");
    assert!(outputs.iter().any(|text| text.contains("overall_code")), "{outputs:?}");
    outputs.push(log);
    for text in &outputs {
        assert!(!text.contains(CANARY), "{text}");
        assert!(!text.contains(&FLEET[..16]), "{text}");
    }
}
