//! The server where there are more connections than files may be open.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::time::Duration;

use pilot_envoy_api::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use pilot_testkit::http_call;
use pilot_testkit::server::PilotServer;
use pilot_testkit::xds_client::{Delta, Stream, node};
use pilot_xds::TypeUrl;
use tokio::net::TcpStream;

fn write(config: &Path, address: &str) {
    std::fs::create_dir_all(config).unwrap();
    let entry = format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: a, namespace: default}}\n\
         spec: {{hosts: [a.example], resolution: STATIC, ports: [{{number: 80, name: http, protocol: HTTP}}], endpoints: [{{address: {address}}}]}}\n"
    );
    std::fs::write(config.join("a.yaml"), entry).unwrap();
}

/// A stream that has its endpoints.
async fn connect(server: &PilotServer, name: &str) -> anyhow::Result<Stream<Delta>> {
    let mut stream = Stream::<Delta>::open(server.grpc).await?;
    stream.send(DeltaDiscoveryRequest {
        type_url: TypeUrl::Endpoint.as_str().to_owned(),
        resource_names_subscribe: vec!["outbound|80||a.example".to_owned()],
        node: Some(node(name)),
        ..DeltaDiscoveryRequest::default()
    });
    told(&mut stream).await?;
    Ok(stream)
}

/// The endpoints come.
async fn told(stream: &mut Stream<Delta>) -> anyhow::Result<()> {
    let response = stream.next().await??;
    assert_eq!((response.type_url.as_str(), response.resources.len()), (TypeUrl::Endpoint.as_str(), 1));
    stream.send(DeltaDiscoveryRequest {
        type_url: response.type_url,
        response_nonce: response.nonce,
        ..DeltaDiscoveryRequest::default()
    });
    Ok(())
}

/// For how many hundredths of a second the server has computed.
fn computed(server: &PilotServer) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.process.id().unwrap())).unwrap();
    let after_name: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // The fields behind the name begin with the third.
    after_name[11].parse::<u64>().unwrap() + after_name[12].parse::<u64>().unwrap()
}

#[tokio::test]
async fn what_a_shell_allows_at_first_is_no_limit() {
    let scratch = tempfile::tempdir().unwrap();
    write(&scratch.path().join("config"), "10.1.0.1");
    let server = PilotServer::start_after(scratch.path(), "ulimit -Sn 64").await.unwrap();
    let mut streams = Vec::new();
    for n in 0..100 {
        streams.push(connect(&server, &format!("p{n}")).await.unwrap());
    }
    write(&server.config, "10.1.0.2");
    for stream in &mut streams {
        told(stream).await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_is_full_serves_whom_it_has_and_does_not_spin() {
    let scratch = tempfile::tempdir().unwrap();
    write(&scratch.path().join("config"), "10.1.0.1");
    let server = PilotServer::start_after(scratch.path(), "ulimit -n 80").await.unwrap();
    let mut first = connect(&server, "first").await.unwrap();
    let mut crowd = Vec::new();
    for _ in 0..200 {
        crowd.push(TcpStream::connect(server.grpc).await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = computed(&server);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let spent = computed(&server) - before;
    assert!(spent < 100, "of two seconds it computed for {spent} hundredths of one");
    write(&server.config, "10.1.0.2");
    told(&mut first).await.unwrap();
    let (status, _) = http_call::get(server.http, "/ready").await.unwrap();
    assert_eq!(status, 200, "there is room to ask");
    drop(crowd);
    // Those who have gone are seen to have gone one after the other.
    let mut late = loop {
        match connect(&server, "late").await {
            Ok(stream) => break stream,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    write(&server.config, "10.1.0.3");
    told(&mut first).await.unwrap();
    told(&mut late).await.unwrap();
}
