//! `pilotctl wait` for objects that were told to an API server.

use pilot_envoy_api::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use pilot_testkit::kube::KubeServer;
use pilot_testkit::server::PilotServer;
use pilot_testkit::xds_client::{Delta, Stream, node};
use pilot_xds::TypeUrl;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{CLUSTER, launch, pilotctl, skipped, world};

/// A proxy that accepts everything it is told.
async fn agreeable(server: &PilotServer) -> JoinSet<()> {
    let mut stream = Stream::<Delta>::open(server.grpc).await.unwrap();
    let ask = |kind: TypeUrl, names: &[&str]| DeltaDiscoveryRequest {
        type_url: kind.as_str().to_owned(),
        resource_names_subscribe: names.iter().map(|name| (*name).to_owned()).collect(),
        ..DeltaDiscoveryRequest::default()
    };
    stream.send(DeltaDiscoveryRequest { node: Some(node("web")), ..ask(TypeUrl::Cluster, &["*"]) });
    stream.send(ask(TypeUrl::Endpoint, &[CLUSTER]));
    stream.send(ask(TypeUrl::Listener, &["*"]));
    stream.send(ask(TypeUrl::Route, &["80"]));
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        loop {
            // Nothing for a while is no news.
            let Ok(answer) = stream.next().await else { continue };
            let response = answer.unwrap();
            stream.send(DeltaDiscoveryRequest {
                type_url: response.type_url,
                response_nonce: response.nonce,
                ..DeltaDiscoveryRequest::default()
            });
        }
    });
    tasks
}

fn rule(prefix: &str) -> Value {
    let http = json!([{"match": [{"uri": {"prefix": prefix}}], "route": [{"destination": {"host": "web"}}]}]);
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
        "metadata": {"name": "web", "namespace": "shop"}, "spec": {"hosts": ["web"], "http": http},
    })
}

/// What nobody says about a Service an API server adds.
fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"ports": [{"name": "http", "port": 80}]},
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_for_objects_of_an_api_server_is_told_when_proxies_have_them() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let kube = KubeServer::start(&scratch.path().join("kube"), &[]).await.unwrap();
    world(&kube, &["10.9.0.1"]).await;
    kube.define_rules().await.unwrap();
    let kubeconfig = std::fs::read_to_string(kube.kubeconfig()).unwrap();
    let mut server = launch(scratch.path(), &kubeconfig, &["--configDir="], &[]);
    server.process.until_ok(server.http, "/ready").await.unwrap();
    let _proxy = agreeable(&server).await;
    let file = scratch.path().join("objects.yaml");
    let address = format!("--address={}", server.monitoring);
    let wait = async |timeout: &str, prefix: &str| {
        std::fs::write(&file, format!("{}\n---\n{}", service(), rule(prefix))).unwrap();
        let timeout = format!("--timeout={timeout}");
        pilotctl(&["wait", "-f", file.to_str().unwrap(), &timeout, &address]).await
    };
    let (is_well, said) = wait("2s", "/one").await;
    assert!(!is_well, "nobody has told it: {said}");
    kube.apply(&rule("/one")).await.unwrap();
    let (is_well, said) = wait("60s", "/one").await;
    assert!(is_well, "{said}");

    // What somebody writes into the status meanwhile is no other rule.
    let (is_well, said) = wait("2s", "/two").await;
    assert!(!is_well, "it is another rule: {said}");
    kube.apply(&rule("/two")).await.unwrap();
    let condition = json!([{"type": "Theirs", "status": "True"}]);
    kube.status(&rule("/two"), &json!({"conditions": condition})).await.unwrap();
    let (is_well, said) = wait("60s", "/two").await;
    assert!(is_well, "{said}");
}
