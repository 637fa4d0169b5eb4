//! What the server writes into a real cluster, and what the API server asks it: validation, trust and seats.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use data_encoding::BASE64;
use pilot_ca::messages::CertificateRequest;
use pilot_source_kube::Call;
use pilot_testkit::http_call;
use pilot_testkit::identity::{connect, create_certificate, signing_request};
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
        let secure = free_address().unwrap();
        std::fs::create_dir_all(scratch).unwrap();
        let flags = [
            "--registries=Kubernetes".to_owned(),
            format!("--kubeconfig={}", as_installed(cluster, scratch).await),
            format!("--secureGRPCAddr={secure}"),
            format!("--httpsAddr={https}"),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let env = [("POD_NAME", "istiod-0"), ("ISTIOD_CUSTOM_HOST", "127.0.0.1")];
        let server = PilotServer::start_in(scratch, &flags, &env).await.unwrap();
        Self { server, secure }
    }
}

/// Installs what our manifests say, and gives out credentials that may do what they allow and nothing more.
async fn as_installed(cluster: &KubeServer, scratch: &Path) -> String {
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests");
    for file in [
        "namespace",
        "service-account",
        "cluster-role",
        "role",
        "mesh",
        "service",
        "deployment",
        "disruption",
    ] {
        let text = std::fs::read_to_string(manifests.join(format!("{file}.yaml"))).unwrap();
        for document in text.split("\n---\n") {
            cluster.apply(&pilot_config::read_value(document, file).unwrap()).await.unwrap();
        }
    }
    let token = token(cluster, "istio-system/serviceaccounts/istiod", None).await;
    let file = scratch.join("kubeconfig");
    std::fs::write(&file, cluster.kubeconfig_for(cluster.address, &token).unwrap()).unwrap();
    file.display().to_string()
}

/// A token of a service account.
async fn token(cluster: &KubeServer, account: &str, audience: Option<&str>) -> String {
    let audiences: Vec<&str> = audience.into_iter().collect();
    let ask = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"audiences": audiences, "expirationSeconds": 3600},
    });
    let path = format!("/api/v1/namespaces/{account}/token");
    let answer = cluster.client.call(Call::post(&path, ask.to_string())).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    answer["status"]["token"].as_str().unwrap().to_owned()
}

async fn get(cluster: &KubeServer, path: &str) -> Value {
    match cluster.client.call(Call::get(path)).await {
        Ok(body) => serde_json::from_slice(&body).unwrap(),
        Err(_) => Value::Null,
    }
}

/// Waits until something in the cluster is as it should be.
async fn until(cluster: &KubeServer, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..600 {
        let found = get(cluster, path).await;
        if is_so(&found) {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{path} is {:#}", get(cluster, path).await);
}

fn webhook(https: SocketAddr) -> Value {
    let groups = ["security.istio.io", "networking.istio.io", "telemetry.istio.io", "extensions.istio.io"];
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "istio-validator-istio-system", "labels": {"istio.io/rev": "default"}},
        "webhooks": [{
            "name": "rev.validation.istio.io",
            "clientConfig": {"url": format!("https://{https}/validate")},
            "rules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": groups, "apiVersions": ["*"], "resources": ["*"]}],
            "failurePolicy": "Ignore", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        }],
    })
}

const WEBHOOK: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/istio-validator-istio-system";

/// One object of Istio's examples, tried out: is it refused?
async fn refused(cluster: &KubeServer, object: &Value) -> Option<String> {
    let version = object["apiVersion"].as_str().unwrap();
    let kind = object["kind"].as_str().unwrap().to_lowercase();
    let plural = match kind.strip_suffix('y') {
        Some(stem) if !kind.ends_with("gateway") => format!("{stem}ies"),
        _ => format!("{kind}s"),
    };
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    let path = format!("/apis/{version}/namespaces/{namespace}/{plural}?dryRun=All");
    cluster.client.call(Call::post(&path, object.to_string())).await.err().map(|error| error.to_string())
}

async fn corpus(cluster: &KubeServer, folder: &Path) -> (usize, Vec<String>) {
    let (mut count, mut wrong) = (0, Vec::new());
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for document in text.split("\n---\n").filter(|text| text.contains("apiVersion:")) {
            let mut object = pilot_config::read_value(document, "corpus").unwrap();
            let expected = object.as_object_mut().unwrap().remove("_err");
            count += 1;
            let said = refused(cluster, &object).await;
            if said.is_some() != expected.is_some() {
                let (file, name) = (file.file_name().unwrap().display(), &object["metadata"]["name"]);
                wrong.push(format!("{file} {name}: expected {expected:?}, and the API server says {said:?}"));
            }
        }
    }
    (count, wrong)
}

#[tokio::test]
async fn the_api_server_asks_us_and_istios_examples_are_judged_as_by_istio() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let cluster = KubeServer::start(&scratch.path().join("cluster"), &[]).await.unwrap();
    let tools = Tools::of_environment();
    let module = tools.istio_module().unwrap();
    cluster.install_crds(module).await.unwrap();
    let https = free_address().unwrap();
    cluster.apply(&webhook(https)).await.unwrap();
    let plane = Plane::start(&scratch.path().join("pilot"), &cluster, https).await;

    let closed = until(&cluster, WEBHOOK, |found| found["webhooks"][0]["failurePolicy"] == "Fail").await;
    let bundle = closed["webhooks"][0]["clientConfig"]["caBundle"].as_str().unwrap();
    let bundle = String::from_utf8(BASE64.decode(bundle.as_bytes()).unwrap()).unwrap();
    assert!(bundle.starts_with("-----BEGIN CERTIFICATE-----"), "{bundle}");

    let rule = |timeout: &str| {
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": {"name": "r"},
            "spec": {"hosts": ["a"], "http": [{"timeout": timeout, "route": [{"destination": {"host": "a"}}]}]},
        })
    };
    assert_eq!(refused(&cluster, &rule("1s")).await, None);
    let said = refused(&cluster, &rule("0.0001s")).await.unwrap();
    assert!(said.contains("denied the request") || said.contains("Invalid value"), "{said}");

    let (count, wrong) = corpus(&cluster, &module.join("pkg/config/validation/testdata/crds")).await;
    assert!(count > 100, "only {count} documents were found");
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));

    let (_, metrics) = http_call::get(plane.server.monitoring, "/metrics").await.unwrap();
    let passed = metrics.lines().filter(|line| line.starts_with("galley_validation_")).count();
    assert_eq!(passed, 0, "what is only tried out is not counted");
    let log = plane.server.process.output();
    assert!(!log.contains("forbidden"), "our manifests allow too little:\n{log}");
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
    let found = until(&cluster, &map("shop"), has_root).await;
    let root = found["data"]["root-cert.pem"].as_str().unwrap().to_owned();
    assert_eq!(found["metadata"]["labels"]["istio.io/config"], "true");
    assert!(get(&cluster, &map("kube-public")).await.is_null());

    // A namespace that comes later, and a map that somebody changed or removed.
    cluster.namespace("late", &json!({})).await.unwrap();
    until(&cluster, &map("late"), has_root).await;
    cluster.client.call(Call::merge(&map("shop"), r#"{"data": {"root-cert.pem": "x"}}"#)).await.unwrap();
    until(&cluster, &map("shop"), |found| found["data"]["root-cert.pem"] == root.as_str()).await;
    cluster.client.call(Call::delete(&map("shop"))).await.unwrap();
    until(&cluster, &map("shop"), |found| found["data"]["root-cert.pem"] == root.as_str()).await;

    tokens(&cluster, &plane, &root).await;

    let log = plane.server.process.output();
    assert!(!log.contains("forbidden"), "our manifests allow too little:\n{log}");
    let lock = "/api/v1/namespaces/istio-system/configmaps/istio-namespace-controller-election";
    let holder = |found: &Value| {
        let text = found["metadata"]["annotations"]["control-plane.alpha.kubernetes.io/leader"].as_str();
        let record: Value = serde_json::from_str(text.unwrap_or("null")).unwrap();
        record["holderIdentity"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(holder(&get(&cluster, lock).await), "istiod-0");
    plane.server.process.terminate().await.unwrap();
    assert_eq!(holder(&get(&cluster, lock).await), "", "the seat is given free at the end");

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
    let token = |audience: &'static str| token(cluster, "shop/serviceaccounts/cart", Some(audience));
    let (csr, _) = signing_request("spiffe://cluster.local/ns/other/sa/other").unwrap();
    let request = || CertificateRequest { csr: csr.clone(), ..CertificateRequest::default() };
    let channel = connect(plane.secure, root, None).await.unwrap();
    let chain = create_certificate(channel.clone(), request(), Some(&token("istio-ca").await)).await.unwrap();
    let leaf = CertificateDer::from_pem_slice(chain[0].as_bytes()).unwrap();
    let names: Vec<String> = pilot_ca::identities(&leaf).iter().map(ToString::to_string).collect();
    assert_eq!(names, ["spiffe://cluster.local/ns/shop/sa/cart"]);
    for wrong in [token("others").await, "nonsense".to_owned()] {
        let refused = create_certificate(channel.clone(), request(), Some(&wrong)).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
    }
}
