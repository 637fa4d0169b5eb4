//! What the server writes into a real cluster, and what the API server asks it: validation, trust and seats.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod seats;
mod webhook;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use pilot_ca::messages::CertificateRequest;
use pilot_source_kube::Call;
use pilot_testkit::cut::Cut;
use pilot_testkit::http_call;
use pilot_testkit::identity::{connect, create_certificate, create_certificate_in, signing_request};
use pilot_testkit::kube::KubeServer;
use pilot_testkit::process::free_address;
use pilot_testkit::server::PilotServer;
use pilot_testkit::tools::Tools;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use tonic::Code;

fn skipped() -> bool {
    let why = Tools::of_environment().why_skip_kube();
    if let Some(why) = &why {
        eprintln!("skipped: {why}");
    }
    why.is_some()
}

/// A server that a cluster asks, and where.
struct Plane {
    server: PilotServer,
    secure: SocketAddr,
}

impl Plane {
    async fn start(scratch: &Path, cluster: &KubeServer, https: SocketAddr) -> Self {
        Self::start_with(scratch, cluster, https, &[]).await
    }

    async fn start_with(
        scratch: &Path,
        cluster: &KubeServer,
        https: SocketAddr,
        env: &[(&str, &str)],
    ) -> Self {
        let secure = free_address().unwrap();
        std::fs::create_dir_all(scratch).unwrap();
        let file = scratch.join("kubeconfig");
        std::fs::write(&file, cluster.installed(cluster.address).await.unwrap()).unwrap();
        let flags = [
            "--registries=Kubernetes".to_owned(),
            format!("--kubeconfig={}", file.display()),
            format!("--secureGRPCAddr={secure}"),
            format!("--httpsAddr={https}"),
            "--clusterAliases=here=Kubernetes,there=east".to_owned(),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let usual = [("POD_NAME", "istiod-0"), ("ISTIOD_CUSTOM_HOST", "127.0.0.1")];
        let env: Vec<(&str, &str)> = usual.into_iter().chain(env.iter().copied()).collect();
        let server = PilotServer::start_in(scratch, &flags, &env).await.unwrap();
        Self { server, secure }
    }
}

#[tokio::test]
async fn trust_is_kept_in_the_cluster_and_told_in_every_namespace() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let cluster = KubeServer::start(&scratch.path().join("cluster"), &[]).await.unwrap();
    cluster.namespace("shop", &json!({})).await.unwrap();
    let mut plane = Plane::start(&scratch.path().join("one"), &cluster, free_address().unwrap()).await;

    let map = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps/istio-ca-root-cert");
    let has_root = |found: &Value| found["data"]["root-cert.pem"].is_string();
    let found = cluster.until(&map("shop"), has_root).await.unwrap();
    let root = found["data"]["root-cert.pem"].as_str().unwrap().to_owned();
    assert_eq!(found["metadata"]["labels"]["istio.io/config"], "true");
    assert!(cluster.get(&map("kube-public")).await.is_null());

    // A namespace that comes later, and a map that somebody changed or removed.
    cluster.namespace("late", &json!({})).await.unwrap();
    cluster.until(&map("late"), has_root).await.unwrap();
    cluster.client.call(Call::merge(&map("shop"), r#"{"data": {"root-cert.pem": "x"}}"#)).await.unwrap();
    cluster.until(&map("shop"), |found| found["data"]["root-cert.pem"] == root.as_str()).await.unwrap();
    cluster.client.call(Call::delete(&map("shop"))).await.unwrap();
    cluster.until(&map("shop"), |found| found["data"]["root-cert.pem"] == root.as_str()).await.unwrap();

    tokens(&cluster, &plane, &root).await;

    let forbidden = cluster.forbidden_to_server();
    assert!(forbidden.is_empty(), "our manifests do not allow {forbidden:#?}");
    let lock = "/api/v1/namespaces/istio-system/configmaps/istio-namespace-controller-election";
    let holder = |found: &Value| {
        let text = found["metadata"]["annotations"]["control-plane.alpha.kubernetes.io/leader"].as_str();
        let record: Value = serde_json::from_str(text.unwrap_or("null")).unwrap();
        record["holderIdentity"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(holder(&cluster.get(lock).await), "istiod-0");
    plane.server.process.terminate().await.unwrap();
    assert_eq!(holder(&cluster.get(lock).await), "", "the seat is given free at the end");

    // Another server finds the same authority, and nothing of it in its own folder.
    let second = scratch.path().join("two");
    let again = Plane::start(&second, &cluster, free_address().unwrap()).await;
    let channel = connect(again.secure, &root, None).await;
    assert!(channel.is_ok(), "the root is the same: {:?}", channel.err());
    assert!(!second.join("var").exists());
}

/// Service accounts of the cluster get certificates, for themselves only.
async fn tokens(cluster: &KubeServer, plane: &Plane, root: &str) {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "cart", "namespace": "shop"}});
    cluster.apply(&account).await.unwrap();
    let token =
        async |audience: &str| cluster.token("shop/serviceaccounts/cart", Some(audience)).await.unwrap();
    let (csr, _) = signing_request("spiffe://cluster.local/ns/other/sa/other").unwrap();
    let request = || CertificateRequest { csr: csr.clone(), ..CertificateRequest::default() };
    let channel = connect(plane.secure, root, None).await.unwrap();
    let right = token("istio-ca").await;
    for name in [None, Some("Kubernetes"), Some("here")] {
        let chain = create_certificate_in(channel.clone(), request(), (Some(&right), name)).await.unwrap();
        let leaf = CertificateDer::from_pem_slice(chain[0].as_bytes()).unwrap();
        let names: Vec<String> = pilot_ca::identities(&leaf).iter().map(ToString::to_string).collect();
        assert_eq!(names, ["spiffe://cluster.local/ns/shop/sa/cart"], "{name:?}");
    }
    for wrong in [token("others").await, "nonsense".to_owned()] {
        let refused = create_certificate(channel.clone(), request(), Some(&wrong)).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
    }
}

#[tokio::test]
async fn only_what_is_in_selected_namespaces_counts() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let cluster = KubeServer::start(&scratch.path().join("cluster"), &[]).await.unwrap();
    cluster.install_crds(Tools::of_environment().istio_module().unwrap()).await.unwrap();
    for (namespace, label) in [("istio-system", "on"), ("inside", "on"), ("outside", "off")] {
        cluster.namespace(namespace, &json!({"mesh": label})).await.unwrap();
        let spec =
            json!({"hosts": ["x"], "http": [{"timeout": "1s", "route": [{"destination": {"host": "x"}}]}]});
        let rule = json!({
            "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
            "metadata": {"name": "r", "namespace": namespace}, "spec": spec,
        });
        cluster.apply(&rule).await.unwrap();
        let ports = json!([{"number": 80, "name": "http", "protocol": "HTTP"}]);
        let spec = json!({"hosts": ["x.com"], "ports": ports, "resolution": "DNS"});
        let entry = json!({
            "apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
            "metadata": {"name": "e", "namespace": namespace}, "spec": spec,
        });
        cluster.apply(&entry).await.unwrap();
    }
    let mesh = json!({"mesh": "discoverySelectors:\n- matchLabels: {mesh: \"on\"}\n"});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "istio", "namespace": "istio-system"}, "data": mesh});
    let kubeconfig = format!("--kubeconfig={}", cluster.kubeconfig().display());
    let flags = ["--registries=Kubernetes", "--configDir=", &kubeconfig, "--httpsAddr=127.0.0.1:0"];
    cluster.apply(&map).await.unwrap();
    let server = PilotServer::start_in(scratch.path(), &flags, &[("POD_NAME", "istiod-0")]).await.unwrap();
    let counted = async |count: usize| {
        for _ in 0..300 {
            let (_, metrics) = http_call::get(server.monitoring, "/metrics").await.unwrap();
            if metrics.contains(&format!("pilot_virt_services {count}\n")) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        false
    };
    assert!(counted(2).await);
    let root = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps/istio-ca-root-cert");
    cluster.until(&root("inside"), Value::is_object).await.unwrap();
    assert!(cluster.get(&root("outside")).await.is_null());
    let entry =
        |namespace: &str| format!("/apis/networking.istio.io/v1/namespaces/{namespace}/serviceentries/e");
    let has_address = |found: &Value| found["status"]["addresses"].is_array();
    cluster.until(&entry("inside"), has_address).await.unwrap();
    assert!(!has_address(&cluster.get(&entry("outside")).await), "it may be another mesh's");

    // It is let in, and another is put out.
    cluster.namespace("outside", &json!({"mesh": "on"})).await.unwrap();
    cluster.until(&root("outside"), Value::is_object).await.unwrap();
    cluster.until(&entry("outside"), has_address).await.unwrap();
    assert!(counted(3).await);
    cluster.namespace("inside", &json!({"mesh": "off"})).await.unwrap();
    assert!(counted(2).await);
    let everybody =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": map["metadata"], "data": {"mesh": ""}});
    cluster.apply(&everybody).await.unwrap();
    assert!(counted(3).await);
}

fn account(name: &str) -> Value {
    let metadata = json!({"name": name, "namespace": "shop"});
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
}

/// Who injects sidecars, for a revision.
fn injector(name: &str, revision: &str) -> Value {
    let rules =
        json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]);
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name, "labels": {"istio.io/rev": revision}},
        "webhooks": [{
            "name": "namespace.sidecar-injector.istio.io", "rules": rules, "failurePolicy": "Ignore",
            "clientConfig": {"url": "https://127.0.0.1:1/inject"}, "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }],
    })
}

const INJECTOR: &str =
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/istio-sidecar-injector";
const LOCK: &str = "/api/v1/namespaces/istio-system/configmaps/istio-namespace-controller-election";

/// What a lock says of who holds it.
fn leader(map: &Value) -> Value {
    let text = map["metadata"]["annotations"]["control-plane.alpha.kubernetes.io/leader"].as_str();
    serde_json::from_str(text.unwrap_or("null")).unwrap()
}

#[tokio::test]
async fn a_cluster_without_a_control_plane_is_looked_after_once_it_says_so() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let near = KubeServer::start(&scratch.path().join("near"), &[]).await.unwrap();
    let far = KubeServer::start(&scratch.path().join("far"), &[]).await.unwrap();
    for cluster in [&near, &far] {
        cluster.namespace("istio-system", &json!({})).await.unwrap();
        cluster.namespace("shop", &json!({})).await.unwrap();
    }
    far.apply(&account("cart")).await.unwrap();
    far.apply(&injector("istio-sidecar-injector", "default")).await.unwrap();
    // What the server may do there is what our manifests allow, too.
    let config = far.installed(far.address).await.unwrap();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "stringData": {"east": config},
        "metadata": {"name": "east", "namespace": "istio-system", "labels": {"istio/multiCluster": "true"}},
    });
    near.apply(&secret).await.unwrap();
    let env = [("EXTERNAL_ISTIOD", "true")];
    let folder = scratch.path().join("pilot");
    let mut plane = Plane::start_with(&folder, &near, free_address().unwrap(), &env).await;

    let map = "/api/v1/namespaces/shop/configmaps/istio-ca-root-cert";
    let has_root = |found: &Value| found["data"]["root-cert.pem"].is_string();
    let root = near.until(map, has_root).await.unwrap()["data"]["root-cert.pem"].clone();
    let root = root.as_str().unwrap();
    // Callers there are judged there, whoever looks after its trust.
    let (csr, _) = signing_request("spiffe://cluster.local/ns/other/sa/other").unwrap();
    let request = || CertificateRequest { csr: csr.clone(), ..CertificateRequest::default() };
    let channel = connect(plane.secure, root, None).await.unwrap();
    let token = far.token("shop/serviceaccounts/cart", Some("istio-ca")).await.unwrap();
    let ask = async |cluster: Option<&str>| {
        create_certificate_in(channel.clone(), request(), (Some(&token), cluster)).await
    };
    ask(Some("there")).await.unwrap();
    let chain = ask(Some("east")).await.unwrap();
    let leaf = CertificateDer::from_pem_slice(chain[0].as_bytes()).unwrap();
    let names: Vec<String> = pilot_ca::identities(&leaf).iter().map(ToString::to_string).collect();
    assert_eq!(names, ["spiffe://cluster.local/ns/shop/sa/cart"]);
    for elsewhere in [None, Some("Kubernetes"), Some("west")] {
        assert_eq!(ask(elsewhere).await.unwrap_err().code(), Code::Unauthenticated, "{elsewhere:?}");
    }
    assert!(far.get(map).await.is_null() && far.get(LOCK).await.is_null(), "it has not asked for anything");

    let says = |whose: &str| {
        let annotations = json!({"topology.istio.io/controlPlaneClusters": whose});
        let metadata = json!({"name": "istio-system", "annotations": annotations});
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    };
    far.apply(&says("west,Kubernetes")).await.unwrap();
    let found = far.until(map, has_root).await.unwrap();
    assert_eq!(found["data"]["root-cert.pem"], root);
    assert_eq!(leader(&far.get(LOCK).await)["holderKey"], "^default", "who belongs there goes first");
    far.until(INJECTOR, |found| found["webhooks"][0]["clientConfig"]["caBundle"].is_string()).await.unwrap();
    // It has somebody else now.
    far.apply(&says("west")).await.unwrap();
    far.until(LOCK, |found| leader(found)["holderIdentity"] == "").await.unwrap();
    far.client.call(Call::delete(map)).await.unwrap();
    far.apply(&says("*")).await.unwrap();
    far.until(map, has_root).await.unwrap();

    let forbidden = [near.forbidden_to_server(), far.forbidden_to_server()].concat();
    assert!(forbidden.is_empty(), "our manifests do not allow {forbidden:#?}");
    plane.server.process.terminate().await.unwrap();
    assert_eq!(leader(&far.get(LOCK).await)["holderIdentity"], "", "seats are given free at the end");
}

#[tokio::test]
async fn only_one_namespace_is_written_to_where_only_one_is_watched() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let cluster = KubeServer::start(&scratch.path().join("cluster"), &[]).await.unwrap();
    for namespace in ["shop", "other"] {
        cluster.namespace(namespace, &json!({})).await.unwrap();
    }
    let env = [("ISTIO_WATCH_NAMESPACE", "shop")];
    let plane =
        Plane::start_with(&scratch.path().join("pilot"), &cluster, free_address().unwrap(), &env).await;
    let map = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps/istio-ca-root-cert");
    cluster.until(&map("shop"), Value::is_object).await.unwrap();
    cluster.client.call(Call::delete(&map("shop"))).await.unwrap();
    cluster.until(&map("shop"), Value::is_object).await.unwrap();
    assert!(cluster.get(&map("other")).await.is_null() && cluster.get(&map("default")).await.is_null());
    drop(plane);
}

#[tokio::test]
async fn what_was_deleted_while_nobody_could_see_it_is_written_again() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut cluster = KubeServer::start(&scratch.path().join("cluster"), &[]).await.unwrap();
    cluster.namespace("istio-system", &json!({})).await.unwrap();
    let names: Vec<String> = (0..12).map(|i| format!("n{i:02}")).collect();
    for name in &names {
        cluster.namespace(name, &json!({})).await.unwrap();
    }
    let cut = Cut::before(cluster.address).await.unwrap();
    let file = scratch.path().join("kubeconfig");
    std::fs::write(&file, cluster.kubeconfig_for(cut.address, "lab-admin-token").unwrap()).unwrap();
    let (kubeconfig, https) = (format!("--kubeconfig={}", file.display()), free_address().unwrap());
    let https = format!("--httpsAddr={https}");
    let flags = ["--registries=Kubernetes", &kubeconfig, &https];
    let server = PilotServer::start_in(scratch.path(), &flags, &[("POD_NAME", "istiod-0")]).await.unwrap();
    let map = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps/istio-ca-root-cert");
    for name in &names {
        cluster.until(&map(name), Value::is_object).await.unwrap();
    }
    // A new API server does not remember what it was; so many at once would not be believed of services.
    cut.close();
    for name in &names {
        cluster.client.call(Call::delete(&map(name))).await.unwrap();
    }
    cluster.kill_api().await.unwrap();
    cluster.start_api().await.unwrap();
    cut.open();
    for name in &names {
        cluster.until(&map(name), Value::is_object).await.unwrap();
    }
    assert!(!server.process.output().contains("pilotctl confirm"), "nothing is held back");
}
