//! Clusters as sources, on a real API server: the contract, and what only clusters can do.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod objects;
mod refusals;
mod remotes;

use std::time::Duration;

use pilot_base::Name;
use pilot_config::ReadOptions;
use pilot_model::Object;
use pilot_source::contract::{Follower, Mirror, Rig, check};
use pilot_source::{Doubts, Source};
use pilot_source_kube::{Call, ClusterOptions, KubeSource, MeshPlace, Role};
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
    refusals::forbidden(&server).await;
    refusals::mesh_settings(&server).await;
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
async fn a_partition_without_a_word_is_noticed_and_costs_nothing() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let server = KubeServer::start(scratch.path(), &[]).await.unwrap();
    server.namespace("shop", &json!({})).await.unwrap();
    server.apply(&service("shop", "a", 80)).await.unwrap();
    let cut = Cut::before(server.address).await.unwrap();
    let client = client_of(&server.kubeconfig_for(cut.address, "lab-admin-token").unwrap()).unwrap();
    let mut follower = Follower::start(Box::new(KubeSource::new(client, home(None, None))));
    follower.until("everything", |mirror| mirror.ready && services(mirror, "shop").len() == 1).await;
    cut.freeze();
    server.apply(&service("shop", "b", 80)).await.unwrap();
    // Connections are open, and nothing comes over them.
    follower.until("an issue", |mirror| issues(mirror).contains("does not answer")).await;
    assert_eq!(services(&follower.mirror, "shop").len(), 1, "what was known stays");
    cut.open();
    follower
        .until("what happened meanwhile", |mirror| {
            services(mirror, "shop").len() == 2 && mirror.issues.is_empty()
        })
        .await;
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_on_for_long_does_not_share_its_connection() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let server = KubeServer::start(scratch.path(), &[]).await.unwrap();
    let cut = Cut::before(server.address).await.unwrap();
    let client = client_of(&server.kubeconfig_for(cut.address, "lab-admin-token").unwrap()).unwrap();
    let (list, watch) = ("/api/v1/services?limit=1", "/api/v1/services?watch=true");
    let others = client.at_leisure();
    client.call(Call::get(list)).await.unwrap();
    others.call(Call::get(list)).await.unwrap();
    assert_eq!(cut.connections(), 1);
    let _first = client.stream(Call::get(watch)).await.unwrap();
    let _second = client.stream(Call::get(watch)).await.unwrap();
    assert_eq!(cut.connections(), 2);
    // Nobody may read for a while what those are told who have much to write.
    let _third = others.stream(Call::get(watch)).await.unwrap();
    assert_eq!(cut.connections(), 3);
    client.call(Call::get(list)).await.unwrap();
    assert_eq!(cut.connections(), 3);
}
