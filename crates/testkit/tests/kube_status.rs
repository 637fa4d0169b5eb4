//! What the server writes about objects into a real cluster: addresses, verdicts, workloads that come and go.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::time::Duration;

use pilot_envoy_api::envoy::config::core::v3::Node;
use pilot_envoy_api::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use pilot_envoy_api::google::rpc::Status as RpcStatus;
use pilot_source_kube::Call;
use pilot_testkit::gatekeeper::{Asked, Fate, Gatekeeper};
use pilot_testkit::http_call;
use pilot_testkit::kube::KubeServer;
use pilot_testkit::server::PilotServer;
use pilot_testkit::tools::Tools;
use pilot_testkit::xds_client::{StateOfTheWorld, Stream};
use prost_types::value::Kind;
use prost_types::{Struct, Value as Word};
use serde_json::{Value, json};
use tonic::Code;

const ENTRIES: &str = "/apis/networking.istio.io/v1/namespaces/shop/serviceentries";
const WORKLOADS: &str = "/apis/networking.istio.io/v1/namespaces/shop/workloadentries";
const RULES: &str = "/apis/networking.istio.io/v1/namespaces/shop/virtualservices";

/// A cluster with Istio's CRDs and a namespace; nothing where there is no API server.
async fn cluster(scratch: &Path) -> Option<KubeServer> {
    let tools = Tools::of_environment();
    if let Some(why) = tools.why_skip_kube() {
        eprintln!("skipped: {why}");
        return None;
    }
    let cluster = KubeServer::start(&scratch.join("kube"), &[]).await.unwrap();
    for namespace in ["istio-system", "shop"] {
        cluster.namespace(namespace, &json!({})).await.unwrap();
    }
    cluster.install_crds(tools.istio_module().unwrap()).await.unwrap();
    Some(cluster)
}

/// A server that may do what our manifests allow.
async fn serve(scratch: &Path, cluster: &KubeServer, env: &[(&str, &str)]) -> PilotServer {
    let config = cluster.installed(cluster.address).await.unwrap();
    serve_by(scratch, &config, env).await
}

async fn serve_by(scratch: &Path, kubeconfig: &str, env: &[(&str, &str)]) -> PilotServer {
    serve_with(scratch, kubeconfig, &[], env).await
}

async fn serve_with(scratch: &Path, kubeconfig: &str, more: &[&str], env: &[(&str, &str)]) -> PilotServer {
    std::fs::create_dir_all(scratch).unwrap();
    let file = scratch.join("pilot-kubeconfig");
    std::fs::write(&file, kubeconfig).unwrap();
    let kubeconfig = format!("--kubeconfig={}", file.display());
    let flags = [&["--registries=Kubernetes", "--configDir=", &kubeconfig][..], more].concat();
    let env: Vec<(&str, &str)> = [("POD_NAME", "istiod-0")].into_iter().chain(env.iter().copied()).collect();
    PilotServer::start_in(scratch, &flags, &env).await.unwrap()
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    let metadata = json!({"name": name, "namespace": "shop"});
    json!({"apiVersion": "networking.istio.io/v1", "kind": kind, "metadata": metadata, "spec": spec})
}

fn entry(name: &str, hosts: &[&str], resolution: &str) -> Value {
    let ports = json!([{"number": 80, "name": "http", "protocol": "HTTP"}]);
    let spec = json!({"hosts": hosts, "ports": ports, "resolution": resolution, "location": "MESH_EXTERNAL"});
    object("ServiceEntry", name, &spec)
}

fn addresses(entry: &Value) -> Vec<String> {
    let all = entry["status"]["addresses"].as_array().into_iter().flatten();
    all.map(|at| format!("{} {}", at["host"].as_str().unwrap(), at["value"].as_str().unwrap())).collect()
}

fn proxy(metadata: &[(&str, &str)]) -> Node {
    let word = |text: &&str| Word { kind: Some(Kind::StringValue((*text).to_owned())) };
    let fields = metadata.iter().map(|(key, value)| ((*key).to_owned(), word(value))).collect();
    Node {
        id: "sidecar~10.0.0.1~vm.shop~shop.svc.cluster.local".to_owned(),
        metadata: Some(Struct { fields }),
        ..Node::default()
    }
}

fn ask(type_url: &str, names: &[&str], node: Option<Node>) -> DiscoveryRequest {
    DiscoveryRequest {
        type_url: type_url.to_owned(),
        resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
        node,
        ..DiscoveryRequest::default()
    }
}

/// Reads answers until one of them holds a text.
async fn until_told(stream: &mut Stream<StateOfTheWorld>, type_url: &str, text: &str) {
    until_told_of(stream, type_url, ("", text)).await;
}

/// The same where a name has to be asked for again.
async fn until_told_of(stream: &mut Stream<StateOfTheWorld>, type_url: &str, (name, text): (&str, &str)) {
    let names: Vec<&str> = Some(name).filter(|name| !name.is_empty()).into_iter().collect();
    let holds = |response: &DiscoveryResponse| {
        response.resources.iter().any(|any| any.value.windows(text.len()).any(|part| part == text.as_bytes()))
    };
    let mut last = String::new();
    for _ in 0..100 {
        let Ok(response) = stream.next().await else { break };
        let response = response.unwrap();
        last = response.resources.iter().map(|any| String::from_utf8_lossy(&any.value)).collect();
        let (version_info, response_nonce) = (response.version_info.clone(), response.nonce.clone());
        stream.send(DiscoveryRequest { version_info, response_nonce, ..ask(type_url, &names, None) });
        if holds(&response) {
            return;
        }
    }
    panic!("nothing that was told holds {text}; the last was {last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_without_addresses_are_given_some_that_stay() {
    const NAMES: &str = "type.googleapis.com/istio.networking.nds.v1.NameTable";
    const LISTENERS: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
    let scratch = tempfile::tempdir().unwrap();
    let Some(cluster) = cluster(scratch.path()).await else { return };
    cluster.apply(&entry("first", &["one.com", "two.com"], "DNS")).await.unwrap();
    let mut server = serve(scratch.path(), &cluster, &[]).await;
    let at = |name: &str| format!("{ENTRIES}/{name}");
    let first = cluster.until(&at("first"), |found| !addresses(found).is_empty()).await.unwrap();
    let given = ["one.com 240.240.0.1", "one.com 2001:2::1", "two.com 240.240.0.2", "two.com 2001:2::2"];
    assert_eq!(addresses(&first), given);

    // Proxies are told at once: a name table leads there, and a listener waits there.
    let mut stream = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
    stream.send(ask(NAMES, &[], Some(proxy(&[("DNS_CAPTURE", "true")]))));
    until_told(&mut stream, NAMES, "240.240.0.1").await;
    let tcp = json!({"hosts": ["tcp.com"], "resolution": "DNS", "ports": [{"number": 9000, "name": "tcp", "protocol": "TCP"}]});
    cluster.apply(&object("ServiceEntry", "tcp", &tcp)).await.unwrap();
    let mut listeners = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
    listeners.send(ask(LISTENERS, &[], Some(proxy(&[("DNS_CAPTURE", "true")]))));
    until_told(&mut listeners, LISTENERS, "240.240.0.3_9000").await;

    // Who has or wants none is given none, and what he had is taken back.
    cluster.apply(&entry("none", &["none.com"], "NONE")).await.unwrap();
    let mut opted_out = entry("tcp", &["tcp.com"], "DNS");
    opted_out["metadata"]["labels"] = json!({"networking.istio.io/enable-autoallocate-ip": "false"});
    cluster.apply(&opted_out).await.unwrap();
    cluster.until(&at("tcp"), |found| addresses(found).is_empty()).await.unwrap();

    // An address that two have: the older keeps it.
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.apply(&entry("second", &["three.com"], "DNS")).await.unwrap();
    cluster.until(&at("second"), |found| !addresses(found).is_empty()).await.unwrap();
    let twice = json!({"addresses": [{"value": "240.240.0.1", "host": "three.com"}]});
    cluster.status(&entry("second", &[], ""), &twice).await.unwrap();
    let second = cluster
        .until(&at("second"), |found| {
            let found = addresses(found);
            found.len() == 2 && !found.contains(&"three.com 240.240.0.1".to_owned())
        })
        .await
        .unwrap();

    // Another server finds what is there, and leaves it alone.
    server.process.terminate().await.unwrap();
    let again =
        serve(&scratch.path().join("again"), &cluster, &[("POD_NAME", "istiod-1"), ("REVISION", "default")])
            .await;
    cluster.apply(&entry("third", &["four.com"], "STATIC")).await.unwrap();
    let third = cluster.until(&at("third"), |found| !addresses(found).is_empty()).await.unwrap();
    assert!(addresses(&third).iter().all(|at| !addresses(&first).contains(at)), "{third:#}");
    let version = |found: &Value| found["metadata"]["resourceVersion"].clone();
    for before in [&first, &second] {
        let name = before["metadata"]["name"].as_str().unwrap();
        assert_eq!(version(&cluster.get(&at(name)).await), version(before), "{name} was written to");
    }
    assert!(addresses(&cluster.get(&at("none")).await).is_empty());
    let lock = "/api/v1/namespaces/istio-system/configmaps/istio-ip-autoallocate";
    assert!(cluster.get(lock).await["metadata"]["annotations"].to_string().contains("istiod-1"));
    was_allowed(&again);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_rule_stands_in_its_status() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(cluster) = cluster(scratch.path()).await else { return };
    let rule = |name: &str, host: &str| {
        let destination = |host: &str| json!({"destination": {"host": host}, "weight": 50});
        let route = json!([destination("a"), destination(host)]);
        object("VirtualService", name, &json!({"hosts": [name], "http": [{"route": route}]}))
    };
    for name in ["a", "b"] {
        let metadata = json!({"name": name, "namespace": "shop"});
        let spec = json!({"ports": [{"name": "http", "port": 80}]});
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec});
        cluster.apply(&service).await.unwrap();
    }
    cluster.apply(&rule("bad", "not a host")).await.unwrap();
    cluster.apply(&rule("good", "b")).await.unwrap();
    let server = serve(scratch.path(), &cluster, &[("PILOT_ENABLE_ANALYSIS", "true")]).await;
    let at = |name: &str| format!("{RULES}/{name}");
    let is_judged =
        |found: &Value| found["status"]["validationMessages"].as_array().is_some_and(|all| !all.is_empty());
    let bad = cluster.until(&at("bad"), is_judged).await.unwrap();
    let status = &bad["status"];
    assert_eq!(status["validationMessages"][0]["level"], "ERROR", "{status:#}");
    assert_eq!(status["validationMessages"][0]["type"]["code"], "IST0106");
    assert_eq!(
        status["observedGeneration"].to_string().trim_matches('"'),
        bad["metadata"]["generation"].to_string()
    );
    let said = status["conditions"][0]["message"].as_str().unwrap();
    assert!(said.contains("spec.http[0].route[1].destination.host"), "{said}");

    // What others wrote stays, and nothing is written twice.
    let theirs = json!({"conditions": [status["conditions"][0], {"type": "Theirs", "status": "True"}]});
    cluster.status(&rule("bad", ""), &theirs).await.unwrap();
    let version = cluster.get(&at("bad")).await["metadata"]["resourceVersion"].clone();
    cluster.apply(&rule("worse", "not a host either")).await.unwrap();
    cluster.until(&at("worse"), is_judged).await.unwrap();
    assert_eq!(cluster.get(&at("bad")).await["metadata"]["resourceVersion"], version);
    assert_eq!(cluster.get(&at("good")).await["status"], Value::Null, "a good rule is left alone");

    cluster.apply(&rule("bad", "b")).await.unwrap();
    let well = cluster.until(&at("bad"), |found| !is_judged(found)).await.unwrap();
    let types: Vec<&str> = well["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|condition| condition["type"].as_str().unwrap())
        .collect();
    assert_eq!(types, ["Theirs"]);
    was_allowed(&server);
}

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
    was_allowed(&server);
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
    let server = serve(scratch.path(), &cluster, &[("PILOT_WORKLOAD_ENTRY_GRACE_PERIOD", "1s")]).await;
    cluster.until(&format!("{WORKLOADS}/left"), Value::is_null).await.unwrap();
    assert!(cluster.get(&format!("{WORKLOADS}/nonsense")).await.is_object(), "it says that it is connected");
    drop(server);
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

const INGRESSES: &str = "/apis/networking.k8s.io/v1/namespaces/shop/ingresses";
const ROUTES: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";

fn ingress(name: &str, class: &str, host: &str) -> Value {
    let service = |port: Value| json!({"service": {"name": "web", "port": port}});
    let paths = json!([
        {"path": "/cart", "pathType": "Prefix", "backend": service(json!({"name": "http"}))},
        {"path": "/exact", "pathType": "Exact", "backend": service(json!({"number": 80}))},
    ]);
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"ingressClassName": class, "rules": [{"host": host, "http": {"paths": paths}}]},
    })
}

fn gateway() -> Node {
    let word = |text: &str| Word { kind: Some(Kind::StringValue(text.to_owned())) };
    let labels = Struct { fields: [("istio".to_owned(), word("ingressgateway"))].into() };
    let labels = Word { kind: Some(Kind::StructValue(labels)) };
    let fields = [("LABELS".to_owned(), labels), ("NAMESPACE".to_owned(), word("istio-system"))];
    Node {
        id: "router~10.0.0.2~edge.istio-system~istio-system.svc.cluster.local".to_owned(),
        metadata: Some(Struct { fields: fields.into() }),
        ..Node::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ingresses_are_served_and_say_where() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(cluster) = cluster(scratch.path()).await else { return };
    let class = |name: &str, controller: &str| {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "IngressClass",
            "metadata": {"name": name}, "spec": {"controller": controller},
        })
    };
    let service = |namespace: &str, name: &str| {
        let spec = json!({"ports": [{"name": "http", "port": 80}], "externalIPs": ["192.0.2.7"]});
        let metadata = json!({"name": name, "namespace": namespace});
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    };
    cluster
        .client
        .call(Call::post(
            "/apis/networking.k8s.io/v1/ingressclasses",
            class("mesh", "istio.io/ingress-controller").to_string(),
        ))
        .await
        .unwrap();
    cluster
        .client
        .call(Call::post(
            "/apis/networking.k8s.io/v1/ingressclasses",
            class("other", "example.com/nginx").to_string(),
        ))
        .await
        .unwrap();
    cluster.apply(&service("shop", "web")).await.unwrap();
    cluster.apply(&service("istio-system", "istio-ingressgateway")).await.unwrap();
    let post = async |object: Value| {
        cluster.client.call(Call::post(INGRESSES, object.to_string())).await.unwrap();
    };
    post(ingress("ours", "mesh", "ours.com")).await;
    post(ingress("theirs", "other", "theirs.com")).await;
    let server = serve(scratch.path(), &cluster, &[]).await;
    let mut stream = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
    stream.send(ask(ROUTES, &["http.80"], Some(gateway())));
    let response = stream.next().await.unwrap().unwrap();
    let table = &response.resources[0].value;
    let holds = |text: &str| table.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(holds("ours.com") && !holds("theirs.com"));
    assert!(holds("outbound|80||web.shop.svc.cluster.local"));

    // It says where it is served; somebody else's does not.
    let at = |name: &str| format!("{INGRESSES}/{name}");
    let served = |found: &Value| found["status"]["loadBalancer"]["ingress"].clone();
    cluster.until(&at("ours"), |found| served(found) == json!([{"ip": "192.0.2.7"}])).await.unwrap();
    assert_eq!(served(&cluster.get(&at("theirs")).await), Value::Null);

    // One that comes later, one that changes hands, and one that goes.
    let (version_info, response_nonce) = (response.version_info, response.nonce);
    stream.send(DiscoveryRequest { version_info, response_nonce, ..ask(ROUTES, &["http.80"], None) });
    post(ingress("late", "mesh", "late.com")).await;
    until_told_of(&mut stream, ROUTES, ("http.80", "late.com")).await;
    let theirs = json!({"spec": {"ingressClassName": "mesh"}});
    cluster.client.call(Call::merge(&at("theirs"), theirs.to_string())).await.unwrap();
    until_told_of(&mut stream, ROUTES, ("http.80", "theirs.com")).await;
    cluster.until(&at("theirs"), |found| served(found).is_array()).await.unwrap();
    cluster.client.call(Call::delete(&at("ours"))).await.unwrap();
    let gone = async {
        loop {
            let mut again = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
            again.send(ask(ROUTES, &["http.80"], Some(gateway())));
            let response = again.next().await.unwrap().unwrap();
            let table = &response.resources[0].value;
            if !table.windows(8).any(|part| part == b"ours.com") {
                return;
            }
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(30), gone).await.is_ok(), "it is gone");
    was_allowed(&server);
}

/// Nothing that our manifests forbid was asked for.
fn was_allowed(server: &PilotServer) {
    let log = server.process.output();
    assert!(!log.contains("forbidden"), "our manifests allow too little:\n{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_write_asks_now_and_then_however_much_happens() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(cluster) = cluster(scratch.path()).await else { return };
    for i in 0..20 {
        cluster.apply(&entry(&format!("e{i:02}"), &[&format!("e{i}.com")], "DNS")).await.unwrap();
        let rule =
            object("VirtualService", &format!("r{i:02}"), &json!({"hosts": ["not a host"], "http": []}));
        cluster.apply(&rule).await.unwrap();
    }
    let gate = Gatekeeper::before(&cluster).await.unwrap();
    let is_write = |asked: &Asked| asked.method == "PATCH" && asked.path.ends_with("/status");
    gate.rule(move |asked| if is_write(asked) { Fate::Refuse(403) } else { Fate::Pass });
    let config = gate.kubeconfig("lab-admin-token");
    let server = serve_by(scratch.path(), &config, &[("PILOT_ENABLE_ANALYSIS", "true")]).await;
    let mut writes = 0;
    let mut seen = || {
        writes += gate.asked().iter().filter(|asked| is_write(asked)).count();
        writes
    };
    while seen() == 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Each of these is told to everybody who writes.
    for i in 0..200 {
        let mut changed = entry(&format!("e{:02}", i % 20), &[&format!("e{}.com", i % 20)], "DNS");
        changed["metadata"]["labels"] = json!({"round": i.to_string()});
        cluster.apply(&changed).await.unwrap();
    }
    let writes = seen();
    assert!(writes < 20, "{writes} writes were tried in vain");
    gate.rule(|_| Fate::Pass);
    let path = format!("{ENTRIES}/e19");
    cluster.until(&path, |found| !addresses(found).is_empty()).await.unwrap();
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workloads_are_looked_after_where_their_kind_has_moved_to() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(cluster) = cluster(scratch.path()).await else { return };
    let env = [("PILOT_WORKLOAD_ENTRY_GRACE_PERIOD", "1s")];
    let server = serve(scratch.path(), &cluster, &env).await;
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
    was_allowed(&server);
}
