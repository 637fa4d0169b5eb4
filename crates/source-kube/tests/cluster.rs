//! Clusters as sources, on a real API server: the contract, and what only clusters can do.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::time::Duration;

use pilot_base::Name;
use pilot_config::ReadOptions;
use pilot_model::{Kind, Object};
use pilot_source::contract::{Follower, Mirror, Rig, check};
use pilot_source::{Batch, Event, Source};
use pilot_source_kube::{ClusterOptions, KubeSource, MeshPlace, Pace, RemoteClusters, RemoteOptions, Role};
use pilot_testkit::cut::Cut;
use pilot_testkit::kube::{KubeServer, client_of};
use pilot_testkit::tools::Tools;
use serde_json::{Value, json};

fn skipped() -> bool {
    let why = Tools::of_environment().why_skip_kube();
    if let Some(why) = &why {
        eprintln!("skipped: {why}");
    }
    why.is_some()
}

fn home(rules: Option<&str>, mesh: Option<MeshPlace>) -> ClusterOptions {
    let role = Role::Home { rules: rules.map(Name::new), mesh };
    ClusterOptions { read: ReadOptions::default(), role, only_namespace: None }
}

fn service(namespace: &str, name: &str, port: u32) -> Value {
    let spec = json!({"ports": [{"name": "http", "port": port}]});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

fn rule(name: &str, host: &str, labels: &Value) -> Value {
    let metadata = json!({"name": name, "namespace": "shop", "labels": labels});
    let spec = json!({"hosts": [host], "http": [{"route": [{"destination": {"host": host}}]}]});
    json!({"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": metadata, "spec": spec})
}

/// Names and ports of services in a namespace.
fn services(mirror: &Mirror, namespace: &str) -> Vec<(String, u16)> {
    let all = mirror.objects().filter_map(|object| match object {
        Object::Service(id, service) if id.namespace == namespace => {
            Some((format!("{}{}", id.cluster, id.name), service.ports[0].number))
        }
        _ => None,
    });
    all.collect()
}

fn rules(mirror: &Mirror) -> Vec<String> {
    let all = mirror.objects().filter_map(|object| match object {
        Object::VirtualService(config) => Some(config.id.name.to_string()),
        _ => None,
    });
    all.collect()
}

fn issues(mirror: &Mirror) -> String {
    mirror.issues.values().flatten().map(|issue| format!("{issue}\n")).collect()
}

struct Cluster {
    server: KubeServer,
}

impl Rig for Cluster {
    fn source(&self) -> Box<dyn Source> {
        Box::new(KubeSource::new(self.server.client.clone(), home(None, None)))
    }

    async fn put(&mut self, thing: &str, value: u32) {
        self.server.apply(&service("shop", thing, 1000 + value)).await.unwrap();
    }

    async fn remove(&mut self, thing: &str) {
        self.server.delete(&service("shop", thing, 1)).await.unwrap();
    }

    async fn lose(&mut self) -> bool {
        self.server.kill_api().await.unwrap();
        true
    }

    async fn find(&mut self) {
        self.server.start_api().await.unwrap();
    }

    fn read(&self, object: &Object) -> Option<(String, u32)> {
        match object {
            Object::Service(id, service) if id.namespace == "shop" => {
                Some((id.name.to_string(), u32::from(service.ports[0].number) - 1000))
            }
            _ => None,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_keeps_the_contract() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let server = KubeServer::start(scratch.path(), &[]).await.unwrap();
    server.namespace("shop", &json!({})).await.unwrap();
    check(&mut Cluster { server }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_are_followed_as_far_as_they_are_defined_and_for_us() {
    if skipped() {
        return;
    }
    let istio = Tools::of_environment().istio_module().unwrap().to_owned();
    let scratch = tempfile::tempdir().unwrap();
    let server = KubeServer::start(scratch.path(), &[]).await.unwrap();
    for namespace in ["shop", "istio-system"] {
        server.namespace(namespace, &json!({})).await.unwrap();
    }
    let source = KubeSource::new(server.client.clone(), home(Some("canary"), None));
    let mut follower = Follower::start(Box::new(source));
    follower
        .until("that CRDs are missing", |mirror| {
            let said = issues(mirror);
            mirror.ready && said.contains("virtualservices.networking.istio.io") && said.lines().count() == 1
        })
        .await;

    // They come later, and so do rules.
    server.install_crds(&istio).await.unwrap();
    server.apply(&rule("all", "a", &json!({}))).await.unwrap();
    server.apply(&rule("ours", "a", &json!({"istio.io/rev": "canary"}))).await.unwrap();
    server.apply(&rule("theirs", "a", &json!({"istio.io/rev": "stable"}))).await.unwrap();
    follower
        .until("rules of ours", |mirror| rules(mirror) == ["all", "ours"] && mirror.issues.is_empty())
        .await;

    // One that changes hands.
    server.apply(&rule("theirs", "b", &json!({"istio.io/rev": "canary"}))).await.unwrap();
    server.apply(&rule("ours", "b", &json!({"istio.io/rev": "stable"}))).await.unwrap();
    follower.until("a rule that changed hands", |mirror| rules(mirror) == ["all", "theirs"]).await;

    // An API server checks less than we do; what is wrong names object and field, and the last good one stays.
    let mut wrong = rule("all", "a", &json!({}));
    wrong["spec"]["http"][0]["route"] = json!([
        {"destination": {"host": "a"}, "weight": 50}, {"destination": {"host": "not a host"}, "weight": 50}
    ]);
    server.apply(&wrong).await.unwrap();
    follower
        .until("an issue", |mirror| issues(mirror).contains("VirtualService shop/all: spec.http[0].route"))
        .await;
    assert_eq!(rules(&follower.mirror), ["all", "theirs"]);
    server.apply(&rule("all", "c", &json!({}))).await.unwrap();
    follower.until("that all is well", |mirror| mirror.issues.is_empty()).await;
    server.delete(&rule("all", "c", &json!({}))).await.unwrap();
    follower.until("a rule that is gone", |mirror| rules(mirror) == ["theirs"]).await;
    follower.stop().await;
    forbidden(&server).await;
    mesh_settings(&server).await;
}

/// Says what somebody may do who is no administrator.
async fn allow_bob(server: &KubeServer, rules: &Value) {
    let (api, group) = ("rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io");
    let metadata = json!({"name": "pilot"});
    let role = json!({"apiVersion": api, "kind": "ClusterRole", "metadata": metadata, "rules": rules});
    server.apply(&role).await.unwrap();
    let subjects = json!([{"kind": "User", "name": "bob", "apiGroup": group}]);
    let role = json!({"kind": "ClusterRole", "name": "pilot", "apiGroup": group});
    let binding = json!({"apiVersion": api, "kind": "ClusterRoleBinding", "metadata": metadata, "subjects": subjects, "roleRef": role});
    server.apply(&binding).await.unwrap();
}

/// Somebody who may see everything but nodes and gateways.
async fn forbidden(server: &KubeServer) {
    let rules = json!([
        {"apiGroups": ["", "discovery.k8s.io"], "resources": ["services", "pods", "namespaces", "endpointslices"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["networking.istio.io"], "resources": ["virtualservices"], "verbs": ["get", "list", "watch"]},
    ]);
    allow_bob(server, &rules).await;
    server.apply(&service("shop", "seen", 80)).await.unwrap();
    let client = client_of(&server.kubeconfig_for(server.address, "bob-token").unwrap()).unwrap();
    let mut follower = Follower::start(Box::new(KubeSource::new(client, home(Some("canary"), None))));
    follower
        .until("what it may see, and what it may not", |mirror| {
            let said = issues(mirror);
            mirror.ready
                && services(mirror, "shop") == [("seen".to_owned(), 80)]
                && rules_seen(mirror)
                && said.contains("grant get, list and watch on nodes")
                && said.contains("grant get, list and watch on gateways.networking.istio.io")
        })
        .await;
    assert!(!issues(&follower.mirror).contains("on virtualservices"), "{}", issues(&follower.mirror));
    follower.stop().await;
}

fn rules_seen(mirror: &Mirror) -> bool {
    mirror.objects().any(|object| object.key().0 == Kind::VirtualService)
}

async fn mesh_settings(server: &KubeServer) {
    let map = |name: &str, mesh: &str| {
        let data =
            json!({"mesh": mesh, "meshNetworks": "networks: {n: {endpoints: [{fromRegistry: east}]}}"});
        let metadata = json!({"name": name, "namespace": "istio-system"});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    };
    server.apply(&map("shared", "trustDomain: shared.com\nrootNamespace: low")).await.unwrap();
    let place = MeshPlace::of_revision(Name::new("istio-system"), "canary", Some("shared"));
    let source = KubeSource::new(server.client.clone(), home(None, Some(place)));
    let (sink, mut batches) = tokio::sync::mpsc::channel(64);
    let mut running = tokio::task::JoinSet::new();
    running.spawn(Box::new(source).run(sink));
    let said = |batch: &Batch| {
        batch.events.iter().find_map(|event| match event {
            Event::Mesh(mesh) => Some(format!("{} {}", mesh.trust_domain, mesh.root_namespace)),
            _ => None,
        })
    };
    let mut next = async || {
        loop {
            let batch = batches.recv().await.unwrap();
            let networks = batch.events.iter().any(|event| matches!(event, Event::Networks(_)));
            if let Some(said) = said(&batch) {
                return (said, networks);
            }
        }
    };
    assert_eq!(next().await, ("shared.com low".to_owned(), true));
    server.apply(&map("istio-canary", "rootNamespace: high")).await.unwrap();
    assert_eq!(next().await, ("shared.com high".to_owned(), false), "networks are the same");
    server.apply(&map("istio-canary", "rootNamespace: [")).await.unwrap();
    server.apply(&map("istio-canary", "rootNamespace: next")).await.unwrap();
    assert_eq!(next().await.0, "shared.com next", "a mistake changes nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_by_faults() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut server = KubeServer::start(scratch.path(), &[]).await.unwrap();
    server.namespace("shop", &json!({})).await.unwrap();
    for i in 0..20 {
        server.apply(&service("shop", &format!("s{i:02}"), 80)).await.unwrap();
    }
    let cut = Cut::before(server.address).await.unwrap();
    let client = client_of(&server.kubeconfig_for(cut.address, "lab-admin-token").unwrap()).unwrap();
    let mut follower = Follower::start(Box::new(KubeSource::new(client, home(None, None))));
    follower.until("everything", |mirror| mirror.ready && services(mirror, "shop").len() == 20).await;

    // Cut again and again, while things change.
    for i in 0..10 {
        cut.snap();
        server.apply(&service("shop", "s00", 1000 + i)).await.unwrap();
    }
    follower.until("the last change", |mirror| whole(mirror, 20, 1009)).await;

    // A watch that would have to begin before what a new API server remembers.
    cut.close();
    follower.until("an issue", |mirror| issues(mirror).contains("does not answer")).await;
    for i in 20..40 {
        server.apply(&service("shop", &format!("s{i:02}"), 80)).await.unwrap();
    }
    server.delete(&service("shop", "s01", 80)).await.unwrap();
    server.apply(&service("shop", "s00", 2000)).await.unwrap();
    server.kill_api().await.unwrap();
    server.start_api().await.unwrap();
    cut.open();
    follower
        .until("what happened meanwhile", |mirror| whole(mirror, 39, 2000) && mirror.issues.is_empty())
        .await;

    // Without etcd nothing can be listed; what is known stays.
    server.kill_etcd().await.unwrap();
    cut.snap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    server.start_etcd().await.unwrap();
    let changed = async {
        // An API server takes a while until it has found etcd again.
        while server.apply(&service("shop", "s00", 3000)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), changed).await.unwrap();
    follower
        .until("a change after all of it", |mirror| whole(mirror, 39, 3000) && mirror.issues.is_empty())
        .await;
    follower.stop().await;
}

/// Is everything there, and what stands in the first one? What is missing is missed at once.
fn whole(mirror: &Mirror, count: usize, port: u16) -> bool {
    let all = services(mirror, "shop");
    assert!(all.len() >= 20, "{} are left", all.len());
    all.len() == count && all[0] == ("s00".to_owned(), port)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_server_is_asked_again_later() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let flags = ["--enable-priority-and-fairness=false", "--max-requests-inflight=1"];
    let server = KubeServer::start(scratch.path(), &flags).await.unwrap();
    server.namespace("shop", &json!({})).await.unwrap();
    // An administrator is never refused.
    allow_bob(&server, &json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]))
        .await;
    let bob = || client_of(&server.kubeconfig_for(server.address, "bob-token").unwrap()).unwrap();
    for i in 0..50 {
        server.apply(&service("shop", &format!("s{i}"), 80)).await.unwrap();
    }
    let mut busy = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let client = bob();
        busy.spawn(async move {
            let mut refused = 0_u32;
            for _ in 0..100 {
                let answer = client.call(pilot_source_kube::Call::get("/api/v1/services?limit=500")).await;
                refused += u32::from(answer.is_err_and(|error| error.status() == Some(429)));
            }
            refused
        });
    }
    let mut follower = Follower::start(Box::new(KubeSource::new(bob(), home(None, None))));
    follower.until("everything", |mirror| mirror.ready).await;
    let refused: u32 = busy.join_all().await.into_iter().sum();
    println!("{refused} requests were refused");
    assert!(refused > 0, "the server was never busy");
    server.apply(&service("shop", "late", 80)).await.unwrap();
    follower
        .until("a change", |mirror| services(mirror, "shop").len() == 51 && mirror.issues.is_empty())
        .await;
    follower.stop().await;
}

fn secret(clusters: &[(&str, String)]) -> Value {
    let data: serde_json::Map<String, Value> =
        clusters.iter().map(|(id, config)| ((*id).to_owned(), json!(config))).collect();
    let labels = json!({"istio/multiCluster": "true"});
    let metadata = json!({"name": "remotes", "namespace": "istio-system", "labels": labels});
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_clusters_are_followed_as_secrets_say() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let (near, far) = (scratch.path().join("near"), scratch.path().join("far"));
    let mut servers = Vec::new();
    for folder in [&near, &far] {
        let server = KubeServer::start(Path::new(folder), &[]).await.unwrap();
        for namespace in ["shop", "istio-system"] {
            server.namespace(namespace, &json!({})).await.unwrap();
        }
        servers.push(server);
    }
    let [near, far] = &servers[..] else { unreachable!() };
    far.apply(&service("shop", "a", 80)).await.unwrap();
    let cut = Cut::before(far.address).await.unwrap();
    let through = |token: &str| far.kubeconfig_for(cut.address, token).unwrap();
    near.apply(&secret(&[("east", through("lab-admin-token"))])).await.unwrap();

    let options = RemoteOptions {
        namespace: Name::new("istio-system"),
        domain: Name::new("cluster.local"),
        home: Name::new("Kubernetes"),
        pace: Pace::default(),
        patience: Duration::from_secs(20),
        only_namespace: None,
    };
    let source = RemoteClusters::new(near.client.clone(), options.clone());
    let states = source.states();
    let mut follower = Follower::start(Box::new(source));
    let is = |mirror: &Mirror, expected: &[(&str, u16)]| {
        let expected: Vec<_> = expected.iter().map(|(name, port)| ((*name).to_owned(), *port)).collect();
        mirror.ready && services(mirror, "shop") == expected
    };
    follower.until("the other cluster", |mirror| is(mirror, &[("easta", 80)])).await;
    let seen: Vec<String> =
        states.borrow().iter().map(|c| format!("{} {} {}", c.id, c.secret, c.sync.as_str())).collect();
    assert_eq!(seen, ["Kubernetes  synced", "east istio-system/remotes synced"]);
    far.apply(&service("shop", "b", 80)).await.unwrap();
    follower.until("a change there", |mirror| is(mirror, &[("easta", 80), ("eastb", 80)])).await;

    // It is gone for a while.
    cut.close();
    follower.until("an issue", |mirror| issues(mirror).contains("does not answer")).await;
    assert!(is(&follower.mirror, &[("easta", 80), ("eastb", 80)]), "a loss empties nothing");
    cut.open();
    // Its secret is changed, to one that is not good, and back.
    near.apply(&secret(&[("east", through("nobody"))])).await.unwrap();
    follower.until("an issue", |mirror| issues(mirror).contains("does not accept the credential")).await;
    assert!(is(&follower.mirror, &[("easta", 80), ("eastb", 80)]), "nor does a bad secret");
    far.apply(&service("shop", "c", 80)).await.unwrap();
    far.delete(&service("shop", "a", 80)).await.unwrap();
    let good = far.kubeconfig_for(far.address, "lab-admin-token").unwrap();
    near.apply(&secret(&[("east", good.clone()), ("west", "nonsense".to_owned())])).await.unwrap();
    follower
        .until("what the new secret leads to", |mirror| {
            is(mirror, &[("eastb", 80), ("eastc", 80)]) && issues(mirror).contains("data.west")
        })
        .await;

    // Without a secret there is no cluster.
    near.delete(&secret(&[])).await.unwrap();
    follower.until("that it is gone", |mirror| is(mirror, &[])).await;

    // One that never answers is not waited for.
    let nowhere = good.replace(&far.address.to_string(), "127.0.0.1:1");
    near.apply(&secret(&[("east", good), ("dead", nowhere)])).await.unwrap();
    let patient = RemoteOptions { patience: Duration::from_secs(3), ..options };
    let source = RemoteClusters::new(near.client.clone(), patient);
    let states = source.states();
    let mut second = Follower::start(Box::new(source));
    second.until("the one that answers", |mirror| is(mirror, &[("eastb", 80), ("eastc", 80)])).await;
    let dead =
        states.borrow().iter().find(|cluster| cluster.id == "dead").map(|cluster| cluster.sync.as_str());
    assert_eq!(dead, Some("timeout"));
    second.stop().await;
    follower.stop().await;
}
