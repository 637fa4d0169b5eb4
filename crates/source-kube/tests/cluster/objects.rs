//! Objects that are bad, deep, many or long.

use std::time::Duration;

use pilot_model::Kind;
use pilot_source::contract::{Follower, Mirror};
use pilot_source_kube::KubeSource;
use pilot_testkit::kube::KubeServer;
use serde_json::{Value, json};

use super::{endpoints, home, issues, rule, rules, service, services, skipped};

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
