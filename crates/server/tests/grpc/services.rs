//! Health and reflection.

use tokio_stream::StreamExt;
use tollgate_server::protocols::grpc::{GrpcSettings, HEALTH_NAME};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus as HealthStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::support::{GrpcServer, limiter};

#[tokio::test]
async fn health_is_told_under_the_names_people_ask_for() {
    let server = GrpcServer::open(limiter("domain: shop"), GrpcSettings::default()).await;
    let mut client = HealthClient::new(server.channel().await);
    let mut ask = async |service: &str| {
        let request = HealthCheckRequest { service: service.to_owned() };
        client.check(request).await.map(|told| told.into_inner().status())
    };

    for name in ["", HEALTH_NAME, "envoy.service.ratelimit.v3.RateLimitService"] {
        assert_eq!(ask(name).await.unwrap(), HealthStatus::Serving, "{name}");
    }
    assert_eq!(ask("nobody").await.unwrap_err().code(), tonic::Code::NotFound);
    server.health.set_service_status(HEALTH_NAME, ServingStatus::NotServing).await;
    assert_eq!(ask(HEALTH_NAME).await.unwrap(), HealthStatus::NotServing, "it is about to end");
}

#[tokio::test]
async fn reflection_lists_the_services_and_their_files() {
    let server = GrpcServer::open(limiter("domain: shop"), GrpcSettings::default()).await;
    let mut client = ServerReflectionClient::new(server.channel().await);
    let mut ask = async |message: MessageRequest| {
        let request =
            ServerReflectionRequest { host: String::new(), message_request: Some(message) };
        let mut answers =
            client.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
        answers.next().await.unwrap().unwrap().message_response.unwrap()
    };

    let listed = ask(MessageRequest::ListServices(String::new())).await;
    let MessageResponse::ListServicesResponse(listed) = listed else { panic!("{listed:?}") };
    let names: Vec<&str> = listed.service.iter().map(|service| &*service.name).collect();
    assert!(names.contains(&"envoy.service.ratelimit.v3.RateLimitService"), "{names:?}");
    assert!(names.contains(&"grpc.health.v1.Health"), "{names:?}");

    for file in [
        "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
        "envoy/type/v3/ratelimit_unit.proto",
        "google/protobuf/struct.proto",
        "google/protobuf/wrappers.proto",
    ] {
        let found = ask(MessageRequest::FileByFilename(file.to_owned())).await;
        assert!(matches!(found, MessageResponse::FileDescriptorResponse(_)), "{file}: {found:?}");
    }
    let symbol = "envoy.service.ratelimit.v3.RateLimitService".to_owned();
    let files = ask(MessageRequest::FileContainingSymbol(symbol)).await;
    let MessageResponse::FileDescriptorResponse(files) = files else { panic!("{files:?}") };
    assert!(files.file_descriptor_proto.iter().any(|file| {
        String::from_utf8_lossy(file).contains("envoy/service/ratelimit/v3/rls.proto")
    }));
}
