//! Secrets of a real cluster, for gateways whose account may read them; and istioctl, which looks into the server.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use data_encoding::BASE64;
use pilot_envoy_api::envoy::config::core::v3::Node;
use pilot_envoy_api::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use pilot_testkit::identity::connect;
use pilot_testkit::kube::KubeServer;
use pilot_testkit::process::free_address;
use pilot_testkit::server::PilotServer;
use pilot_testkit::tools::Tools;
use pilot_testkit::xds_client::{Delta, Stream};
use pilot_xds::TypeUrl;
use prost_types::{Struct, value::Kind};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

fn skipped() -> bool {
    let why = Tools::of_environment().why_skip_kube();
    if let Some(why) = &why {
        eprintln!("skipped: {why}");
    }
    why.is_some()
}

/// A cluster with our manifests, and our server in it with TLS.
struct Home {
    scratch: TempDir,
    cluster: KubeServer,
    server: PilotServer,
    secure: SocketAddr,
    root: String,
}

impl Home {
    async fn open() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let cluster = KubeServer::start(&scratch.path().join("cluster"), &[]).await.unwrap();
        let secure = free_address().unwrap();
        let file = scratch.path().join("kubeconfig");
        std::fs::write(&file, cluster.installed(cluster.address).await.unwrap()).unwrap();
        cluster.namespace("shop", &json!({})).await.unwrap();
        let flags = [
            "--registries=Kubernetes".to_owned(),
            "--configDir=".to_owned(),
            format!("--kubeconfig={}", file.display()),
            format!("--secureGRPCAddr={secure}"),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let env = [("POD_NAME", "istiod-0"), ("ISTIOD_CUSTOM_HOST", "127.0.0.1")];
        let server = PilotServer::start_in(scratch.path(), &flags, &env).await.unwrap();
        let map = "/api/v1/namespaces/shop/configmaps/istio-ca-root-cert";
        let map = cluster.until(map, Value::is_object).await.unwrap();
        let root = map["data"]["root-cert.pem"].as_str().unwrap().to_owned();
        Self { scratch, cluster, server, secure, root }
    }

    async fn account(&self, name: &str) -> String {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "shop"}});
        self.cluster.apply(&account).await.unwrap();
        self.cluster.token(&format!("shop/serviceaccounts/{name}"), Some("istio-ca")).await.unwrap()
    }

    /// Asks for a Secret and its authority, as the gateway of an account.
    async fn ask(&self, account: &str) -> Stream<Delta> {
        let token = self.account(account).await;
        let channel = connect(self.secure, &self.root, None).await.unwrap();
        let stream = Stream::<Delta>::open_as(channel, Some(&token)).await.unwrap();
        let id = "router~10.0.0.1~edge.shop~shop.svc.cluster.local".to_owned();
        // Settings of its own tell a proxy from who only asks.
        let config = Kind::StructValue(Struct::default());
        let fields = [("PROXY_CONFIG".to_owned(), prost_types::Value { kind: Some(config) })].into();
        stream.send(DeltaDiscoveryRequest {
            node: Some(Node { id, metadata: Some(Struct { fields }), ..Node::default() }),
            type_url: TypeUrl::Secret.as_str().to_owned(),
            resource_names_subscribe: ["kubernetes://cert", "kubernetes://cert-cacert"]
                .map(str::to_owned)
                .into(),
            ..DeltaDiscoveryRequest::default()
        });
        stream
    }
}

fn secret(chain: &str) -> Value {
    let [chain, key] = [chain, "key"].map(|text| BASE64.encode(text.as_bytes()));
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": "cert", "namespace": "shop"},
        "data": {"tls.crt": chain, "tls.key": key, "ca.crt": chain},
    })
}

/// The right to list Secrets, for one account.
fn right(account: &str) -> [Value; 2] {
    let meta = json!({"name": "secrets", "namespace": "shop"});
    let group = "rbac.authorization.k8s.io";
    [
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": meta,
            "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "watch", "list"]}],
        }),
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "secrets"},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "shop"}],
        }),
    ]
}

fn names(response: &DeltaDiscoveryResponse) -> Vec<&str> {
    let mut names: Vec<&str> = response.resources.iter().map(|resource| resource.name.as_str()).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn gateways_have_the_secrets_that_their_account_may_list() {
    if skipped() {
        return;
    }
    let home = Home::open().await;
    home.cluster.apply(&secret("first")).await.unwrap();
    for object in right("edge") {
        home.cluster.apply(&object).await.unwrap();
    }
    let mut edge = home.ask("edge").await;
    let first = edge.next().await.unwrap().unwrap();
    assert_eq!(names(&first), ["kubernetes://cert", "kubernetes://cert-cacert"]);
    let type_url = TypeUrl::Secret.as_str().to_owned();
    edge.send(DeltaDiscoveryRequest { type_url, response_nonce: first.nonce, ..Default::default() });

    let mut other = home.ask("other").await;
    let told = other.next().await.unwrap().unwrap();
    assert_eq!(names(&told), ["kubernetes://cert-cacert"], "whom to trust is no secret");

    home.cluster.apply(&secret("second")).await.unwrap();
    let next = edge.next().await.unwrap().unwrap();
    assert_eq!(names(&next), ["kubernetes://cert", "kubernetes://cert-cacert"]);
    assert!(!home.server.process.output().contains("forbidden"), "our manifests allow all of that");
}

/// Runs istioctl on the cluster.
async fn istioctl(home: &Home, istioctl: &PathBuf, arguments: &[&str]) -> String {
    let output = Command::new(istioctl)
        .env("KUBECONFIG", home.cluster.kubeconfig())
        .env("HOME", home.scratch.path())
        .args(arguments)
        .args([&format!("--xds-address=127.0.0.1:{}", home.secure.port()), "--insecure"])
        .output();
    let output = tokio::time::timeout(Duration::from_secs(60), output).await.unwrap().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "istioctl {arguments:?}: {text}");
    text
}

#[tokio::test]
async fn istioctl_sees_what_proxies_have() {
    // Istio's own program is built elsewhere; without it the suite `debug` speaks as it does.
    let Some(program) = std::env::var_os("PILOT_ISTIOCTL").map(PathBuf::from).filter(|_| !skipped()) else {
        eprintln!("skipped: PILOT_ISTIOCTL names no istioctl");
        return;
    };
    let home = Home::open().await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "istio-system"}});
    home.cluster.apply(&account).await.unwrap();
    let mut proxy = home.ask("other").await;
    let _nothing = proxy.next().await;
    let status = istioctl(&home, &program, &["proxy-status"]).await;
    assert!(status.contains("edge.shop") && status.contains("istiod-0"), "{status}");
    let list = istioctl(&home, &program, &["experimental", "internal-debug", "list"]).await;
    assert!(list.contains("config_dump") && list.contains("syncz"), "{list}");
    let version = istioctl(&home, &program, &["experimental", "version"]).await;
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
}
