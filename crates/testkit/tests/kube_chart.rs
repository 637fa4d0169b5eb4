//! The server in istiod's place: with the roles that Istio's own chart gives istiod, on a real API server.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use pilot_ca::messages::CertificateRequest;
use pilot_envoy_api::envoy::config::core::v3::Node;
use pilot_envoy_api::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use pilot_testkit::identity::{connect, create_certificate, signing_request};
use pilot_testkit::kube::{KubeServer, Request, our_rules};
use pilot_testkit::process::free_address;
use pilot_testkit::server::PilotServer;
use pilot_testkit::tools::Tools;
use pilot_testkit::xds_client::{Delta, StateOfTheWorld, Stream};
use pilot_xds::TypeUrl;
use prost_types::value::Kind;
use prost_types::{Struct, Value as Word};
use serde_json::{Value, json};

const LOCKS: [&str; 4] =
    ["istio-namespace-controller-election", "istio-ip-autoallocate", "istio-analyze-leader", "istio-leader"];
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
const INJECTORS: [&str; 2] = ["istio-sidecar-injector", "istio-revision-tag-default"];
const RULES: &str = "/apis/networking.istio.io/v1/namespaces/shop";
const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1";

fn map(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps/{name}")
}

/// What istiod has left behind: its locks, and a root that is ours no more.
async fn left_by_istiod(cluster: &KubeServer) {
    let record = json!({
        "holderIdentity": "istiod-of-istio", "holderKey": "default", "leaseDurationSeconds": 1,
        "acquireTime": "2026-01-01T00:00:00Z", "renewTime": "2026-01-01T00:00:00Z", "leaderTransitions": 7,
    });
    let mut maps = Vec::new();
    for name in LOCKS {
        let annotations = json!({LEADER: record.to_string()});
        maps.push(
            json!({"metadata": {"name": name, "namespace": "istio-system", "annotations": annotations}}),
        );
    }
    let data = json!({"root-cert.pem": "of yesterday", "theirs": "x"});
    maps.push(json!({"metadata": {"name": "istio-ca-root-cert", "namespace": "shop"}, "data": data}));
    for mut object in maps {
        (object["apiVersion"], object["kind"]) = ("v1".into(), "ConfigMap".into());
        cluster.apply(&object).await.unwrap();
    }
}

fn rule(kind: &str, name: &str, spec: &Value) -> Value {
    let metadata = json!({"name": name, "namespace": "shop"});
    json!({"apiVersion": "networking.istio.io/v1", "kind": kind, "metadata": metadata, "spec": spec})
}

/// One object of each sort that something is written into.
async fn objects(cluster: &KubeServer) {
    let ports = json!([{"number": 80, "name": "http", "protocol": "HTTP"}]);
    let entry = json!({"hosts": ["one.com"], "ports": ports, "resolution": "DNS"});
    cluster.apply(&rule("ServiceEntry", "one", &entry)).await.unwrap();
    let route = json!([{"destination": {"host": "a"}, "weight": 1}, {"destination": {"host": "not a host"}, "weight": 1}]);
    let wrong = json!({"hosts": ["bad"], "http": [{"route": route}]});
    cluster.apply(&rule("VirtualService", "bad", &wrong)).await.unwrap();
    let mut left = rule("WorkloadEntry", "left", &json!({"address": "10.0.0.9"}));
    left["metadata"]["annotations"] = json!({
        "istio.io/autoRegistrationGroup": "cart", "istio.io/workloadController": "istiod-0",
        "istio.io/disconnectedAt": "2026-01-01T00:00:00Z",
    });
    cluster.apply(&left).await.unwrap();
    let gateway = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "istio-ingressgateway", "namespace": "istio-system"},
        "spec": {"ports": [{"name": "http", "port": 80}], "externalIPs": ["192.0.2.7"]},
    });
    cluster.apply(&gateway).await.unwrap();
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let paths = json!([{"path": "/", "pathType": "Prefix", "backend": backend}]);
    let ingress = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": "web", "namespace": "shop", "annotations": {"kubernetes.io/ingress.class": "istio"}},
        "spec": {"rules": [{"host": "one.com", "http": {"paths": paths}}]},
    });
    cluster.apply(&ingress).await.unwrap();
    for name in INJECTORS {
        let injector = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name, "labels": {"istio.io/rev": "default"}},
            "webhooks": [{
                "name": "namespace.sidecar-injector.istio.io", "failurePolicy": "Ignore", "sideEffects": "None",
                "clientConfig": {"url": "https://127.0.0.1:1/inject"}, "admissionReviewVersions": ["v1"],
            }],
        });
        cluster.apply(&injector).await.unwrap();
    }
    let group = json!({"template": {"labels": {"app": "vm"}, "serviceAccount": "vm"}});
    cluster.apply(&rule("WorkloadGroup", "vm", &group)).await.unwrap();
    let certificate = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cert", "namespace": "shop"},
        "stringData": {"tls.crt": "chain", "tls.key": "key", "ca.crt": "authority"},
    });
    cluster.apply(&certificate).await.unwrap();
}

/// A server that may do what a token may, and where it has certificates.
async fn serve(
    scratch: &Path,
    cluster: &KubeServer,
    (token, https): (&str, SocketAddr),
) -> (PilotServer, SocketAddr) {
    let (file, secure) = (scratch.join("pilot-kubeconfig"), free_address().unwrap());
    std::fs::write(&file, cluster.kubeconfig_for(cluster.address, token).unwrap()).unwrap();
    let flags = [
        "--registries=Kubernetes".to_owned(),
        "--configDir=".to_owned(),
        format!("--kubeconfig={}", file.display()),
        format!("--secureGRPCAddr={secure}"),
        format!("--httpsAddr={https}"),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let env = [
        ("POD_NAME", "istiod-0"),
        ("ISTIOD_CUSTOM_HOST", "127.0.0.1"),
        ("ISTIO_WORKLOAD_ENTRY_VALIDATE_IDENTITY", "false"),
        ("PILOT_ENABLE_ANALYSIS", "true"),
        ("PILOT_WORKLOAD_ENTRY_GRACE_PERIOD", "1s"),
    ];
    (PilotServer::start_in(scratch, &flags, &env).await.unwrap(), secure)
}

fn record(map: &Value) -> Value {
    let text = map["metadata"]["annotations"][LEADER].as_str().unwrap_or("null");
    serde_json::from_str(text).unwrap()
}

/// A cluster with all that a server writes into.
async fn cluster(scratch: &Path) -> Option<(KubeServer, PathBuf)> {
    let tools = Tools::of_environment();
    if let Some(why) = tools.why_skip_kube() {
        eprintln!("skipped: {why}");
        return None;
    }
    let istio = tools.istio_module().unwrap();
    let cluster = KubeServer::start(&scratch.join("kube"), &[]).await.unwrap();
    cluster.install_crds(istio).await.unwrap();
    for namespace in ["istio-system", "shop"] {
        cluster.namespace(namespace, &json!({})).await.unwrap();
    }
    left_by_istiod(&cluster).await;
    objects(&cluster).await;
    Some((cluster, istio.to_owned()))
}

/// Has a server do all that it may have to do.
async fn everything_is_done(scratch: &Path, cluster: &KubeServer, token: &str) {
    let https = free_address().unwrap();
    cluster.install_webhook(https).await.unwrap();
    let (mut server, secure) = serve(scratch, cluster, (token, https)).await;
    it_leads(cluster).await;
    let root = trust_is_told(cluster).await;
    objects_are_written(cluster).await;
    callers_are_served(cluster, &server, (secure, &root)).await;
    server.process.terminate().await.unwrap();
    for lock in LOCKS {
        let lock = record(&cluster.get(&map("istio-system", lock)).await);
        assert_eq!(lock["holderIdentity"], "", "seats are given free at the end");
    }
}

/// It takes over what istiod led in, and goes on leading.
async fn it_leads(cluster: &KubeServer) {
    for lock in LOCKS {
        let path = map("istio-system", lock);
        let taken = cluster.until(&path, |map| record(map)["holderIdentity"] == "istiod-0").await.unwrap();
        let taken = record(&taken);
        assert_eq!(taken["leaderTransitions"], 8, "{lock}");
        let renewed = |map: &Value| record(map)["renewTime"] != taken["renewTime"];
        let renewed = record(&cluster.until(&path, renewed).await.unwrap());
        assert_eq!(
            (&renewed["holderIdentity"], &renewed["acquireTime"]),
            (&taken["holderIdentity"], &taken["acquireTime"])
        );
    }
}

/// The root in every namespace, and who asks us about objects. Tells the root.
async fn trust_is_told(cluster: &KubeServer) -> String {
    let is_root = |map: &Value| map["data"]["root-cert.pem"].to_string().contains("BEGIN CERTIFICATE");
    let root = cluster.until(&map("shop", "istio-ca-root-cert"), is_root).await.unwrap();
    assert_eq!(root["data"]["theirs"], "x", "what others wrote stays");
    cluster.until(&map("default", "istio-ca-root-cert"), is_root).await.unwrap();
    let closed = |found: &Value| {
        let hook = &found["webhooks"][0];
        hook["failurePolicy"] == "Fail" && hook["clientConfig"]["caBundle"].is_string()
    };
    let validator = format!("{HOOKS}/validatingwebhookconfigurations/istio-validator-istio-system");
    cluster.until(&validator, closed).await.unwrap();
    let known = |found: &Value| found["webhooks"][0]["clientConfig"]["caBundle"].is_string();
    for name in INJECTORS {
        cluster.until(&format!("{HOOKS}/mutatingwebhookconfigurations/{name}"), known).await.unwrap();
    }
    root["data"]["root-cert.pem"].as_str().unwrap().to_owned()
}

async fn objects_are_written(cluster: &KubeServer) {
    let addresses = |found: &Value| found["status"]["addresses"].is_array();
    cluster.until(&format!("{RULES}/serviceentries/one"), addresses).await.unwrap();
    let judged = |found: &Value| found["status"]["validationMessages"][0]["level"] == "ERROR";
    cluster.until(&format!("{RULES}/virtualservices/bad"), judged).await.unwrap();
    cluster.until(&format!("{RULES}/workloadentries/left"), Value::is_null).await.unwrap();
    let served = |found: &Value| found["status"]["loadBalancer"]["ingress"][0]["ip"] == "192.0.2.7";
    cluster.until("/apis/networking.k8s.io/v1/namespaces/shop/ingresses/web", served).await.unwrap();
}

/// A workload outside of the cluster that comes, says that it is well, and goes; and a pod that asks for a certificate.
async fn callers_are_served(cluster: &KubeServer, server: &PilotServer, (secure, root): (SocketAddr, &str)) {
    let word = |text: &str| Word { kind: Some(Kind::StringValue(text.to_owned())) };
    let said = [("AUTO_REGISTER_GROUP", "vm"), ("NAMESPACE", "shop")];
    let fields = said.map(|(key, text)| (key.to_owned(), word(text))).into();
    let node = Node {
        id: "sidecar~10.0.0.1~vm.shop~shop.svc.cluster.local".to_owned(),
        metadata: Some(Struct { fields }),
        ..Node::default()
    };
    let ask = |kind: &str, node| DiscoveryRequest { type_url: kind.to_owned(), node, ..Default::default() };
    let stream = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
    stream.send(ask(TypeUrl::Cluster.as_str(), Some(node)));
    stream.send(ask("type.googleapis.com/istio.v1.HealthInformation", None));
    let entry = format!("{RULES}/workloadentries/vm-10.0.0.1");
    let healthy = |found: &Value| found["status"]["conditions"][0]["status"] == "True";
    cluster.until(&entry, healthy).await.unwrap();
    drop(stream);
    cluster.until(&entry, Value::is_null).await.unwrap();

    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "cart", "namespace": "shop"}});
    cluster.apply(&account).await.unwrap();
    let token = cluster.token("shop/serviceaccounts/cart", Some("istio-ca")).await.unwrap();
    let (csr, _) = signing_request("spiffe://cluster.local/ns/shop/sa/cart").unwrap();
    let channel = connect(secure, root, None).await.unwrap();
    let request = CertificateRequest { csr, ..CertificateRequest::default() };
    create_certificate(channel, request, Some(&token)).await.unwrap();
    a_gateway_asks_for_secrets((secure, root), &token).await;
}

/// The API server is asked whether its account may read them. It may not, and is told whom to trust alone.
async fn a_gateway_asks_for_secrets((secure, root): (SocketAddr, &str), token: &str) {
    let channel = connect(secure, root, None).await.unwrap();
    let mut stream = Stream::<Delta>::open_as(channel, Some(token)).await.unwrap();
    let config = Word { kind: Some(Kind::StructValue(Struct::default())) };
    let node = Node {
        id: "router~10.0.0.2~edge.shop~shop.svc.cluster.local".to_owned(),
        metadata: Some(Struct { fields: [("PROXY_CONFIG".to_owned(), config)].into() }),
        ..Node::default()
    };
    stream.send(DeltaDiscoveryRequest {
        node: Some(node),
        type_url: TypeUrl::Secret.as_str().to_owned(),
        resource_names_subscribe: ["kubernetes://cert", "kubernetes://cert-cacert"].map(str::to_owned).into(),
        ..DeltaDiscoveryRequest::default()
    });
    let told = stream.next().await.unwrap().unwrap();
    let names: Vec<&str> = told.resources.iter().map(|resource| resource.name.as_str()).collect();
    assert_eq!(names, ["kubernetes://cert-cacert"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_istios_chart_lets_istiod_do_is_enough() {
    let scratch = tempfile::tempdir().unwrap();
    let Some((cluster, istio)) = cluster(scratch.path()).await else { return };
    let token = cluster.installed_by_chart(&istio).await.unwrap();
    everything_is_done(scratch.path(), &cluster, &token).await;
    let forbidden = cluster.forbidden_to_server();
    assert!(forbidden.is_empty(), "the chart does not allow {forbidden:#?}");
}

/// Names that only count with other settings: an authority of somebody else's.
const ELSEWHERE: [&str; 1] = ["cacerts"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_manifests_allow_what_is_needed_and_nothing_more() {
    let scratch = tempfile::tempdir().unwrap();
    let Some((cluster, _)) = cluster(scratch.path()).await else { return };
    cluster.installed(cluster.address).await.unwrap();
    let token = cluster.token_of_server().await.unwrap();
    everything_is_done(scratch.path(), &cluster, &token).await;
    let asked = cluster.asked_by_server();
    let forbidden: Vec<&Request> = asked.iter().filter(|request| !request.is_allowed).collect();
    assert!(forbidden.is_empty(), "our manifests do not allow {forbidden:#?}");
    let unused: Vec<String> = our_rules().unwrap().iter().flat_map(|rule| unused(rule, &asked)).collect();
    assert!(unused.is_empty(), "nobody needs\n{}", unused.join("\n"));
}

/// What of a rule was not asked for.
fn unused(rule: &Value, asked: &[Request]) -> Vec<String> {
    let texts = |field: &str| -> Vec<&str> {
        rule[field].as_array().into_iter().flatten().map(|text| text.as_str().unwrap()).collect()
    };
    let (groups, names) = (texts("apiGroups"), texts("resourceNames"));
    let is_meant = |request: &&Request, resource: &str| {
        let is_named = names.is_empty() || names.contains(&request.name.as_str());
        let is_it = match resource.strip_prefix('*') {
            Some("") => !request.resource.contains('/'),
            Some(part) => request.resource.ends_with(part),
            None => request.resource == resource,
        };
        is_it && is_named && groups.contains(&request.group.as_str())
    };
    let mut unused = Vec::new();
    for resource in texts("resources") {
        let of_it: Vec<&Request> = asked.iter().filter(|request| is_meant(request, resource)).collect();
        let verbs =
            texts("verbs").into_iter().filter(|verb| !of_it.iter().any(|request| request.verb == *verb));
        unused.extend(verbs.map(|verb| format!("{verb} {groups:?} {resource} {names:?}")));
    }
    let is_asked_for = |name: &str| asked.iter().any(|request| request.name == name);
    let others = names.iter().filter(|name| !ELSEWHERE.contains(name) && !is_asked_for(name));
    unused.extend(others.map(|name| format!("{groups:?} {name}")));
    unused
}
