//! The server on real API servers: faults, and several clusters.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod clusters;
mod faults;
mod large;
mod waiting;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use pilot_envoy_api::envoy::config::core::v3::Node;
use pilot_envoy_api::envoy::config::core::v3::address::Address as At;
use pilot_envoy_api::envoy::config::endpoint::v3::ClusterLoadAssignment;
use pilot_envoy_api::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use pilot_envoy_api::envoy::service::discovery::v3::DiscoveryRequest;
use pilot_testkit::cut::Cut;
use pilot_testkit::http_call;
use pilot_testkit::kube::KubeServer;
use pilot_testkit::process::free_address;
use pilot_testkit::server::PilotServer;
use pilot_testkit::tools::Tools;
use pilot_testkit::xds_client::{StateOfTheWorld, Stream, node};
use pilot_xds::TypeUrl;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::clusters::secret;

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
    let mut server = launch(scratch, kubeconfig, &[], &[]);
    server.process.until_ok(server.http, "/ready").await.unwrap();
    server
}

/// The same without waiting for anything.
fn launch(scratch: &Path, kubeconfig: &str, more: &[&str], env: &[(&str, &str)]) -> PilotServer {
    let file = scratch.join("pilot-kubeconfig");
    std::fs::write(&file, kubeconfig).unwrap();
    let flag = format!("--kubeconfig={}", file.display());
    // Without an authority nobody has certificates for each other.
    let mesh = scratch.join("mesh.yaml");
    std::fs::write(&mesh, "enableAutoMtls: false\n").unwrap();
    let mesh = format!("--meshConfig={}", mesh.display());
    // A stock Envoy lacks Istio's own filters.
    let stock = [("PILOT_ENABLE_ALPN_FILTER", "false"), ("PILOT_ENABLE_METADATA_EXCHANGE", "false")];
    let flags: Vec<&str> =
        ["--registries=Kubernetes", &flag, &mesh].into_iter().chain(more.iter().copied()).collect();
    let env: Vec<(&str, &str)> = stock.into_iter().chain(env.iter().copied()).collect();
    PilotServer::launch_in(scratch, &flags, &env).unwrap()
}

/// What a proxy holds: the addresses behind the service, from one answer to the next.
struct Proxy {
    holds: watch::Receiver<BTreeSet<String>>,
    tasks: JoinSet<()>,
}

impl Proxy {
    /// Whatever it is told, it must never miss any of `always`.
    async fn connect(server: &PilotServer, always: &'static [&'static str]) -> Self {
        Self::connect_as(server, node("web"), (CLUSTER, always)).await
    }

    async fn connect_as(
        server: &PilotServer,
        client: Node,
        (cluster, always): (&'static str, &'static [&'static str]),
    ) -> Self {
        let mut stream = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
        let ask = |node| DiscoveryRequest {
            type_url: TypeUrl::Endpoint.as_str().to_owned(),
            resource_names: vec![cluster.to_owned()],
            node,
            ..DiscoveryRequest::default()
        };
        stream.send(ask(Some(client)));
        let (tell, holds) = watch::channel(BTreeSet::new());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            loop {
                // Nothing for a while is no news.
                let Ok(answer) = stream.next().await else { continue };
                let response = answer.unwrap();
                let addresses: BTreeSet<String> =
                    response.resources.iter().flat_map(|any| addresses(&any.value)).collect();
                let gone = always.iter().find(|address| !addresses.contains(**address));
                assert!(gone.is_none(), "{gone:?} is alive and gone: {addresses:?}");
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
        self.wait(|holds| *holds == expected, &format!("{expected:?}")).await;
    }

    async fn until_count(&mut self, count: usize) {
        self.wait(|holds| holds.len() == count, &format!("{count} of them")).await;
    }

    async fn wait(&mut self, holds: impl FnMut(&BTreeSet<String>) -> bool, what: &str) {
        let waiting = self.holds.wait_for(holds);
        let reached =
            tokio::time::timeout(Duration::from_secs(60), waiting).await.is_ok_and(|held| held.is_ok());
        // A task that has ended has seen what must not be.
        if let Some(ended) = self.tasks.try_join_next() {
            ended.unwrap();
        }
        assert!(reached, "never held {what}, but {:?}", self.holds.borrow());
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

async fn is_well_again(server: &PilotServer) {
    until("all is well", || async { page(server, "/debug/issues").await == "[]" }).await;
}

/// Waits for as long as anything may take on a busy machine.
async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(60), waiting).await.is_ok(), "not so: {what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_there_before_its_api_server_serves_nobody_until_it_knows_everything() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut near = KubeServer::start(&scratch.path().join("near"), &[]).await.unwrap();
    let far = KubeServer::start(&scratch.path().join("far"), &[]).await.unwrap();
    world(&near, &["10.9.0.1"]).await;
    world(&far, &["10.10.0.1"]).await;
    near.apply(&secret("east", &std::fs::read_to_string(far.kubeconfig()).unwrap())).await.unwrap();
    near.kill_api().await.unwrap();
    // With certificates, whose authority is kept in the cluster too; and other clusters are not waited for.
    let secure = format!("--secureGRPCAddr={}", free_address().unwrap());
    let impatient = [("PILOT_REMOTE_CLUSTER_TIMEOUT", "1s")];
    let kubeconfig = std::fs::read_to_string(near.kubeconfig()).unwrap();
    let mut server = launch(scratch.path(), &kubeconfig, &[&secure], &impatient);
    let waits = || async { server.process.output().contains("the authority of the mesh is not known") };
    until("it waits", waits).await;
    near.start_api().await.unwrap();
    server.process.until_ok(server.http, "/ready").await.unwrap();
    server.process.terminate().await.unwrap();

    // The same without certificates: it goes on, and knows nobody.
    near.kill_api().await.unwrap();
    let mut server = launch(scratch.path(), &kubeconfig, &[], &impatient);
    let says = || async { page(&server, "/debug/issues").await.contains("does not answer") };
    until("it says what it waits for", says).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(http_call::get(server.http, "/ready").await.unwrap().0, 503);
    assert!(Stream::<StateOfTheWorld>::open(server.grpc).await.is_err(), "somebody is served");
    near.start_api().await.unwrap();
    server.process.until_ok(server.http, "/ready").await.unwrap();
    let mut proxy = Proxy::connect(&server, &["10.10.0.1"]).await;
    proxy.until(&["10.9.0.1", "10.10.0.1"]).await;
}

/// What `pilotctl` says, and whether all is well.
async fn pilotctl(words: &[&str]) -> (bool, String) {
    let mut command = tokio::process::Command::new(Tools::of_environment().own("pilotctl").unwrap());
    let output = command.args(words).output().await.unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_that_cannot_all_be_gone_stay_until_an_operator_says_that_they_are() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut kube = KubeServer::start(&scratch.path().join("kube"), &[]).await.unwrap();
    let all: Vec<String> = (1..=12).map(|i| format!("10.9.0.{i}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    world(&kube, &all).await;
    let cut = Cut::before(kube.address).await.unwrap();
    let kubeconfig = kube.kubeconfig_for(cut.address, "lab-admin-token").unwrap();
    let mut server = launch(scratch.path(), &kubeconfig, &[], &[("PILOT_WITHDRAWAL_HOLD", "1h")]);
    server.process.until_ok(server.http, "/ready").await.unwrap();
    let mut proxy = Proxy::connect(&server, &["10.9.0.1"]).await;
    proxy.until(&all).await;
    let address = format!("--address={}", server.monitoring);
    let (is_well, said) = pilotctl(&["confirm", &address]).await;
    assert!(is_well && said.contains("nothing is held back"), "{said}");

    cut.close();
    kube.apply(&slice("web-a", &["10.9.0.1"])).await.unwrap();
    kube.kill_api().await.unwrap();
    kube.start_api().await.unwrap();
    cut.open();
    let is_held = || async { page(&server, "/debug/issues").await.contains("pilotctl confirm") };
    until("it is held", is_held).await;
    let place = "cluster Kubernetes: endpointslices.discovery.k8s.io";
    let (_, said) = pilotctl(&["confirm", &address]).await;
    assert!(
        said.contains(&format!("{place}: 11 of 12 endpoints in them are gone all at once; counts in")),
        "{said}"
    );
    assert_eq!(proxy.holds.borrow().len(), 12);
    let (is_well, said) = pilotctl(&["confirm", &address, "--place=elsewhere"]).await;
    assert!(!is_well && said.contains("nothing is held back there"), "{said}");
    let (is_well, said) = pilotctl(&["confirm", &address, "--place", place]).await;
    assert!(is_well && said.contains("confirmed"), "{said}");
    proxy.until(&["10.9.0.1"]).await;
    is_well_again(&server).await;
}

/// Says what somebody may list who is no administrator.
async fn allow_bob(kube: &KubeServer, rules: &Value) {
    let (api, group) = ("rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io");
    let metadata = json!({"name": "bob"});
    let role = json!({"apiVersion": api, "kind": "ClusterRole", "metadata": metadata, "rules": rules});
    kube.apply(&role).await.unwrap();
    let binding = json!({
        "apiVersion": api, "kind": "ClusterRoleBinding", "metadata": metadata,
        "subjects": [{"kind": "User", "name": "bob", "apiGroup": group}],
        "roleRef": {"kind": "ClusterRole", "name": "bob", "apiGroup": group},
    });
    kube.apply(&binding).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_of_pods_that_nobody_may_see_are_used_as_slices_say_them() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let kube = KubeServer::start(&scratch.path().join("kube"), &[]).await.unwrap();
    world(&kube, &[]).await;
    let see = |groups: &[&str], resources: &[&str]| json!({"apiGroups": groups, "resources": resources, "verbs": ["list", "watch"]});
    let mut may = vec![
        see(&[""], &["services", "nodes", "namespaces", "configmaps", "secrets"]),
        see(&["discovery.k8s.io", "networking.k8s.io"], &["*"]),
    ];
    allow_bob(&kube, &json!(may)).await;
    let of_pods = |addresses: &[&str]| {
        let mut slice = slice("web-a", addresses);
        for (i, endpoint) in slice["endpoints"].as_array_mut().unwrap().iter_mut().enumerate() {
            endpoint["targetRef"] = json!({"kind": "Pod", "name": format!("web-{i}"), "namespace": "shop"});
        }
        slice
    };
    kube.apply(&of_pods(&["10.9.0.1", "10.9.0.2"])).await.unwrap();
    let server = serve(scratch.path(), &kube.kubeconfig_for(kube.address, "bob-token").unwrap()).await;
    let mut proxy = Proxy::connect(&server, &[]).await;
    proxy.until(&["10.9.0.1", "10.9.0.2"]).await;
    assert!(page(&server, "/debug/issues").await.contains("grant get, list and watch on pods"));
    kube.apply(&of_pods(&["10.9.0.1", "10.9.0.3"])).await.unwrap();
    proxy.until(&["10.9.0.1", "10.9.0.3"]).await;

    // Once it is seen that there are no such pods, nothing is said of them.
    may.push(see(&[""], &["pods"]));
    allow_bob(&kube, &json!(may)).await;
    proxy.until(&[]).await;
}
