//! Clusters as sources, on a real API server: the contract, and what only clusters can do.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::time::Duration;

use pilot_base::Name;
use pilot_config::ReadOptions;
use pilot_model::{Kind, Object};
use pilot_source::contract::{Follower, Mirror, Rig, check};
use pilot_source::{Batch, ClusterStates, Doubts, Event, Source};
use pilot_source_kube::{ClusterOptions, KubeSource, MeshPlace, Pace, RemoteClusters, RemoteOptions, Role};
use pilot_testkit::cut::Cut;
use pilot_testkit::gatekeeper::{Fate, Gatekeeper};
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
    ClusterOptions { read: ReadOptions::default(), role, only_namespace: None, settings: None }
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

    let rotated = rotated(near, far, (&mut follower, &states), through("lab-admin-token")).await;

    // Without a secret there is no cluster.
    near.delete(&rotated).await.unwrap();
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

/// Names and ports of services in another cluster.
fn is(mirror: &Mirror, expected: &[(&str, u16)]) -> bool {
    let expected: Vec<_> = expected.iter().map(|(name, port)| ((*name).to_owned(), *port)).collect();
    mirror.ready && services(mirror, "shop") == expected
}

/// A credential that is rotated under another name: it counts as soon as the old one is gone, and nothing is lost.
async fn rotated(
    near: &KubeServer,
    far: &KubeServer,
    (follower, states): (&mut Follower, &ClusterStates),
    config: String,
) -> Value {
    let mut rotated = secret(&[("east", config)]);
    rotated["metadata"]["name"] = json!("rotated");
    near.apply(&rotated).await.unwrap();
    follower
        .until("that it must wait", |mirror| {
            issues(mirror).contains("is said by the secret istio-system/remotes already")
        })
        .await;
    near.delete(&secret(&[])).await.unwrap();
    follower
        .until("that it is taken", |mirror| {
            assert!(is(mirror, &[("eastb", 80), ("eastc", 80)]), "something is lost");
            issues(mirror).is_empty()
        })
        .await;
    far.apply(&service("shop", "d", 80)).await.unwrap();
    let all = [("eastb", 80), ("eastc", 80), ("eastd", 80)];
    follower.until("a change over the new one", |mirror| is(mirror, &all)).await;
    assert_eq!(states.borrow()[1].secret, "istio-system/rotated");
    far.delete(&service("shop", "d", 80)).await.unwrap();
    follower.until("another", |mirror| is(mirror, &all[..2])).await;
    rotated
}

/// A definition that lets everything in, as one of an older Istio does.
fn lenient_definition() -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version =
        json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    let names = json!({"kind": "VirtualService", "plural": "virtualservices", "singular": "virtualservice"});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "virtualservices.networking.istio.io"},
        "spec": {"group": "networking.istio.io", "names": names, "scope": "Namespaced", "versions": [version]},
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_objects_are_told_and_cost_the_others_nothing() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let server = KubeServer::start(scratch.path(), &[]).await.unwrap();
    let longest = "n".repeat(63);
    for namespace in ["shop", &longest] {
        server.namespace(namespace, &json!({})).await.unwrap();
    }
    server.apply(&lenient_definition()).await.unwrap();
    let source = KubeSource::new(server.client.clone(), home(Some(""), None));
    let mut follower = Follower::start(Box::new(source));
    follower.until("that it is ready", |mirror| mirror.ready).await;
    let spec = |name: &str, spec: Value| {
        let mut rule = rule(name, "a", &json!({}));
        rule["spec"] = spec;
        rule
    };
    // The API server takes a moment until it serves what is defined.
    while server.apply(&rule("good", "a", &json!({}))).await.is_err() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let wrong = [
        ("text", json!("nothing but text")),
        ("list", json!({"hosts": ["a"], "http": "all of it"})),
        (
            "number",
            json!({"hosts": ["a"], "http": [{"timeout": 7, "route": [{"destination": {"host": "a"}}]}]}),
        ),
        (
            "port",
            json!({"hosts": ["a"], "http": [{"route": [{"destination": {"host": "a", "port": {"number": -1}}}]}]}),
        ),
        ("deep", json!({"hosts": ["a"], "http": [{"match": [{"uri": {"exact": {"exact": "x"}}}]}]})),
        ("nothing", json!(null)),
    ];
    for (name, said) in &wrong {
        server.apply(&spec(name, said.clone())).await.unwrap();
    }
    follower
        .until("an issue for each", |mirror| {
            let said = issues(mirror);
            wrong.iter().all(|(name, _)| said.contains(&format!("VirtualService shop/{name}: spec")))
        })
        .await;
    assert_eq!(rules(&follower.mirror), ["good"]);

    // Names as long as they may be.
    let name = "r".repeat(253);
    let mut long = rule(&name, "a", &json!({"l".repeat(63): "v".repeat(63)}));
    long["metadata"]["namespace"] = json!(longest);
    server.apply(&long).await.unwrap();
    server.apply(&service(&longest, &"s".repeat(63), 80)).await.unwrap();
    follower
        .until("the longest names", |mirror| {
            rules(mirror).contains(&name) && services(mirror, &longest).len() == 1
        })
        .await;
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_endpoints_of_one_service_are_followed() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let server = KubeServer::start(scratch.path(), &[]).await.unwrap();
    server.namespace("shop", &json!({})).await.unwrap();
    let slice = |number: u32, first: u32| {
        let ready = json!({"ready": true});
        let endpoints: Vec<Value> = (first..100)
            .map(|i| json!({"addresses": [format!("10.9.{number}.{i}")], "conditions": ready}))
            .collect();
        let labels = json!({"kubernetes.io/service-name": "web"});
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": format!("web-{number}"), "namespace": "shop", "labels": labels},
            "endpoints": endpoints, "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        })
    };
    for number in 0..100 {
        server.apply(&slice(number, 0)).await.unwrap();
    }
    let mut follower = Follower::start(Box::new(KubeSource::new(server.client.clone(), home(None, None))));
    follower.until("all of them", |mirror| mirror.ready && endpoints(mirror) == 10_000).await;
    server.apply(&slice(7, 1)).await.unwrap();
    follower.until("that one is gone", |mirror| endpoints(mirror) == 9_999).await;
    assert!(follower.mirror.issues.is_empty());
    follower.stop().await;
}

fn filter(name: &str, depth: usize) -> Value {
    let value = (0..depth).fold(json!("deep"), |below, _| json!({ "a": below }));
    let patch = json!({"operation": "MERGE", "value": value});
    let spec = json!({"configPatches": [{"applyTo": "CLUSTER", "match": {"cluster": {}}, "patch": patch}]});
    let metadata = json!({"name": name, "namespace": "shop"});
    json!({"apiVersion": "networking.istio.io/v1alpha3", "kind": "EnvoyFilter", "metadata": metadata, "spec": spec})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_is_too_deep_takes_no_other_along() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let server = KubeServer::start(scratch.path(), &[]).await.unwrap();
    server.namespace("shop", &json!({})).await.unwrap();
    server.define_rules().await.unwrap();
    server.apply(&filter("before", 2)).await.unwrap();
    let start = || {
        let source = KubeSource::new(server.client.clone(), home(Some(""), None));
        Follower::start(Box::new(source))
    };
    let filters = |mirror: &Mirror| -> Vec<String> {
        let all = mirror.objects().filter(|object| object.key().0 == Kind::EnvoyFilter);
        all.map(|object| object.key().1.name.to_string()).collect()
    };
    let is_told = |mirror: &Mirror| issues(mirror).contains("levels deep");
    let mut watching = start();
    watching.until("what there is", |mirror| mirror.ready && filters(mirror) == ["before"]).await;
    server.apply(&filter("deep", 300)).await.unwrap();
    server.apply(&filter("later", 2)).await.unwrap();
    watching.until("what comes", |mirror| is_told(mirror) && filters(mirror) == ["before", "later"]).await;
    let said = issues(&watching.mirror);
    assert!(said.contains("EnvoyFilter shop/deep: spec.configPatches[0].patch.value.a"), "{said}");

    // The same where it is listed.
    let mut listing = start();
    listing
        .until("the others", |mirror| {
            mirror.ready && is_told(mirror) && filters(mirror) == ["before", "later"]
        })
        .await;
    server.apply(&filter("deep", 3)).await.unwrap();
    for follower in [&mut watching, &mut listing] {
        follower.until("that it is well", |mirror| !is_told(mirror) && filters(mirror).len() == 3).await;
    }
    watching.stop().await;
    listing.stop().await;
}

fn slice(name: &str, endpoints: u32) -> Value {
    let endpoints: Vec<Value> = (0..endpoints)
        .map(|i| json!({"addresses": [format!("10.9.0.{}", i + 1)], "conditions": {"ready": true}}))
        .collect();
    let labels = json!({"kubernetes.io/service-name": "web"});
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "namespace": "shop", "labels": labels},
        "endpoints": endpoints, "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

fn endpoints(mirror: &Mirror) -> usize {
    let slices = mirror.objects().filter_map(|object| match object {
        Object::EndpointSlice(_, slice) => Some(slice.endpoints.len()),
        _ => None,
    });
    slices.sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_true_is_held_until_somebody_confirms_it() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut server = KubeServer::start(scratch.path(), &[]).await.unwrap();
    server.namespace("shop", &json!({})).await.unwrap();
    for i in 0..20 {
        server.apply(&service("shop", &format!("s{i:02}"), 80)).await.unwrap();
    }
    for name in ["a", "b"] {
        server.apply(&slice(name, 10)).await.unwrap();
    }
    let cut = Cut::before(server.address).await.unwrap();
    let client = client_of(&server.kubeconfig_for(cut.address, "lab-admin-token").unwrap()).unwrap();
    // Nobody waits for that.
    let doubts = Doubts::new(Duration::from_secs(3600));
    let client = client.of_cluster(&Name::new("east"), doubts.clone());
    let mut follower = Follower::start(Box::new(KubeSource::new(client, home(None, None))));
    let count = |mirror: &Mirror| (services(mirror, "shop").len(), endpoints(mirror));
    follower.until("everything", |mirror| mirror.ready && count(mirror) == (20, 20)).await;

    // What happens while nobody can watch is seen as a list that lacks most of what there was.
    cut.close();
    for i in 0..15 {
        server.delete(&service("shop", &format!("s{i:02}"), 80)).await.unwrap();
    }
    for name in ["a", "b"] {
        server.apply(&slice(name, 1)).await.unwrap();
    }
    server.kill_api().await.unwrap();
    server.start_api().await.unwrap();
    cut.open();
    follower
        .until("what is held", |mirror| {
            let said = issues(mirror);
            // The service of the API server itself is there or not yet.
            (said.contains("15 of 20 are gone all at once") || said.contains("15 of 21 are gone all at once"))
                && said.contains("18 of 20 endpoints in them are gone all at once")
                && said.contains("pilotctl confirm")
        })
        .await;
    assert_eq!(count(&follower.mirror), (20, 20), "nothing is lost");

    // It is watched all the same: what comes and what is deleted counts at once.
    server.apply(&service("shop", "late", 80)).await.unwrap();
    server.delete(&service("shop", "s19", 80)).await.unwrap();
    server.delete(&slice("b", 0)).await.unwrap();
    let has = |mirror: &Mirror, name: &str| services(mirror, "shop").iter().any(|(known, _)| known == name);
    follower
        .until("what is watched", |mirror| {
            has(mirror, "late") && !has(mirror, "s19") && has(mirror, "s00") && endpoints(mirror) == 10
        })
        .await;
    let places: Vec<Name> = doubts.held().into_iter().map(|held| held.place).collect();
    assert_eq!(places, ["cluster east: endpointslices.discovery.k8s.io", "cluster east: services"]);
    doubts.confirm(Some("cluster east: services"));
    follower.until("what is confirmed", |mirror| count(mirror) == (5, 10)).await;
    doubts.confirm(None);
    follower.until("all of it", |mirror| count(mirror) == (5, 1) && mirror.issues.is_empty()).await;
    assert!(doubts.held().is_empty());
    follower.stop().await;
}

fn selecting(namespace: &str) -> (MeshPlace, Value) {
    let mesh = json!({"mesh": "discoverySelectors:\n- matchLabels: {mesh: \"on\"}\n"});
    let metadata = json!({"name": "istio", "namespace": namespace});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": mesh});
    (MeshPlace::of_revision(Name::new(namespace), "default", None), map)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_are_whole_only_once_it_is_known_whose_count_and_a_new_namespace_is_listed_alone() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let server = KubeServer::start(scratch.path(), &[]).await.unwrap();
    server.define_rules().await.unwrap();
    for (namespace, mesh) in [("shop", "on"), ("other", "off"), ("istio-system", "off")] {
        server.namespace(namespace, &json!({"mesh": mesh})).await.unwrap();
    }
    server.apply(&rule("ours", "a", &json!({}))).await.unwrap();
    let mut theirs = rule("theirs", "a", &json!({}));
    theirs["metadata"]["namespace"] = json!("other");
    server.apply(&theirs).await.unwrap();
    let (place, map) = selecting("istio-system");
    server.apply(&map).await.unwrap();

    // Namespaces come last; nothing of theirs counts until then, and that does not make it everything.
    let gate = Gatekeeper::before(&server).await.unwrap();
    gate.rule(|asked| if asked.path.starts_with("/api/v1/namespaces?") { Fate::Wait } else { Fate::Pass });
    let client = client_of(&gate.kubeconfig("lab-admin-token")).unwrap();
    let source = KubeSource::new(client, home(Some(""), Some(place)));
    let mut follower = Follower::start(Box::new(source));
    let mut seen = Vec::new();
    let watched = |seen: &[pilot_testkit::gatekeeper::Asked]| {
        seen.iter().filter(|asked| asked.path.contains(".istio.io/") && asked.path.contains("watch=")).count()
    };
    let all_watched = async {
        while watched(&seen) < 15 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            seen.extend(gate.asked());
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all_watched).await.unwrap();
    gate.rule(|_| Fate::Pass);
    follower.until("everything", |mirror| mirror.ready).await;
    assert_eq!(rules(&follower.mirror), ["ours"], "it was told with everything else");

    // One more namespace: each kind is asked for once, and only what is in it.
    follower.rest(Duration::from_secs(1)).await;
    gate.asked();
    server.namespace("other", &json!({"mesh": "on"})).await.unwrap();
    follower.until("the other's rule", |mirror| rules(mirror) == ["theirs", "ours"]).await;
    server.apply(&rule("last", "a", &json!({}))).await.unwrap();
    follower.until("a change after that", |mirror| rules(mirror).len() == 3).await;
    follower.rest(Duration::from_secs(1)).await;
    let asked = gate.asked();
    let within = asked.iter().filter(|asked| asked.path.contains("/namespaces/other/")).count();
    assert_eq!((within, asked.len()), (15, 15), "{asked:#?}");
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_of_a_server_that_has_just_been_started_is_not_believed() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let server = KubeServer::start(scratch.path(), &[]).await.unwrap();
    server.namespace("shop", &json!({})).await.unwrap();
    server.apply(&service("shop", "a", 80)).await.unwrap();
    let gate = Gatekeeper::before(&server).await.unwrap();
    let times = std::sync::atomic::AtomicU32::new(0);
    gate.rule(move |asked| {
        let is_one = asked.path.starts_with("/api/v1/services?");
        // An API server knows roles a moment after it answers.
        let early = is_one && times.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 3;
        if early { Fate::Refuse(403) } else { Fate::Pass }
    });
    let client = client_of(&gate.kubeconfig("lab-admin-token")).unwrap();
    let mut follower = Follower::start(Box::new(KubeSource::new(client, home(None, None))));
    follower.until("that it is ready", |mirror| mirror.ready).await;
    assert_eq!(services(&follower.mirror, "shop").len(), 1, "it was told without services");
    follower.until("that all is well", |mirror| mirror.issues.is_empty()).await;
    follower.stop().await;
}
