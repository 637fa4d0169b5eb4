//! The server as clients meet it: good ones, bad ones, and ones that break off.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use pilot_envoy_api::envoy::config::core::v3::Node;
use pilot_envoy_api::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest,
};
use pilot_envoy_api::google::rpc::Status;
use pilot_testkit::http_call;
use pilot_testkit::server::PilotServer;
use pilot_testkit::xds_client::{Delta, StateOfTheWorld, Stream, node};
use pilot_xds::TypeUrl;
use prost_types::value::Kind;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Code;

fn entry(name: &str, address: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}, namespace: default}}\n\
         spec: {{hosts: [{name}.example], resolution: STATIC, ports: [{{number: 80, name: http, protocol: HTTP}}], endpoints: [{{address: {address}}}]}}\n"
    )
}

async fn start(more: &[&str]) -> (tempfile::TempDir, PilotServer) {
    let scratch = tempfile::tempdir().unwrap();
    write(&scratch.path().join("config"), "a", "10.1.0.1");
    let server = PilotServer::start(scratch.path(), more).await.unwrap();
    (scratch, server)
}

fn write(config: &Path, name: &str, address: &str) {
    std::fs::create_dir_all(config).unwrap();
    std::fs::write(config.join(format!("{name}.yaml")), entry(name, address)).unwrap();
}

fn ask(type_url: TypeUrl, names: &[&str], node: Option<Node>) -> DiscoveryRequest {
    DiscoveryRequest {
        type_url: type_url.as_str().to_owned(),
        resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
        node,
        ..DiscoveryRequest::default()
    }
}

fn subscribe(type_url: TypeUrl, names: &[&str], node: Option<Node>) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: type_url.as_str().to_owned(),
        resource_names_subscribe: names.iter().map(|name| (*name).to_owned()).collect(),
        node,
        ..DeltaDiscoveryRequest::default()
    }
}

/// Does the server still serve somebody else?
async fn still_serves(server: &PilotServer) {
    let mut stream = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
    stream.send(ask(TypeUrl::Cluster, &[], Some(node("other"))));
    let response = stream.next().await.unwrap().unwrap();
    assert!(!response.resources.is_empty());
}

#[tokio::test]
async fn both_protocols_tell_the_same_and_follow_changes() {
    let (_scratch, server) = start(&[]).await;
    let mut whole = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
    whole.send(ask(TypeUrl::Cluster, &[], Some(node("whole"))));
    let clusters = whole.next().await.unwrap().unwrap();
    let mut delta = Stream::<Delta>::open(server.grpc).await.unwrap();
    delta.send(subscribe(TypeUrl::Cluster, &["*"], Some(node("delta"))));
    let entries = delta.next().await.unwrap().unwrap();
    let mut one: Vec<&[u8]> = clusters.resources.iter().map(|any| any.value.as_slice()).collect();
    let mut other: Vec<&[u8]> =
        entries.resources.iter().map(|entry| entry.resource.as_ref().unwrap().value.as_slice()).collect();
    one.sort_unstable();
    other.sort_unstable();
    assert_eq!(one, other);

    let name = "outbound|80||a.example";
    delta.send(subscribe(TypeUrl::Endpoint, &[name], None));
    let endpoints = delta.next().await.unwrap().unwrap();
    assert_eq!(endpoints.resources.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(), [name]);
    let mut accept = subscribe(TypeUrl::Endpoint, &[], None);
    accept.response_nonce = endpoints.nonce;
    delta.send(accept);
    write(&server.config, "a", "10.1.0.2");
    let changed = delta.next().await.unwrap().unwrap();
    assert_eq!(changed.resources.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(), [name]);
    assert_ne!(changed.resources[0].version, endpoints.resources[0].version);
}

#[tokio::test]
async fn who_comes_back_is_told_only_what_changed() {
    let (_scratch, server) = start(&[]).await;
    let mut first = Stream::<Delta>::open(server.grpc).await.unwrap();
    first.send(subscribe(TypeUrl::Cluster, &["*"], Some(node("back"))));
    let all = first.next().await.unwrap().unwrap();
    let held: BTreeMap<String, String> =
        all.resources.iter().map(|entry| (entry.name.clone(), entry.version.clone())).collect();
    drop(first);
    write(&server.config, "b", "10.1.0.3");
    let mut second = Stream::<Delta>::open(server.grpc).await.unwrap();
    let request = DeltaDiscoveryRequest {
        initial_resource_versions: held.into_iter().collect(),
        ..subscribe(TypeUrl::Cluster, &["*"], Some(node("back")))
    };
    second.send(request);
    // The new file may be read before or after the client is back.
    let mut names: Vec<String> = Vec::new();
    while names.is_empty() {
        let response = second.next().await.unwrap().unwrap();
        assert!(response.removed_resources.is_empty());
        names.extend(response.resources.into_iter().map(|entry| entry.name));
        let mut accept = subscribe(TypeUrl::Cluster, &[], None);
        accept.response_nonce = response.nonce;
        second.send(accept);
    }
    assert_eq!(names, ["outbound|80||b.example"]);
    assert!(second.is_silent().await);
}

#[tokio::test]
async fn two_replicas_send_the_same_bytes() {
    let (_one, first) = start(&[]).await;
    let (_two, second) = start(&[]).await;
    // The same files, written in another order.
    write(&first.config, "c", "10.1.0.4");
    write(&first.config, "b", "10.1.0.3");
    write(&second.config, "b", "10.1.0.3");
    write(&second.config, "c", "10.1.0.4");
    let mut told = Vec::new();
    for server in [&first, &second] {
        let mut resources: BTreeMap<String, (String, Vec<u8>)> = BTreeMap::new();
        let mut stream = Stream::<Delta>::open(server.grpc).await.unwrap();
        for t in [TypeUrl::Cluster, TypeUrl::Listener] {
            stream.send(subscribe(t, &["*"], Some(node("replica"))));
        }
        stream.send(subscribe(TypeUrl::Route, &["80"], None));
        while !["outbound|80||b.example", "outbound|80||c.example", "0.0.0.0_80", "80"]
            .iter()
            .all(|n| resources.contains_key(*n))
        {
            let response = stream.next().await.unwrap().unwrap();
            let mut accept =
                DeltaDiscoveryRequest { type_url: response.type_url, ..DeltaDiscoveryRequest::default() };
            accept.response_nonce = response.nonce;
            stream.send(accept);
            for entry in response.resources {
                resources.insert(entry.name, (entry.version, entry.resource.unwrap().value));
            }
        }
        while !stream.is_silent().await {}
        told.push(resources);
    }
    // Whichever step of the changes each began with, the clusters and listeners are the same in the end.
    let of = |at: usize, name: &str| told[at].get(name).cloned();
    for name in [
        "outbound|80||a.example",
        "outbound|80||b.example",
        "outbound|80||c.example",
        "0.0.0.0_80",
        "virtualOutbound",
    ] {
        assert!(of(0, name).is_some(), "{name}");
        assert_eq!(of(0, name), of(1, name), "{name}");
    }
}

#[tokio::test]
async fn a_made_up_first_nonce_is_answered() {
    let (_scratch, server) = start(&[]).await;
    let mut stream = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
    let request = ask(TypeUrl::Cluster, &[], Some(node("istioctl")));
    stream.send(DiscoveryRequest { response_nonce: "2026-01-01".to_owned(), ..request });
    assert!(!stream.next().await.unwrap().unwrap().resources.is_empty());
}

#[tokio::test]
async fn a_bad_introduction_is_told_why() {
    let (_scratch, server) = start(&[]).await;
    let with_id = |id: &str| Some(Node { id: id.to_owned(), ..Node::default() });
    for (node, why) in [
        (None, "missing node information"),
        (with_id("client"), "is not of the form"),
        (with_id("toaster~10.0.0.1~a.b~b.svc.cluster.local"), "\"toaster\" is not served"),
        (with_id("sidecar~nowhere~a.b~b.svc.cluster.local"), "no valid address"),
    ] {
        let mut stream = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
        stream.send(ask(TypeUrl::Cluster, &[], node));
        let status = stream.next().await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(why), "{status}");
    }
    still_serves(&server).await;
}

#[tokio::test]
async fn an_unknown_type_ends_only_the_stream_that_asks() {
    let (_scratch, server) = start(&[]).await;
    let mut good = Stream::<Delta>::open(server.grpc).await.unwrap();
    good.send(subscribe(TypeUrl::Cluster, &["*"], Some(node("good"))));
    let first = good.next().await.unwrap().unwrap();
    let mut bad = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
    bad.send(DiscoveryRequest {
        type_url: "type.googleapis.com/no.such.Thing".to_owned(),
        node: Some(node("bad")),
        ..DiscoveryRequest::default()
    });
    let status = bad.next().await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("no.such.Thing"), "{status}");
    let mut accept = subscribe(TypeUrl::Cluster, &[], None);
    accept.response_nonce = first.nonce;
    good.send(accept);
    write(&server.config, "b", "10.1.0.2");
    assert_eq!(good.next().await.unwrap().unwrap().resources[0].name, "outbound|80||b.example");
}

#[tokio::test]
async fn a_node_of_ten_megabytes_is_refused() {
    let (_scratch, server) = start(&[]).await;
    let huge = prost_types::Value { kind: Some(Kind::StringValue("x".repeat(10 << 20))) };
    let metadata = prost_types::Struct { fields: [("LABELS".to_owned(), huge)].into() };
    let mut stream = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
    stream.send(ask(TypeUrl::Cluster, &[], Some(Node { metadata: Some(metadata), ..node("huge") })));
    let status = stream.next().await.unwrap().unwrap_err();
    assert!(
        matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted | Code::Unknown | Code::Internal),
        "{status}"
    );
    still_serves(&server).await;
}

#[tokio::test]
async fn garbage_and_half_requests_hurt_nobody() {
    let (_scratch, server) = start(&[]).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice();
    let garbage: Vec<u8> = (0..100_000_u32).map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let frame_of_a_megabyte = [preface, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1], &garbage].concat();
    for bytes in [&garbage[..], b"GET / HTTP/1.1\r\n\r\n", preface, &preface[..10], &frame_of_a_megabyte] {
        for address in [server.grpc, server.http, server.monitoring] {
            let mut connection = TcpStream::connect(address).await.unwrap();
            // The server may hang up before it has read everything.
            let _hung_up = connection.write_all(bytes).await;
            let _hung_up = connection.shutdown().await;
            let mut answer = Vec::new();
            let _cut_off =
                tokio::time::timeout(std::time::Duration::from_secs(5), connection.read_to_end(&mut answer))
                    .await;
        }
    }
    // A message that says it is longer than what follows.
    let stream = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
    drop(stream);
    still_serves(&server).await;
    assert_eq!(http_call::get(server.http, "/ready").await.unwrap().0, 200);
}

#[tokio::test]
async fn pages_tell_what_runs_and_what_is_wrong() {
    let (_scratch, mut server) = start(&["--someNewFlag=7", "--anotherOne", "value"]).await;
    let (status, version) = http_call::get(server.monitoring, "/version").await.unwrap();
    assert_eq!((status, version.split('-').count()), (200, 3), "{version}");
    std::fs::write(server.config.join("bad.yaml"), "kind: [").unwrap();
    let http = server.http;
    let is_told = || async {
        http_call::get(http, "/debug/issues").await.is_ok_and(|(_, body)| body.contains("bad.yaml:"))
    };
    server.process.until("the bad file is told", is_told).await.unwrap();
    still_serves(&server).await;
    let (_, metrics) = http_call::get(server.monitoring, "/metrics").await.unwrap();
    for line in [
        "pilot_xds_pushes{type=\"cds\"}",
        "pilot_issues 1",
        "pilot_info{version=",
        "process_resident_memory_bytes",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    for flag in ["--someNewFlag", "--anotherOne"] {
        assert!(server.process.output().contains(&format!("unknown flag {flag} has no effect")), "{flag}");
    }
    // Told once, not with every change.
    write(&server.config, "c", "10.1.0.9");
    still_serves(&server).await;
    assert_eq!(server.process.output().matches("not YAML").count(), 1);
}

#[tokio::test]
async fn a_refusal_is_traced_to_the_rule_behind_it() {
    let (_scratch, mut server) = start(&[]).await;
    let mut stream = Stream::<Delta>::open(server.grpc).await.unwrap();
    stream.send(subscribe(TypeUrl::Cluster, &["*"], Some(node("picky"))));
    let all = stream.next().await.unwrap().unwrap();
    let accept =
        DeltaDiscoveryRequest { response_nonce: all.nonce, ..subscribe(TypeUrl::Cluster, &[], None) };
    stream.send(accept);
    let rule = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: guilty, namespace: default}\n\
                spec: {host: a.example, trafficPolicy: {loadBalancer: {simple: RANDOM}}}\n";
    std::fs::write(server.config.join("rule.yaml"), rule).unwrap();
    let changed = stream.next().await.unwrap().unwrap();
    assert_eq!(
        changed.resources.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(),
        ["outbound|80||a.example"]
    );
    let status =
        Status { code: 13, message: "Error adding/updating cluster(s)".to_owned(), ..Status::default() };
    stream.send(DeltaDiscoveryRequest {
        response_nonce: changed.nonce,
        error_detail: Some(status),
        ..subscribe(TypeUrl::Cluster, &[], None)
    });
    let http = server.http;
    let is_told = || async {
        http_call::get(http, "/debug/issues").await.is_ok_and(|(_, body)| {
            let issues: Vec<serde_json::Value> = serde_json::from_str(&body).unwrap_or_default();
            issues.iter().any(|issue| issue["kind"] == "DestinationRule" && issue["name"] == "guilty")
        })
    };
    server.process.until("the rule is blamed", is_told).await.unwrap();
    still_serves(&server).await;
}

#[tokio::test]
async fn reflection_tells_what_is_served() {
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};
    const ADS: &str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
    let (_scratch, server) = start(&[]).await;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", server.grpc)).unwrap();
    let mut client = ServerReflectionClient::new(channel.connect().await.unwrap());
    let asked =
        [MessageRequest::ListServices(String::new()), MessageRequest::FileContainingSymbol(ADS.to_owned())];
    let asked =
        asked.map(|message| ServerReflectionRequest { host: String::new(), message_request: Some(message) });
    let answers = client.server_reflection_info(tokio_stream::iter(asked)).await.unwrap();
    let mut answers = answers.into_inner();
    let services = answers.message().await.unwrap().unwrap().message_response;
    let Some(MessageResponse::ListServicesResponse(services)) = services else { panic!("{services:?}") };
    assert!(services.service.iter().any(|service| service.name == ADS), "{services:?}");
    let ServerReflectionResponse { message_response: file, .. } = answers.message().await.unwrap().unwrap();
    let Some(MessageResponse::FileDescriptorResponse(file)) = file else { panic!("{file:?}") };
    assert!(!file.file_descriptor_proto.is_empty());
}

#[tokio::test]
async fn streams_that_leave_leave_nothing_behind() {
    let (_scratch, mut server) = start(&[]).await;
    for round in 0..20 {
        let mut stream = Stream::<Delta>::open(server.grpc).await.unwrap();
        stream.send(subscribe(TypeUrl::Cluster, &["*"], Some(node(&format!("guest-{round}")))));
        stream.next().await.unwrap().unwrap();
    }
    let monitoring = server.monitoring;
    let all_gone = || async {
        http_call::get(monitoring, "/metrics")
            .await
            .is_ok_and(|(_, text)| text.contains("pilot_xds_pushes") && !text.contains("pilot_xds{"))
    };
    server.process.until("every stream is gone", all_gone).await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_told_to_stop_ends_its_streams() {
    let (_scratch, mut server) = start(&[]).await;
    let mut stream = Stream::<Delta>::open(server.grpc).await.unwrap();
    stream.send(subscribe(TypeUrl::Cluster, &["*"], Some(node("last"))));
    stream.next().await.unwrap().unwrap();
    let status = server.process.terminate().await.unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(stream.next().await.unwrap().unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn an_old_connection_is_asked_to_come_anew() {
    let (_scratch, server) = start(&["--keepaliveMaxServerConnectionAge=1s"]).await;
    let mut stream = Stream::<Delta>::open(server.grpc).await.unwrap();
    stream.send(subscribe(TypeUrl::Cluster, &["*"], Some(node("old"))));
    stream.next().await.unwrap().unwrap();
    assert!(stream.next().await.unwrap().is_err(), "the stream ends though nothing went wrong");
    still_serves(&server).await;
}

#[tokio::test]
async fn everything_can_be_served_at_one_address() {
    let scratch = tempfile::tempdir().unwrap();
    write(&scratch.path().join("config"), "a", "10.1.0.1");
    let server = PilotServer::start(scratch.path(), &["--grpcAddr=", "--monitoringAddr="]).await.unwrap();
    let mut stream = Stream::<Delta>::open(server.http).await.unwrap();
    stream.send(subscribe(TypeUrl::Cluster, &["*"], Some(node("one"))));
    assert!(!stream.next().await.unwrap().unwrap().resources.is_empty());
    assert_eq!(http_call::get(server.http, "/metrics").await.unwrap().0, 200);
}

#[tokio::test]
async fn who_speaks_delta_in_a_namespace_on_demand_is_given_clusters_by_name() {
    let (_scratch, server) = start(&[]).await;
    let name = "outbound|80||a.example";
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: default, annotations: {pilot.dev/on-demand: 'true'}}\n";
    std::fs::write(server.config.join("namespace.yaml"), namespace).unwrap();
    let names = |response: &DeltaDiscoveryResponse| -> BTreeSet<String> {
        response.resources.iter().map(|entry| entry.name.clone()).collect()
    };
    // The file may be read after a client came: then it is sent everything, and the next one is not.
    let (mut delta, first) = loop {
        let mut stream = Stream::<Delta>::open(server.grpc).await.unwrap();
        stream.send(subscribe(TypeUrl::Cluster, &[], Some(node("narrow"))));
        let first = stream.next().await.unwrap().unwrap();
        if !names(&first).contains(name) {
            break (stream, first);
        }
    };
    assert!(names(&first).contains("PassthroughCluster"));
    let mut accept = subscribe(TypeUrl::Cluster, &[name], None);
    accept.response_nonce = first.nonce;
    delta.send(accept);
    let asked = delta.next().await.unwrap().unwrap();
    assert_eq!(names(&asked), BTreeSet::from([name.to_owned()]));

    let mut whole = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
    whole.send(ask(TypeUrl::Cluster, &[], Some(node("narrow"))));
    let all = whole.next().await.unwrap().unwrap();
    assert_eq!(all.resources.len(), first.resources.len() + 1, "all that there is, as always");
}
