//! The server tells what it costs, and whose change it was; and changes wait for others if they are told to.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

use pilot_envoy_api::envoy::config::core::v3::Node;
use pilot_envoy_api::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use pilot_testkit::http_call;
use pilot_testkit::server::PilotServer;
use pilot_testkit::tools::Tools;
use pilot_testkit::xds_client::{Delta, Stream, node};
use pilot_xds::TypeUrl;
use serde_json::Value;

fn service(name: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}, namespace: default}}\n\
         spec: {{hosts: [{name}.example], resolution: STATIC, ports: [{{number: 80, name: http, protocol: HTTP}}], endpoints: [{{address: 10.1.0.1}}]}}\n"
    )
}

fn rule(name: &str, host: &str, path: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: default}}\n\
         spec: {{hosts: [{host}.example], http: [{{match: [{{uri: {{prefix: {path}}}}}], route: [{{destination: {{host: {host}.example}}}}]}}]}}\n"
    )
}

const SLICED: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: cart, namespace: default}\n\
    spec: {ports: [{name: http, port: 80}]}\n";

fn slice(address: &str) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: cart-1, namespace: default, labels: {{kubernetes.io/service-name: cart}}}}\n\
         addressType: IPv4\nports: [{{name: http, port: 8080}}]\nendpoints: [{{addresses: [{address}]}}]\n"
    )
}

fn write(config: &Path, name: &str, text: &str) {
    std::fs::create_dir_all(config).unwrap();
    std::fs::write(config.join(format!("{name}.yaml")), text).unwrap();
}

async fn start(env: &[(&str, &str)]) -> (tempfile::TempDir, PilotServer) {
    let scratch = tempfile::tempdir().unwrap();
    let config = scratch.path().join("config");
    for name in ["a", "b"] {
        write(&config, name, &service(name));
    }
    write(&config, "touched", &rule("touched", "a", "/one"));
    write(&config, "still", &rule("still", "b", "/one"));
    write(&config, "cart", SLICED);
    write(&config, "cart-1", &slice("10.2.0.1"));
    let server = PilotServer::start_in(scratch.path(), &[], env).await.unwrap();
    (scratch, server)
}

fn subscribe(type_url: TypeUrl, names: &[&str], node: Option<Node>) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: type_url.as_str().to_owned(),
        resource_names_subscribe: names.iter().map(|name| (*name).to_owned()).collect(),
        node,
        ..DeltaDiscoveryRequest::default()
    }
}

/// The next response, accepted.
async fn next(stream: &mut Stream<Delta>) -> DeltaDiscoveryResponse {
    let response = stream.next().await.unwrap().unwrap();
    stream.send(DeltaDiscoveryRequest {
        type_url: response.type_url.clone(),
        response_nonce: response.nonce.clone(),
        ..DeltaDiscoveryRequest::default()
    });
    response
}

/// A proxy that has everything it asked for.
async fn proxy(server: &PilotServer, name: &str) -> Stream<Delta> {
    let mut stream = Stream::<Delta>::open(server.grpc).await.unwrap();
    stream.send(subscribe(TypeUrl::Cluster, &["*"], Some(node(name))));
    stream.send(subscribe(TypeUrl::Endpoint, &["outbound|80||cart.default.svc.cluster.local"], None));
    stream.send(subscribe(TypeUrl::Route, &["80"], None));
    let mut missing: Vec<&str> =
        [TypeUrl::Cluster, TypeUrl::Endpoint, TypeUrl::Route].map(TypeUrl::as_str).to_vec();
    while !missing.is_empty() {
        let response = next(&mut stream).await;
        missing.retain(|type_url| *type_url != response.type_url);
    }
    stream
}

async fn bill(server: &PilotServer) -> Value {
    let (status, body) = http_call::get(server.monitoring, "/debug/bill?pretty").await.unwrap();
    assert_eq!(status, 200);
    serde_json::from_str(&body).unwrap()
}

fn line<'a>(bill: &'a Value, kind: &str, name: &str) -> Option<&'a Value> {
    bill["lines"].as_array().unwrap().iter().find(|line| line["kind"] == kind && line["name"] == name)
}

/// A number on the page of metrics; nothing if it is not there.
async fn metric(server: &PilotServer, name: &str) -> Option<f64> {
    let (_, text) = http_call::get(server.monitoring, "/metrics").await.unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[tokio::test]
async fn a_change_is_on_the_bill_of_who_changed() {
    let (_scratch, server) = start(&[]).await;
    let mut stream = proxy(&server, "pays").await;
    while !stream.is_silent().await {}
    let before = bill(&server).await;
    let of = |bill: &Value, name: &str, what: &str| {
        line(bill, "VirtualService", name).and_then(|line| line[what].as_f64()).unwrap_or_default()
    };
    assert_eq!(of(&before, "touched", "bytesPushed"), 0.0, "a proxy that comes is not the rule's doing");
    assert!(line(&before, "Proxy", "").unwrap()["bytesPushed"].as_f64() > Some(0.0), "{before:#}");

    write(&server.config, "touched", &rule("touched", "a", "/two"));
    let response = next(&mut stream).await;
    assert_eq!(response.type_url, TypeUrl::Route.as_str());
    let after = bill(&server).await;
    assert!(of(&after, "touched", "bytesPushed") > 0.0, "{after:#}");
    assert_eq!(of(&after, "touched", "pushes"), 1.0, "{after:#}");
    assert!(of(&after, "touched", "cpuSeconds") > of(&before, "touched", "cpuSeconds"), "{after:#}");
    for what in ["bytesPushed", "pushes", "cpuSeconds"] {
        assert_eq!(of(&after, "still", what), of(&before, "still", what), "{what} of {after:#}");
    }
    let server_line = &after["server"];
    assert_eq!((&server_line["proxies"], &server_line["audiences"]), (&1.into(), &1.into()));
    let lines = after["lines"].as_array().unwrap();
    assert_eq!(after["objects"].as_u64(), Some(lines.len() as u64));
    let (status, one) = http_call::get(server.http, "/debug/bill?top=1").await.unwrap();
    let one: Value = serde_json::from_str(&one).unwrap();
    assert_eq!((status, one["lines"].as_array().map(Vec::len)), (200, Some(1)));
    assert_eq!(http_call::get(server.http, "/debug/bill?top=all").await.unwrap().0, 400);
}

#[tokio::test]
async fn metrics_tell_what_a_change_took() {
    let (_scratch, server) = start(&[]).await;
    let mut stream = proxy(&server, "measured").await;
    let before = metric(&server, "pilot_push_triggers{type=\"config\"}").await.unwrap();
    write(&server.config, "touched", &rule("touched", "a", "/two"));
    while next(&mut stream).await.type_url != TypeUrl::Route.as_str() {}
    // The answer to what was sent comes after what was counted when it was sent.
    while !stream.is_silent().await {}
    for (name, value) in [
        ("pilot_push_triggers{type=\"config\"}", before + 1.0),
        ("pilot_proxy_convergence_time_count", 1.0),
        ("pilot_proxy_queue_time_count", 1.0),
        ("pilot_services", 3.0),
        ("pilot_virt_services", 2.0),
        ("pilot_eds_no_instances", 0.0),
        ("pilot_total_rejected_configs", 0.0),
        ("pilot_audiences", 1.0),
        ("pilot_table_rows{table=\"virtual services\"}", 2.0),
        ("pilot_xds_push_time_count{type=\"cds\"}", 1.0),
    ] {
        assert_eq!(metric(&server, name).await, Some(value), "{name}");
    }
    for name in [
        "pilot_xds_send_time_count",
        "pilot_debounce_time_count",
        "pilot_pushcontext_init_seconds_count",
        "pilot_commit_cpu_seconds_total",
        "pilot_xds_recv_max",
    ] {
        assert!(metric(&server, name).await > Some(0.0), "{name}");
    }
}

#[tokio::test]
async fn top_shows_the_bill() {
    let (_scratch, server) = start(&[]).await;
    let _stream = proxy(&server, "seen").await;
    let program = Tools::of_environment().own("pilotctl").unwrap();
    let address = format!("--address={}", server.monitoring);
    let told =
        tokio::process::Command::new(program).args(["top", "-n", "3", &address]).output().await.unwrap();
    let text = String::from_utf8(told.stdout).unwrap();
    assert!(told.status.success(), "{text}");
    assert!(text.contains("proxies 1, audiences 1"), "{text}");
    assert!(text.lines().any(|line| line.starts_with("Proxy (all) ")), "{text}");
    assert!(text.contains("3 of "), "{text}");
}

#[tokio::test]
async fn rules_wait_for_silence_if_told_to_but_proxies_and_endpoints_do_not() {
    let env = [
        ("PILOT_DEBOUNCE_AFTER", "1h"),
        ("PILOT_DEBOUNCE_MAX", "1h"),
        ("PILOT_ENABLE_EDS_DEBOUNCE", "false"),
    ];
    let (_scratch, mut server) = start(&env).await;
    let mut stream = proxy(&server, "waits").await;
    while !stream.is_silent().await {}
    let told = "pilot_inbound_updates{type=\"config\"}";
    let before = metric(&server, told).await;
    write(&server.config, "touched", &rule("touched", "a", "/two"));
    // It is with the engine when it is counted.
    while metric(&server, told).await == before {
        assert!(stream.is_silent().await, "the rule does not wait");
    }
    write(&server.config, "cart-1", &slice("10.2.0.2"));
    assert_eq!(next(&mut stream).await.type_url, TypeUrl::Endpoint.as_str());
    let _newcomer = proxy(&server, "comes").await;
    assert!(stream.is_silent().await, "the rule still waits");
    assert!(server.process.terminate().await.unwrap().success());
}

#[tokio::test]
async fn silence_ends_the_wait() {
    let (_scratch, server) = start(&[("PILOT_DEBOUNCE_AFTER", "20ms")]).await;
    let mut stream = proxy(&server, "patient").await;
    write(&server.config, "touched", &rule("touched", "a", "/two"));
    while next(&mut stream).await.type_url != TypeUrl::Route.as_str() {}
}
