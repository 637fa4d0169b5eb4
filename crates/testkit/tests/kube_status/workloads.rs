//! Workloads outside of the cluster, which come, go and say how they are.

use std::path::Path;
use std::time::Duration;

use pilot_envoy_api::envoy::service::discovery::v3::DiscoveryRequest;
use pilot_envoy_api::google::rpc::Status as RpcStatus;
use pilot_source_kube::Call;
use pilot_testkit::http_call;
use pilot_testkit::kube::KubeServer;
use pilot_testkit::server::PilotServer;
use pilot_testkit::xds_client::{StateOfTheWorld, Stream};
use serde_json::{Value, json};
use tonic::Code;

use super::{ask, cluster, object, proxy, serve, serve_with, until_told_of, was_allowed};

const WORKLOADS: &str = "/apis/networking.istio.io/v1/namespaces/shop/workloadentries";
const HEALTH: &str = "type.googleapis.com/istio.v1.HealthInformation";
const ENDPOINTS: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";

async fn groups(cluster: &KubeServer) {
    let template = json!({"labels": {"app": "cart"}, "serviceAccount": "vm", "ports": {"http": 8080}});
    let metadata =
        json!({"labels": {"tier": "back"}, "annotations": {"proxy.istio.io/health-checks-enabled": "true"}});
    let group = json!({"metadata": metadata, "template": template});
    cluster.apply(&object("WorkloadGroup", "cart", &group)).await.unwrap();
    let ports = json!([{"number": 80, "name": "http", "protocol": "HTTP"}]);
    let spec = json!({
        "hosts": ["cart.internal"], "ports": ports, "resolution": "STATIC", "location": "MESH_INTERNAL",
        "addresses": ["10.1.1.1"], "workloadSelector": {"labels": {"app": "cart"}},
    });
    cluster.apply(&object("ServiceEntry", "cart", &spec)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workloads_outside_of_the_cluster_register_themselves() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(cluster) = cluster(scratch.path()).await else { return };
    let env =
        [("ISTIO_WORKLOAD_ENTRY_VALIDATE_IDENTITY", "false"), ("PILOT_WORKLOAD_ENTRY_GRACE_PERIOD", "1s")];
    let server = serve(scratch.path(), &cluster, &env).await;
    let vm = || proxy(&[("AUTO_REGISTER_GROUP", "cart"), ("NAMESPACE", "shop"), ("NETWORK", "east")]);
    let come = async || {
        let stream = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
        stream.send(ask(ENDPOINTS, &["outbound|80||cart.internal"], Some(vm())));
        stream
    };
    let refused = come().await.next().await.unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("cannot find WorkloadGroup shop/cart"), "{refused}");

    groups(&cluster).await;
    let path = format!("{WORKLOADS}/cart-10.0.0.1-east");
    let annotation =
        |found: &Value, name: &str| found["metadata"]["annotations"][name].as_str().map(str::to_owned);
    let mut stream = come().await;
    let made = cluster.until(&path, Value::is_object).await.unwrap();
    assert_eq!(made["spec"]["labels"], json!({"app": "cart", "tier": "back"}));
    assert_eq!((&made["spec"]["address"], &made["spec"]["network"]), (&json!("10.0.0.1"), &json!("east")));
    assert_eq!(made["spec"]["ports"]["http"], 8080);
    assert_eq!(made["metadata"]["ownerReferences"][0]["name"], "cart");
    assert_eq!(annotation(&made, "istio.io/workloadController").as_deref(), Some("istiod-0"));
    assert_eq!(annotation(&made, "istio.io/autoRegistrationGroup").as_deref(), Some("cart"));
    assert!(annotation(&made, "istio.io/connectedAt").is_some());

    // It is served once its agent says that it is well, and not before; then it is ill.
    stream.send(ask(HEALTH, &[], None));
    until_told_of(&mut stream, ENDPOINTS, ("outbound|80||cart.internal", "10.0.0.1")).await;
    let healthy = |found: &Value| found["status"]["conditions"][0]["status"].clone();
    assert_eq!(healthy(&cluster.get(&path).await), "True");
    let why = RpcStatus { code: 500, message: "no answer".to_owned(), ..RpcStatus::default() };
    stream.send(DiscoveryRequest { error_detail: Some(why), ..ask(HEALTH, &[], None) });
    let ill = cluster.until(&path, |found| healthy(found) == "False").await.unwrap();
    assert_eq!(ill["status"]["conditions"][0]["message"], "no answer");
    assert_eq!(ill["status"]["conditions"][0]["type"], "Healthy");

    // It comes back in time, and then it does not.
    drop(stream);
    cluster.until(&path, |found| annotation(found, "istio.io/disconnectedAt").is_some()).await.unwrap();
    let stream = come().await;
    cluster.until(&path, |found| annotation(found, "istio.io/disconnectedAt").is_none()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(cluster.get(&path).await.is_object(), "it is there");
    drop(stream);
    cluster.until(&path, Value::is_null).await.unwrap();
    let (_, metrics) = http_call::get(server.monitoring, "/metrics").await.unwrap();
    for line in [
        "auto_registration_success_total 1",
        "auto_registration_updates_total 1",
        "auto_registration_unregister_total 2",
        "auto_registration_deletes_total 1",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    was_allowed(&cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_that_somebody_else_made_are_looked_after_too() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(cluster) = cluster(scratch.path()).await else { return };
    let spec = json!({"address": "10.0.0.1", "serviceAccount": "vm"});
    let mut mine = object("WorkloadEntry", "mine", &spec);
    mine["metadata"]["annotations"] = json!({"proxy.istio.io/health-checks-enabled": "true"});
    cluster.apply(&mine).await.unwrap();
    let vm = || proxy(&[("WORKLOAD_ENTRY", "mine"), ("NAMESPACE", "shop")]);
    let path = format!("{WORKLOADS}/mine");

    // Nobody speaks for it who did not prove that he may.
    let strict = serve(&scratch.path().join("strict"), &cluster, &[]).await;
    let mut stream = Stream::<StateOfTheWorld>::open(strict.grpc).await.unwrap();
    stream.send(ask(ENDPOINTS, &[], Some(vm())));
    let refused = stream.next().await.unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    drop(strict);

    let env =
        [("ISTIO_WORKLOAD_ENTRY_VALIDATE_IDENTITY", "false"), ("PILOT_WORKLOAD_ENTRY_GRACE_PERIOD", "1s")];
    let mut server = serve(scratch.path(), &cluster, &env).await;
    let stream = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
    stream.send(ask(ENDPOINTS, &[], Some(vm())));
    stream.send(ask(HEALTH, &[], None));
    let conditions = |found: &Value| found["status"]["conditions"].as_array().map_or(0, Vec::len);
    cluster.until(&path, |found| conditions(found) == 1).await.unwrap();
    drop(stream);
    // It stays, but nobody knows any more how it is.
    let left = cluster.until(&path, |found| conditions(found) == 0).await.unwrap();
    assert_eq!(left["spec"], spec);

    // A server that ends says that its workloads have left.
    let stream = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
    stream.send(ask(ENDPOINTS, &[], Some(vm())));
    let connected = |found: &Value| found["metadata"]["annotations"]["istio.io/connectedAt"].is_string();
    cluster.until(&path, connected).await.unwrap();
    server.process.terminate().await.unwrap();
    assert!(!connected(&cluster.get(&path).await));
    drop(stream);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_of_others_are_not_believed() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(cluster) = cluster(scratch.path()).await else { return };
    let mut left = object("WorkloadEntry", "left", &json!({"address": "10.0.0.9"}));
    left["metadata"]["annotations"] = json!({
        "istio.io/autoRegistrationGroup": "cart", "istio.io/workloadController": "istiod-0",
        "istio.io/disconnectedAt": "2099-01-01T00:00:00Z",
    });
    cluster.apply(&left).await.unwrap();
    let mut nonsense = object("WorkloadEntry", "nonsense", &json!({"address": "10.0.0.8"}));
    nonsense["metadata"]["annotations"] = json!({
        "istio.io/autoRegistrationGroup": "cart", "istio.io/workloadController": "istiod-0",
        "istio.io/disconnectedAt": "yesterday", "istio.io/connectedAt": "2099-01-01T00:00:00Z",
    });
    cluster.apply(&nonsense).await.unwrap();
    groups(&cluster).await;
    let mut here = left.clone();
    here["metadata"]["name"] = "cart-10.0.0.1-east".into();
    here["metadata"]["annotations"]["istio.io/workloadController"] = "istiod-9".into();
    cluster.apply(&here).await.unwrap();
    let env =
        [("ISTIO_WORKLOAD_ENTRY_VALIDATE_IDENTITY", "false"), ("PILOT_WORKLOAD_ENTRY_GRACE_PERIOD", "1s")];
    let server = serve(scratch.path(), &cluster, &env).await;
    connected_whatever_clocks_say(&cluster, &server, &scratch.path().join("other")).await;
    cluster.until(&format!("{WORKLOADS}/left"), Value::is_null).await.unwrap();
    assert!(cluster.get(&format!("{WORKLOADS}/nonsense")).await.is_object(), "it says that it is connected");
}

/// One whose entry says that it left in 2099 is here now.
async fn connected_whatever_clocks_say(cluster: &KubeServer, server: &PilotServer, folder: &Path) {
    let path = format!("{WORKLOADS}/cart-10.0.0.1-east");
    let stream = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
    let vm = proxy(&[("AUTO_REGISTER_GROUP", "cart"), ("NAMESPACE", "shop"), ("NETWORK", "east")]);
    stream.send(ask(ENDPOINTS, &["outbound|80||cart.internal"], Some(vm)));
    let said = |found: &Value, name: &str| {
        found["metadata"]["annotations"][name].as_str().unwrap_or_default().to_owned()
    };
    let is_here = |found: &Value| {
        said(found, "istio.io/workloadController") == "istiod-0"
            && said(found, "istio.io/connectedAt").starts_with("2099")
            && said(found, "istio.io/disconnectedAt").is_empty()
    };
    cluster.until(&path, is_here).await.unwrap();
    // Its health counts, though another clock has probed it in 2099.
    let healthy = |found: &Value| found["status"]["conditions"][0]["status"] == "True";
    let ill = json!({"conditions": [{"type": "Healthy", "status": "False", "lastProbeTime": "2099-01-01T00:00:00Z"}]});
    cluster.status(&object("WorkloadEntry", "cart-10.0.0.1-east", &json!(null)), &ill).await.unwrap();
    stream.send(ask(HEALTH, &[], None));
    cluster.until(&path, healthy).await.unwrap();

    // Another server gives nobody up who is here; and whoever deletes it is wrong.
    let env = [("PILOT_WORKLOAD_ENTRY_GRACE_PERIOD", "1s"), ("POD_NAME", "istiod-1")];
    let other = serve(folder, cluster, &env).await;
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert!(is_here(&cluster.get(&path).await), "it is here");
    let before = cluster.get(&path).await["metadata"]["uid"].clone();
    cluster.client.call(Call::delete(&path)).await.unwrap();
    let again = |found: &Value| found["metadata"]["uid"].is_string() && found["metadata"]["uid"] != before;
    cluster.until(&path, again).await.unwrap();
    drop(stream);
    cluster.until(&path, Value::is_null).await.unwrap();
    drop(other);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workload_that_ended_with_its_server_is_given_up() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(cluster) = cluster(scratch.path()).await else { return };
    let mut lost = object("WorkloadEntry", "lost", &json!({"address": "10.0.0.9"}));
    lost["metadata"]["annotations"] = json!({
        "istio.io/autoRegistrationGroup": "cart", "istio.io/workloadController": "istiod-of-yesterday",
        "istio.io/connectedAt": "2026-01-01T00:00:00Z",
    });
    cluster.apply(&lost).await.unwrap();
    let mut theirs = lost.clone();
    theirs["metadata"]["name"] = "theirs".into();
    theirs["metadata"]["annotations"] = json!({"istio.io/connectedAt": "2026-01-01T00:00:00Z"});
    cluster.apply(&theirs).await.unwrap();
    let config = cluster.installed(cluster.address).await.unwrap();
    let age = ["--keepaliveMaxServerConnectionAge=1s"];
    let server = serve_with(scratch.path(), &config, &age, &[]).await;
    cluster.until(&format!("{WORKLOADS}/lost"), Value::is_null).await.unwrap();
    assert!(cluster.get(&format!("{WORKLOADS}/theirs")).await.is_object(), "it is nobody's to give up");
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workloads_are_looked_after_where_their_kind_has_moved_to() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(cluster) = cluster(scratch.path()).await else { return };
    let env = [("PILOT_WORKLOAD_ENTRY_GRACE_PERIOD", "1s")];
    let _server = serve(scratch.path(), &cluster, &env).await;
    let left = |name: &str| {
        let mut left = object("WorkloadEntry", name, &json!({"address": "10.0.0.9"}));
        left["metadata"]["annotations"] = json!({
            "istio.io/autoRegistrationGroup": "cart", "istio.io/workloadController": "istiod-0",
            "istio.io/disconnectedAt": "2026-01-01T00:00:00Z",
        });
        left
    };
    cluster.apply(&left("before")).await.unwrap();
    cluster.until(&format!("{WORKLOADS}/before"), Value::is_null).await.unwrap();

    // The kind is kept, and served, in another version only.
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/workloadentries.networking.istio.io";
    let mut definition = cluster.get(path).await;
    let versions = definition["spec"]["versions"].as_array_mut().unwrap();
    for version in versions {
        let is_new = version["name"] == "v1beta1";
        (version["storage"], version["served"]) = (is_new.into(), is_new.into());
    }
    cluster.client.call(Call::put(path, definition.to_string())).await.unwrap();
    let moved = WORKLOADS.replace("/v1/", "/v1beta1/");
    let mut after = left("after");
    after["apiVersion"] = json!("networking.istio.io/v1beta1");
    while cluster.apply(&after).await.is_err() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    cluster.until(&format!("{moved}/after"), Value::is_null).await.unwrap();
    was_allowed(&cluster);
}
