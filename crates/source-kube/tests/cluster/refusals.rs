//! API servers that are too busy, and what we may not see.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pilot_base::Name;
use pilot_model::{Kind, Object, PodSight};
use pilot_source::contract::{Follower, Mirror};
use pilot_source::{Batch, Event, Source as _};
use pilot_source_kube::{KubeSource, MeshPlace};
use pilot_testkit::gatekeeper::{Fate, Gatekeeper};
use pilot_testkit::kube::{KubeServer, client_of};
use serde_json::{Value, json};

use super::{home, issues, rule, rules, service, services, skipped};

/// Says what somebody may do who is no administrator.
pub(super) async fn allow_bob(server: &KubeServer, rules: &Value) {
    let (api, group) = ("rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io");
    let metadata = json!({"name": "pilot"});
    let role = json!({"apiVersion": api, "kind": "ClusterRole", "metadata": metadata, "rules": rules});
    server.apply(&role).await.unwrap();
    let subjects = json!([{"kind": "User", "name": "bob", "apiGroup": group}]);
    let role = json!({"kind": "ClusterRole", "name": "pilot", "apiGroup": group});
    let binding = json!({"apiVersion": api, "kind": "ClusterRoleBinding", "metadata": metadata, "subjects": subjects, "roleRef": role});
    server.apply(&binding).await.unwrap();
}

pub(super) fn see(groups: &[&str], resources: &[&str]) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": ["get", "list", "watch"]})
}

fn bob(server: &KubeServer, rules: Option<&str>, mesh: Option<MeshPlace>) -> KubeSource {
    let client = client_of(&server.kubeconfig_for(server.address, "bob-token").unwrap()).unwrap();
    KubeSource::new(client, home(rules, mesh))
}

/// Somebody who may see everything but nodes, pods and gateways.
pub(super) async fn forbidden(server: &KubeServer) {
    let mut may = vec![
        see(&["", "discovery.k8s.io"], &["services", "namespaces", "endpointslices"]),
        see(&["apiextensions.k8s.io"], &["customresourcedefinitions"]),
        see(&["networking.istio.io"], &["virtualservices"]),
        see(&["security.istio.io"], &["*"]),
    ];
    allow_bob(server, &json!(may)).await;
    server.apply(&service("shop", "seen", 80)).await.unwrap();
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"containers": [{"name": "web", "image": "web"}]},
    });
    server.apply(&pod).await.unwrap();
    server.apply(&slice_of_pod("web")).await.unwrap();
    let mut follower = Follower::start(Box::new(bob(server, Some("canary"), None)));
    follower
        .until("what it may see, and what it may not", |mirror| {
            let said = issues(mirror);
            mirror.ready
                && services(mirror, "shop") == [("seen".to_owned(), 80)]
                && rules_seen(mirror)
                && said.contains("grant get, list and watch on nodes; all else goes on without it")
                && said.contains("grant get, list and watch on pods; all else")
                && said.contains("grant get, list and watch on gateways.networking.istio.io; all else")
        })
        .await;
    assert!(!issues(&follower.mirror).contains("on virtualservices"), "{}", issues(&follower.mirror));
    assert_eq!(sights(&follower.mirror), [PodSight::Lost], "its endpoints are used as they stand");

    // Somebody grants it.
    may.push(see(&[""], &["pods"]));
    allow_bob(server, &json!(may)).await;
    let has_pod = |mirror: &Mirror| mirror.objects().any(|object| object.key().0 == Kind::Pod);
    follower.until("pods", |mirror| has_pod(mirror) && sights(mirror) == [PodSight::Clear]).await;
    follower.stop().await;
    server.delete(&slice_of_pod("web")).await.unwrap();
    pod["spec"] = json!(null);
    server.delete(&pod).await.unwrap();
}

fn slice_of_pod(name: &str) -> Value {
    let target = json!({"kind": "Pod", "name": name, "namespace": "shop"});
    let endpoint = json!({"addresses": ["10.9.0.1"], "conditions": {"ready": true}, "targetRef": target});
    let labels = json!({"kubernetes.io/service-name": "seen"});
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "namespace": "shop", "labels": labels},
        "endpoints": [endpoint], "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

fn sights(mirror: &Mirror) -> Vec<PodSight> {
    let slices = mirror.objects().filter_map(|object| match object {
        Object::EndpointSlice(_, slice) => Some(slice.pods),
        _ => None,
    });
    slices.collect()
}

fn rules_seen(mirror: &Mirror) -> bool {
    mirror.objects().any(|object| object.key().0 == Kind::VirtualService)
}

fn map(name: &str, mesh: &str) -> Value {
    let data = json!({"mesh": mesh, "meshNetworks": "networks: {n: {endpoints: [{fromRegistry: east}]}}"});
    let metadata = json!({"name": name, "namespace": "istio-system"});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
}

pub(super) async fn mesh_settings(server: &KubeServer) {
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
    let times = AtomicU32::new(0);
    gate.rule(move |asked| {
        let is_one = asked.path.starts_with("/api/v1/services?");
        // An API server knows roles a moment after it answers.
        let early = is_one && times.fetch_add(1, Ordering::Relaxed) < 3;
        if early { Fate::Refuse(403) } else { Fate::Pass }
    });
    let client = client_of(&gate.kubeconfig("lab-admin-token")).unwrap();
    let mut follower = Follower::start(Box::new(KubeSource::new(client, home(None, None))));
    follower.until("that it is ready", |mirror| mirror.ready).await;
    assert_eq!(services(&follower.mirror, "shop").len(), 1, "it was told without services");
    follower.until("that all is well", |mirror| mirror.issues.is_empty()).await;
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_served_without_what_nobody_can_be_served_without() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let server = KubeServer::start(scratch.path(), &[]).await.unwrap();
    for namespace in ["shop", "istio-system"] {
        server.namespace(namespace, &json!({})).await.unwrap();
    }
    server.define_rules().await.unwrap();
    server.apply(&service("shop", "a", 80)).await.unwrap();
    let mut own = see(&[""], &["configmaps"]);
    own["resourceNames"] = json!(["istio"]);
    let all = [
        (see(&[""], &["services"]), "services"),
        (see(&["discovery.k8s.io"], &["endpointslices"]), "endpointslices.discovery.k8s.io"),
        (see(&["security.istio.io"], &["authorizationpolicies"]), "authorizationpolicies.security.istio.io"),
        (own, "configmaps/istio"),
    ];
    let mut may = vec![
        see(&["apiextensions.k8s.io"], &["customresourcedefinitions"]),
        see(&["security.istio.io"], &["peerauthentications", "requestauthentications"]),
    ];
    allow_bob(&server, &json!(may)).await;
    let place = MeshPlace::of_revision(Name::new("istio-system"), "default", Some("shared"));
    let mut follower = Follower::start(Box::new(bob(&server, Some(""), Some(place))));
    for (rule, what) in all {
        let said = format!("grant get, list and watch on {what}; nobody is served before that");
        follower.until("that it waits", |mirror| issues(mirror).contains(&said)).await;
        assert!(!follower.mirror.ready, "it serves without {what}");
        may.push(rule);
        allow_bob(&server, &json!(may)).await;
    }
    // One that several revisions have in common may be forbidden.
    follower
        .until("that it is ready", |mirror| {
            mirror.ready && issues(mirror).contains("on configmaps/shared; all else goes on without it")
        })
        .await;
    assert_eq!(services(&follower.mirror, "shop").len(), 1);
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_count_though_those_of_all_revisions_may_not_be_seen() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let server = KubeServer::start(scratch.path(), &[]).await.unwrap();
    server.namespace("istio-system", &json!({})).await.unwrap();
    server.apply(&map("istio", "trustDomain: ours.com")).await.unwrap();
    let mut own = see(&[""], &["configmaps"]);
    own["resourceNames"] = json!(["istio"]);
    let rest = see(&["", "discovery.k8s.io"], &["services", "pods", "nodes", "namespaces", "endpointslices"]);
    allow_bob(&server, &json!([own, rest])).await;
    let place = MeshPlace::of_revision(Name::new("istio-system"), "default", Some("shared"));
    let (sink, mut batches) = tokio::sync::mpsc::channel(64);
    let mut running = tokio::task::JoinSet::new();
    running.spawn(Box::new(bob(&server, None, Some(place))).run(sink));
    let mut told = Vec::new();
    let begun = async {
        while !told.contains(&Event::InitDone) {
            told.extend(batches.recv().await.unwrap().events);
        }
    };
    tokio::time::timeout(Duration::from_secs(60), begun).await.unwrap();
    let domains: Vec<&str> = told
        .iter()
        .filter_map(
            |event| if let Event::Mesh(mesh) = event { Some(mesh.trust_domain.as_str()) } else { None },
        )
        .collect();
    assert_eq!(domains, ["ours.com"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definitions_that_may_be_listed_and_not_read_hide_no_rules() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let server = KubeServer::start(scratch.path(), &[]).await.unwrap();
    server.namespace("shop", &json!({})).await.unwrap();
    server.define_rules().await.unwrap();
    server.apply(&rule("a", "a", &json!({}))).await.unwrap();
    let mut definitions = see(&["apiextensions.k8s.io"], &["customresourcedefinitions"]);
    definitions["verbs"] = json!(["list", "watch"]);
    let rest = see(
        &["", "discovery.k8s.io"],
        &["services", "pods", "nodes", "namespaces", "endpointslices", "secrets"],
    );
    let istio = ["networking.istio.io", "security.istio.io", "telemetry.istio.io", "extensions.istio.io"];
    allow_bob(&server, &json!([definitions, rest, see(&istio, &["*"])])).await;
    let mut follower = Follower::start(Box::new(bob(&server, Some(""), None)));
    follower.until("that it is ready", |mirror| mirror.ready).await;
    assert_eq!(rules(&follower.mirror), ["a"]);
    follower
        .until("what it may not see, and nothing else", |mirror| {
            let said = issues(mirror);
            said.contains("grant get, list and watch on customresourcedefinitions.apiextensions.k8s.io")
                && said.lines().count() == 1
        })
        .await;
    follower.stop().await;

    // One that is refused for a moment, by an API server that has just been started.
    let gate = Gatekeeper::before(&server).await.unwrap();
    let times = AtomicU32::new(0);
    gate.rule(move |asked| {
        let is_one = asked.path.ends_with("/virtualservices.networking.istio.io");
        let early = is_one && times.fetch_add(1, Ordering::Relaxed) < 2;
        if early { Fate::Refuse(403) } else { Fate::Pass }
    });
    let client = client_of(&gate.kubeconfig("lab-admin-token")).unwrap();
    let mut follower = Follower::start(Box::new(KubeSource::new(client, home(Some(""), None))));
    follower.until("that it is ready", |mirror| mirror.ready).await;
    assert_eq!(rules(&follower.mirror), ["a"]);
    follower.until("that all is well", |mirror| mirror.issues.is_empty()).await;
    follower.stop().await;
}

const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices?";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_is_refused_does_not_cost_those_before_it() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let server = KubeServer::start(scratch.path(), &[]).await.unwrap();
    server.namespace("shop", &json!({})).await.unwrap();
    // Three pages.
    for i in 0..1_200 {
        server.apply(&slice_of_pod(&format!("p{i}"))).await.unwrap();
    }
    let gate = Gatekeeper::before(&server).await.unwrap();
    let lists = |path: &str| path.starts_with(SLICES) && !path.contains("watch=");
    let start = || {
        let client = client_of(&gate.kubeconfig("lab-admin-token")).unwrap();
        Follower::start(Box::new(KubeSource::new(client, home(None, None))))
    };
    let times = AtomicU32::new(0);
    gate.rule(move |asked| {
        let is_second = lists(&asked.path) && times.fetch_add(1, Ordering::Relaxed) % 2 == 1;
        if is_second { Fate::Refuse(429) } else { Fate::Pass }
    });
    let mut follower = start();
    follower.until("everything", |mirror| mirror.ready && mirror.issues.is_empty()).await;
    assert_eq!(sights(&follower.mirror).len(), 1_200);
    let pages = gate.asked().into_iter().filter(|asked| lists(&asked.path)).count();
    assert_eq!(pages, 5, "each page was read once, and two were refused once");
    follower.stop().await;

    // It takes so long that the API server forgets where the list was.
    gate.rule(move |asked| {
        let goes_on = lists(&asked.path) && asked.path.contains("continue=");
        if goes_on { Fate::Refuse(410) } else { Fate::Pass }
    });
    let mut follower = start();
    follower.until("everything", |mirror| mirror.ready).await;
    assert_eq!(sights(&follower.mirror).len(), 1_200);
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_api_server_has_forgotten_is_listed_again() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let server = KubeServer::start(scratch.path(), &[]).await.unwrap();
    server.namespace("shop", &json!({})).await.unwrap();
    server.apply(&service("shop", "a", 80)).await.unwrap();
    let gate = Gatekeeper::before(&server).await.unwrap();
    let is_of = |path: &str, watches: bool| {
        path.starts_with("/api/v1/services?") && path.contains("watch=") == watches
    };
    let times = AtomicU32::new(0);
    gate.rule(move |asked| {
        let first = is_of(&asked.path, true) && times.fetch_add(1, Ordering::Relaxed) == 0;
        if first { Fate::Refuse(410) } else { Fate::Pass }
    });
    let client = client_of(&gate.kubeconfig("lab-admin-token")).unwrap();
    let mut follower = Follower::start(Box::new(KubeSource::new(client, home(None, None))));
    follower.until("that it is ready", |mirror| mirror.ready).await;
    server.apply(&service("shop", "b", 80)).await.unwrap();
    follower.until("a change", |mirror| services(mirror, "shop").len() == 2).await;
    let lists = gate.asked().iter().filter(|asked| is_of(&asked.path, false)).count();
    assert_eq!(lists, 2, "what was forgotten is listed");
    assert_eq!(issues(&follower.mirror), "", "and nothing is wrong");
    follower.stop().await;
}
