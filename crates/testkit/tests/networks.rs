//! Gateways between networks that have names, looked up by the server.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pilot_envoy_api::envoy::service::discovery::v3::DiscoveryRequest;
use pilot_testkit::http_call;
use pilot_testkit::server::PilotServer;
use pilot_testkit::xds_client::{StateOfTheWorld, Stream, node};
use pilot_xds::TypeUrl;

const NETWORKS: &str = "networks:\n  far:\n    gateways:\n    - {address: localhost, port: 15443}\n    \
                        - {address: gateway.invalid, port: 15443}\n";

const SERVICE: &str = "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: e, namespace: default}
spec:
  hosts: [e.com]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{name: http, number: 80, protocol: HTTP}]
  endpoints: [{address: 10.2.0.1, network: far, serviceAccount: sa}]
";

/// What a proxy is told about the service first.
async fn endpoints(server: &PilotServer) -> String {
    let mut stream = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
    stream.send(DiscoveryRequest {
        type_url: TypeUrl::Endpoint.as_str().to_owned(),
        resource_names: vec!["outbound|80||e.com".to_owned()],
        node: Some(node("near")),
        ..DiscoveryRequest::default()
    });
    let response = stream.next().await.unwrap().unwrap();
    let bytes: Vec<u8> = response.resources.iter().flat_map(|any| any.value.clone()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn whoever_is_served_is_told_the_addresses_of_gateways_with_names() {
    let scratch = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(scratch.path().join("config")).unwrap();
    std::fs::write(scratch.path().join("config/service.yaml"), SERVICE).unwrap();
    let networks = scratch.path().join("networks.yaml");
    std::fs::write(&networks, NETWORKS).unwrap();
    let flag = format!("--networksConfig={}", networks.display());
    let server = PilotServer::start(scratch.path(), &[&flag]).await.unwrap();
    let told = endpoints(&server).await;
    assert!(told.contains("127.0.0.1") && !told.contains("10.2.0.1"), "{told:?}");
    let issues = http_call::get(server.http, "/debug/issues").await.unwrap().1;
    assert!(issues.contains("networks.far.gateways[1].address"), "{issues}");
    assert!(
        issues.contains("gateway.invalid was not found") && !issues.contains("localhost was"),
        "{issues}"
    );
    drop(server);

    let off = [("RESOLVE_HOSTNAME_GATEWAYS", "false")];
    let server = PilotServer::start_in(scratch.path(), &[&flag], &off).await.unwrap();
    assert!(endpoints(&server).await.contains("10.2.0.1"), "without gateways all is reached directly");
    let issues = http_call::get(server.http, "/debug/issues").await.unwrap().1;
    assert!(issues.contains("localhost is not looked up"), "{issues}");
}
