//! Proxies that are connected and do not read what they are sent.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

use pilot_envoy_api::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use pilot_testkit::server::PilotServer;
use pilot_testkit::xds_client::{Delta, Stream, node};
use pilot_xds::TypeUrl;
use tonic::transport::Endpoint;

const SERVICES: usize = 300;
const SILENT: usize = 50;
const CHANGES: u64 = 30;
/// Less than anything that they ask for.
const WINDOW: u32 = 16 << 10;
/// In KiB: what a silent client may cost, with its windows and those of the kernel; and how much more all of them may cost
/// after all changes. If what they were not sent were kept for each, it would be a multiple of that.
const MOST_EACH: u64 = 1 << 10;
const MOST_LATER: u64 = 48 << 10;

/// As a whole, so that no other state is seen.
fn write(config: &Path, name: &str, text: &str) {
    std::fs::create_dir_all(config).unwrap();
    let new = config.join("new");
    std::fs::write(&new, format!("apiVersion: networking.istio.io/v1\n{text}\n")).unwrap();
    std::fs::rename(new, config.join(format!("{name}.yaml"))).unwrap();
}

fn service(config: &Path, service: usize, address: &str) {
    let text = format!(
        "kind: ServiceEntry\nmetadata: {{name: s{service}, namespace: default}}\n\
         spec: {{hosts: [s{service}.example], resolution: STATIC, ports: [{{number: 80, name: http, protocol: HTTP}}], \
         endpoints: [{{address: {address}}}]}}"
    );
    write(config, &format!("s{service}"), &text);
}

/// Changes the clusters of all services.
fn timeout(config: &Path, seconds: u64) {
    let text = format!(
        "kind: DestinationRule\nmetadata: {{name: all, namespace: default}}\n\
         spec: {{host: '*.example', trafficPolicy: {{connectionPool: {{tcp: {{connectTimeout: {seconds}s}}}}}}}}"
    );
    write(config, "all", &text);
}

/// Memory of the server, in KiB.
fn memory(server: &PilotServer) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.process.id().unwrap())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

fn ask(stream: &Stream<Delta>, type_url: TypeUrl, name: &str) {
    stream.send(DeltaDiscoveryRequest {
        type_url: type_url.as_str().to_owned(),
        resource_names_subscribe: vec![name.to_owned()],
        node: Some(node("reads")),
        ..DeltaDiscoveryRequest::default()
    });
}

/// The next response of a type; those before it are accepted too.
async fn next(stream: &mut Stream<Delta>, type_url: TypeUrl) -> DeltaDiscoveryResponse {
    loop {
        let response = stream.next().await.unwrap().unwrap();
        stream.send(DeltaDiscoveryRequest {
            type_url: response.type_url.clone(),
            response_nonce: response.nonce.clone(),
            ..DeltaDiscoveryRequest::default()
        });
        if response.type_url == type_url.as_str() {
            return response;
        }
    }
}

/// A client that asks for everything and reads nothing of it.
async fn silent(server: &PilotServer) -> Stream<Delta> {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc)).unwrap();
    let endpoint = endpoint.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
    let stream = Stream::<Delta>::open_on(endpoint.connect().await.unwrap()).await.unwrap();
    for type_url in [TypeUrl::Cluster, TypeUrl::Listener] {
        ask(&stream, type_url, "*");
    }
    stream
}

#[tokio::test]
async fn clients_that_do_not_read_cost_little_and_keep_nobody_waiting() {
    let scratch = tempfile::tempdir().unwrap();
    let config = scratch.path().join("config");
    (0..SERVICES).for_each(|at| service(&config, at, "10.1.0.1"));
    let server = PilotServer::start(scratch.path(), &[]).await.unwrap();
    let mut reads = Stream::<Delta>::open(server.grpc).await.unwrap();
    ask(&reads, TypeUrl::Cluster, "*");
    assert!(next(&mut reads, TypeUrl::Cluster).await.resources.len() >= SERVICES);
    ask(&reads, TypeUrl::Endpoint, "outbound|80||s0.example");
    next(&mut reads, TypeUrl::Endpoint).await;
    timeout(&config, 100);
    next(&mut reads, TypeUrl::Cluster).await;
    let alone = memory(&server);

    let mut crowd = Vec::new();
    for _ in 0..SILENT {
        crowd.push(silent(&server).await);
    }
    let mut before = 0;
    for change in 0..CHANGES {
        timeout(&config, 1 + change);
        assert!(next(&mut reads, TypeUrl::Cluster).await.resources.len() >= SERVICES);
        service(&config, 0, &format!("10.2.0.{}", 1 + change));
        next(&mut reads, TypeUrl::Endpoint).await;
        if change == 0 {
            before = memory(&server);
        }
    }
    let after = memory(&server);
    println!("{alone} KiB, with {SILENT} who do not read {before}, {CHANGES} changes later {after}");
    let most = alone + MOST_EACH * u64::try_from(SILENT).unwrap() + MOST_LATER;
    assert!(before <= most, "{alone} KiB, and with {SILENT} who do not read {before}");
    assert!(after <= before + MOST_LATER, "{before} KiB, and after {CHANGES} changes {after}");
    drop(crowd);
}
