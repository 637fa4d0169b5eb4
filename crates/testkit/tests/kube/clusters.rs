//! Several clusters, on real API servers.

use std::path::Path;

use pilot_envoy_api::envoy::config::core::v3::Node;
use pilot_testkit::kube::KubeServer;
use pilot_testkit::server::PilotServer;
use pilot_testkit::xds_client::node;
use prost_types::value::Kind;
use prost_types::{Struct, Value as Word};
use serde_json::{Value, json};

use super::{CLUSTER, Proxy, page, serve, skipped, slice, world};

pub(super) fn secret(cluster: &str, kubeconfig: &str) -> Value {
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
    let mut proxy = Proxy::connect(&server, &["10.9.0.1"]).await;
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

/// A server whose settings are those of the cluster.
async fn serve_mesh(scratch: &Path, cluster: &KubeServer) -> PilotServer {
    let kubeconfig = format!("--kubeconfig={}", cluster.kubeconfig().display());
    let flags = ["--registries=Kubernetes", "--configDir=", &kubeconfig];
    PilotServer::start_in(scratch, &flags, &[]).await.unwrap()
}

/// A proxy in a network and a cluster.
fn client(network: &str, cluster: &str) -> Node {
    let word = |text: &str| Word { kind: Some(Kind::StringValue(text.to_owned())) };
    let said = [("NETWORK", network), ("CLUSTER_ID", cluster)];
    let metadata = Struct { fields: said.map(|(key, text)| (key.to_owned(), word(text))).into() };
    Node { metadata: Some(metadata), ..node("web") }
}

fn object(kind: &str, (namespace, name): (&str, &str), spec: &Value) -> Value {
    let metadata = json!({"name": name, "namespace": namespace});
    json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec})
}

/// Somebody with a sidecar, whom gateways can pass on to.
async fn pod(cluster: &KubeServer, name: &str, ip: &str) {
    let mut pod = object("Pod", ("shop", name), &json!({"containers": [{"name": "web", "image": "web"}]}));
    pod["metadata"]["labels"] = json!({"app": "web", "security.istio.io/tlsMode": "istio"});
    cluster.apply(&pod).await.unwrap();
    let ready = json!([{"type": "Ready", "status": "True"}]);
    let status = json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": ready});
    cluster.status(&pod, &status).await.unwrap();
    let mut slice = slice("web-a", &[ip]);
    slice["endpoints"][0]["targetRef"] = json!({"kind": "Pod", "name": name, "namespace": "shop"});
    cluster.apply(&slice).await.unwrap();
}

/// The gateway into the other network, as a balancer has it.
async fn gateway(cluster: &KubeServer) -> Value {
    let ports = json!([{"name": "tls", "port": 15443}]);
    let spec = json!({"type": "LoadBalancer", "ports": ports});
    let mut gateway = object("Service", ("istio-system", "eastwest"), &spec);
    gateway["metadata"]["labels"] = json!({"topology.istio.io/network": "net2"});
    cluster.apply(&gateway).await.unwrap();
    cluster.status(&gateway, &json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.50"}]}})).await.unwrap();
    gateway
}

/// The same where nodes take what is for it.
async fn node_ports(cluster: &KubeServer) {
    let metadata = json!({"name": "n1", "labels": {"gateways": "yes"}});
    let machine = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata});
    cluster.apply(&machine).await.unwrap();
    let addresses = json!([{"type": "ExternalIP", "address": "192.0.2.60"}]);
    cluster.status(&machine, &json!({"addresses": addresses})).await.unwrap();
    let ports = json!([{"name": "tls", "port": 15443, "nodePort": 31443}]);
    let spec = json!({"type": "NodePort", "ports": ports});
    let mut gateway = object("Service", ("istio-system", "nodes"), &spec);
    gateway["metadata"]["labels"] = json!({"topology.istio.io/network": "net2"});
    gateway["metadata"]["annotations"] = json!({"traffic.istio.io/nodeSelector": r#"{"gateways": "yes"}"#});
    cluster.apply(&gateway).await.unwrap();
}

fn settings(mesh: &str) -> Value {
    let metadata = json!({"name": "istio", "namespace": "istio-system"});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"mesh": mesh}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_network_is_reached_over_its_gateway_unless_the_host_is_local() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let near = KubeServer::start(&scratch.path().join("near"), &[]).await.unwrap();
    let far = KubeServer::start(&scratch.path().join("far"), &[]).await.unwrap();
    for (cluster, network, ip) in [(&near, "net1", "10.9.0.1"), (&far, "net2", "10.10.0.1")] {
        world(cluster, &[]).await;
        cluster.namespace("istio-system", &json!({"topology.istio.io/network": network})).await.unwrap();
        pod(cluster, "web-1", ip).await;
    }
    let balancer = gateway(&far).await;
    near.apply(&secret("east", &std::fs::read_to_string(far.kubeconfig()).unwrap())).await.unwrap();
    let server = serve_mesh(scratch.path(), &near).await;
    let mut here = Proxy::connect_as(&server, client("net1", "Kubernetes"), (CLUSTER, &["10.9.0.1"])).await;
    here.until(&["10.9.0.1", "192.0.2.50"]).await;
    // Into our own network no gateway leads.
    let mut there = Proxy::connect_as(&server, client("net2", "east"), (CLUSTER, &["10.10.0.1"])).await;
    there.until(&["10.9.0.1", "10.10.0.1"]).await;

    node_ports(&far).await;
    here.until(&["10.9.0.1", "192.0.2.50", "192.0.2.60"]).await;
    far.delete(&balancer).await.unwrap();
    here.until(&["10.9.0.1", "192.0.2.60"]).await;

    // A host that every cluster has for itself.
    let local = "serviceSettings: [{settings: {clusterLocal: true}, hosts: ['*.shop.svc.cluster.local']}]";
    near.apply(&settings(local)).await.unwrap();
    here.until(&["10.9.0.1"]).await;
    near.apply(&settings("{}")).await.unwrap();
    here.until(&["10.9.0.1", "192.0.2.60"]).await;
}

const VM: &str = "outbound|80||vm.shop.svc.cluster.local";

fn workload(address: &str) -> Value {
    let metadata = json!({"name": "vm", "namespace": "shop"});
    let spec = json!({"address": address, "labels": {"app": "vm"}});
    json!({"apiVersion": "networking.istio.io/v1", "kind": "WorkloadEntry", "metadata": metadata, "spec": spec})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workloads_outside_of_other_clusters_are_behind_their_services() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let near = KubeServer::start(&scratch.path().join("near"), &[]).await.unwrap();
    let far = KubeServer::start(&scratch.path().join("far"), &[]).await.unwrap();
    let service = object(
        "Service",
        ("shop", "vm"),
        &json!({"selector": {"app": "vm"}, "ports": [{"name": "http", "port": 80}]}),
    );
    for (cluster, address) in [(&near, "10.9.0.7"), (&far, "10.10.0.7")] {
        world(cluster, &[]).await;
        cluster.define_rules().await.unwrap();
        cluster.apply(&service).await.unwrap();
        cluster.apply(&workload(address)).await.unwrap();
    }
    near.apply(&secret("east", &std::fs::read_to_string(far.kubeconfig()).unwrap())).await.unwrap();
    let server = serve_mesh(scratch.path(), &near).await;
    let mut proxy = Proxy::connect_as(&server, node("web"), (VM, &["10.9.0.7"])).await;
    proxy.until(&["10.9.0.7", "10.10.0.7"]).await;
    far.apply(&workload("10.10.0.8")).await.unwrap();
    proxy.until(&["10.9.0.7", "10.10.0.8"]).await;
    far.delete(&workload("")).await.unwrap();
    proxy.until(&["10.9.0.7"]).await;
    let metrics = pilot_testkit::http_call::get(server.monitoring, "/metrics").await.unwrap().1;
    for line in [
        "istiod_managed_clusters{cluster_type=\"local\"} 1",
        "istiod_managed_clusters{cluster_type=\"remote\"} 1",
        "istiod_remote_cluster_sync_status{cluster=\"east\",cluster_type=\"remote\",status=\"synced\"} 1",
        "remote_cluster_secret_events_total{event=\"add\"} 1",
        "pilot_k8s_cfg_events{event=\"update\",type=\"WorkloadEntry\"} 1",
        "pilot_k8s_cfg_events{event=\"delete\",type=\"WorkloadEntry\"} 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} in {metrics}");
    }
    assert!(metrics.contains("pilot_k8s_reg_events{event=\"add\",type=\"Services\"}"), "{metrics}");
}
