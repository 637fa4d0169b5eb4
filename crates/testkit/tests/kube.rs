//! The server on real API servers: faults, and several clusters.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use pilot_envoy_api::envoy::config::core::v3::address::Address as At;
use pilot_envoy_api::envoy::config::endpoint::v3::ClusterLoadAssignment;
use pilot_envoy_api::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use pilot_envoy_api::envoy::service::discovery::v3::DiscoveryRequest;
use pilot_testkit::cut::Cut;
use pilot_testkit::http_call;
use pilot_testkit::kube::KubeServer;
use pilot_testkit::server::PilotServer;
use pilot_testkit::tools::Tools;
use pilot_testkit::xds_client::{StateOfTheWorld, Stream, node};
use pilot_xds::TypeUrl;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

const CLUSTER: &str = "outbound|80||web.shop.svc.cluster.local";

fn skipped() -> bool {
    let why = Tools::of_environment().why_skip_kube();
    if let Some(why) = &why {
        eprintln!("skipped: {why}");
    }
    why.is_some()
}

async fn world(server: &KubeServer, addresses: &[&str]) {
    for namespace in ["shop", "istio-system"] {
        server.namespace(namespace, &json!({})).await.unwrap();
    }
    let spec = json!({"ports": [{"name": "http", "port": 80}]});
    let metadata = json!({"name": "web", "namespace": "shop"});
    server
        .apply(&json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}))
        .await
        .unwrap();
    server.apply(&slice("web-a", addresses)).await.unwrap();
}

fn slice(name: &str, addresses: &[&str]) -> Value {
    let endpoints: Vec<Value> = addresses
        .iter()
        .map(|address| json!({"addresses": [address], "conditions": {"ready": true}}))
        .collect();
    let metadata =
        json!({"name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}});
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata,
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

async fn serve(scratch: &Path, kubeconfig: &str) -> PilotServer {
    let file = scratch.join("pilot-kubeconfig");
    std::fs::write(&file, kubeconfig).unwrap();
    let flag = format!("--kubeconfig={}", file.display());
    PilotServer::start(scratch, &["--registries=Kubernetes", &flag]).await.unwrap()
}

/// What a proxy holds: the addresses behind the service, from one answer to the next.
struct Proxy {
    holds: watch::Receiver<BTreeSet<String>>,
    tasks: JoinSet<()>,
}

impl Proxy {
    /// Whatever it is told, it must never miss `always`.
    async fn connect(server: &PilotServer, always: &'static str) -> Self {
        let mut stream = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
        let ask = |node| DiscoveryRequest {
            type_url: TypeUrl::Endpoint.as_str().to_owned(),
            resource_names: vec![CLUSTER.to_owned()],
            node,
            ..DiscoveryRequest::default()
        };
        stream.send(ask(Some(node("web"))));
        let (tell, holds) = watch::channel(BTreeSet::new());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            loop {
                // Nothing for a while is no news.
                let Ok(answer) = stream.next().await else { continue };
                let response = answer.unwrap();
                let addresses: BTreeSet<String> =
                    response.resources.iter().flat_map(|any| addresses(&any.value)).collect();
                assert!(addresses.contains(always), "{always} is alive and gone: {addresses:?}");
                let (version_info, response_nonce) = (response.version_info, response.nonce);
                stream.send(DiscoveryRequest { version_info, response_nonce, ..ask(None) });
                if tell.send(addresses).is_err() {
                    return;
                }
            }
        });
        Self { holds, tasks }
    }

    async fn until(&mut self, expected: &[&str]) {
        let expected: BTreeSet<String> = expected.iter().map(|address| (*address).to_owned()).collect();
        let waiting = self.holds.wait_for(|holds| *holds == expected);
        let reached =
            tokio::time::timeout(Duration::from_secs(60), waiting).await.is_ok_and(|held| held.is_ok());
        assert!(reached, "never held {expected:?}, but {:?}", self.holds.borrow());
        assert_eq!(self.tasks.len(), 1);
    }
}

fn addresses(assignment: &[u8]) -> Vec<String> {
    let assignment = ClusterLoadAssignment::decode(assignment).unwrap();
    let endpoints = assignment.endpoints.iter().flat_map(|locality| &locality.lb_endpoints);
    let address = endpoints.filter_map(|endpoint| match endpoint.host_identifier.as_ref()? {
        HostIdentifier::Endpoint(endpoint) => match endpoint.address.as_ref()?.address.as_ref()? {
            At::SocketAddress(socket) => Some(socket.address.clone()),
            _ => None,
        },
        HostIdentifier::EndpointName(_) => None,
    });
    address.collect()
}

async fn page(server: &PilotServer, path: &str) -> String {
    http_call::get(server.http, path).await.unwrap().1
}

fn open_files(server: &PilotServer) -> usize {
    let id = server.process.id().unwrap();
    std::fs::read_dir(format!("/proc/{id}/fd")).unwrap().count()
}

/// How long faults go on. `make soak` asks for more.
#[allow(clippy::disallowed_methods, reason = "tests are told by the environment how long they run")]
fn fault_seconds() -> u64 {
    std::env::var("PILOT_FAULT_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_cost_no_live_endpoint() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut kube = KubeServer::start(&scratch.path().join("kube"), &[]).await.unwrap();
    world(&kube, &["10.9.0.1", "10.9.0.2"]).await;
    let cut = Cut::before(kube.address).await.unwrap();
    let kubeconfig = kube.kubeconfig_for(cut.address, "lab-admin-token").unwrap();
    let server = serve(scratch.path(), &kubeconfig).await;
    let mut proxy = Proxy::connect(&server, "10.9.0.1").await;
    proxy.until(&["10.9.0.1", "10.9.0.2"]).await;
    let files = open_files(&server);

    let end = tokio::time::Instant::now() + Duration::from_secs(fault_seconds());
    let mut faults = 0_u32;
    while tokio::time::Instant::now() < end || faults < 5 {
        match faults % 5 {
            0 => cut.snap(),
            1 => {
                kube.kill_api().await.unwrap();
                kube.start_api().await.unwrap();
            }
            2 => cut.close(),
            3 => {
                kube.kill_etcd().await.unwrap();
                kube.start_etcd().await.unwrap();
            }
            // Two at once: what a new API server remembers begins after what we know.
            _ => {
                cut.close();
                kube.kill_api().await.unwrap();
                kube.start_api().await.unwrap();
            }
        }
        faults += 1;
        let other = format!("10.9.1.{}", faults % 250);
        let next = slice("web-a", &["10.9.0.1", &other]);
        // An API server takes a while until it has found etcd again.
        while kube.apply(&next).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        cut.open();
        proxy.until(&["10.9.0.1", &other]).await;
    }
    println!("{faults} faults; {files} files were open before and {} after", open_files(&server));
    let well = async {
        while page(&server, "/debug/issues").await != "[]" {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let is_well = tokio::time::timeout(Duration::from_secs(60), well).await.is_ok();
    assert!(is_well, "{}", page(&server, "/debug/issues").await);
    assert!(open_files(&server) <= files + 20, "connections are left open");
}

fn secret(cluster: &str, kubeconfig: &str) -> Value {
    let labels = json!({"istio/multiCluster": "true"});
    let metadata = json!({"name": "remote", "namespace": "istio-system", "labels": labels});
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {cluster: kubeconfig}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_of_all_clusters_are_behind_a_service() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let near = KubeServer::start(&scratch.path().join("near"), &[]).await.unwrap();
    let mut far = KubeServer::start(&scratch.path().join("far"), &[]).await.unwrap();
    world(&near, &["10.9.0.1"]).await;
    world(&far, &["10.10.0.1"]).await;
    near.apply(&secret("east", &std::fs::read_to_string(far.kubeconfig()).unwrap())).await.unwrap();
    let server = serve(scratch.path(), &std::fs::read_to_string(near.kubeconfig()).unwrap()).await;
    let mut proxy = Proxy::connect(&server, "10.9.0.1").await;
    proxy.until(&["10.9.0.1", "10.10.0.1"]).await;
    let clusters = page(&server, "/debug/clusterz").await;
    assert!(clusters.contains(r#""id":"east""#) && clusters.contains("istio-system/remote"), "{clusters}");

    // The slices have the same name in both clusters, and are two.
    far.apply(&slice("web-a", &["10.10.0.2"])).await.unwrap();
    proxy.until(&["10.9.0.1", "10.10.0.2"]).await;
    far.kill_api().await.unwrap();
    near.apply(&slice("web-a", &["10.9.0.1", "10.9.0.3"])).await.unwrap();
    proxy.until(&["10.9.0.1", "10.9.0.3", "10.10.0.2"]).await;
    far.start_api().await.unwrap();
    far.apply(&slice("web-a", &["10.10.0.4"])).await.unwrap();
    proxy.until(&["10.9.0.1", "10.9.0.3", "10.10.0.4"]).await;
    near.delete(&secret("east", "")).await.unwrap();
    proxy.until(&["10.9.0.1", "10.9.0.3"]).await;
}
