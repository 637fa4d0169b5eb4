//! Very much of something.

use pilot_testkit::kube::KubeServer;
use serde_json::{Value, json};

use super::{Proxy, serve, skipped, world};

/// A hundred endpoints of the service, or fewer.
fn slice(number: u32, first: u32) -> Value {
    let ready = json!({"ready": true});
    let address = |i: u32| format!("10.9.{number}.{i}");
    let endpoints: Vec<Value> =
        (first..100).map(|i| json!({"addresses": [address(i)], "conditions": ready})).collect();
    let labels = json!({"kubernetes.io/service-name": "web"});
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("web-{number}"), "namespace": "shop", "labels": labels},
        "endpoints": endpoints, "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_endpoints_of_one_service_reach_a_proxy() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let kube = KubeServer::start(&scratch.path().join("kube"), &[]).await.unwrap();
    world(&kube, &["10.8.0.1"]).await;
    for number in 0..100 {
        kube.apply(&slice(number, 0)).await.unwrap();
    }
    let server = serve(scratch.path(), &std::fs::read_to_string(kube.kubeconfig()).unwrap()).await;
    let mut proxy = Proxy::connect(&server, &["10.9.99.99"]).await;
    proxy.until_count(10_001).await;
    kube.apply(&slice(7, 1)).await.unwrap();
    proxy.until_count(10_000).await;
    assert!(!proxy.holds.borrow().contains("10.9.7.0"));
    kube.delete(&slice(8, 0)).await.unwrap();
    proxy.until_count(9_900).await;
}
