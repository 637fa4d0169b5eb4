//! Other clusters, as secrets lead to them.

use std::path::Path;
use std::time::Duration;

use pilot_base::Name;
use pilot_source::ClusterStates;
use pilot_source::contract::{Follower, Mirror};
use pilot_source_kube::{Call, Pace, RemoteClients, RemoteClusters, RemoteOptions};
use pilot_testkit::cut::Cut;
use pilot_testkit::kube::KubeServer;
use serde_json::{Value, json};

use super::refusals::{allow_bob, see};
use super::{issues, service, services, skipped};

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
        workloads: Some(Name::empty()),
    };
    let source = RemoteClusters::new(near.client.clone(), options.clone());
    let (states, mut clients) = (source.states(), source.clients());
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
    // It is followed as before, and asked as before.
    far.apply(&service("shop", "c", 80)).await.unwrap();
    far.delete(&service("shop", "a", 80)).await.unwrap();
    follower.until("a change all the same", |mirror| is(mirror, &[("eastb", 80), ("eastc", 80)])).await;
    let client = clients.borrow_and_update()["east"].clone();
    assert!(client.call(Call::get("/api/v1/services?limit=1")).await.is_ok());
    let good = far.kubeconfig_for(far.address, "lab-admin-token").unwrap();
    near.apply(&secret(&[("east", good.clone()), ("west", "nonsense".to_owned())])).await.unwrap();
    follower
        .until("what the new secret leads to", |mirror| {
            let said = issues(mirror);
            is(mirror, &[("eastb", 80), ("eastc", 80)])
                && said.contains("data.west")
                && said.lines().count() == 1
        })
        .await;
    assert!(!clients.borrow_and_update()["east"].is(&client), "the new one is believed");

    let rotated = rotated(near, far, (&mut follower, &states), through("lab-admin-token")).await;
    let all = weakened((near, far), (&mut follower, clients), &rotated).await;

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
    second.until("the one that answers", |mirror| is(mirror, &all)).await;
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

/// A credential that may see less: what it may not see stays as it was, until it may.
async fn weakened(
    (near, far): (&KubeServer, &KubeServer),
    (follower, mut clients): (&mut Follower, RemoteClients),
    rotated: &Value,
) -> [(&'static str, u16); 2] {
    let mut may =
        vec![see(&[""], &["pods", "nodes", "namespaces"]), see(&["discovery.k8s.io"], &["endpointslices"])];
    allow_bob(far, &json!(may)).await;
    let mut weak = rotated.clone();
    weak["stringData"]["east"] = json!(far.kubeconfig_for(far.address, "bob-token").unwrap());
    clients.borrow_and_update();
    near.apply(&weak).await.unwrap();
    clients.changed().await.unwrap();
    follower
        .until("what it may not see", |mirror| {
            issues(mirror).contains("grant get, list and watch on services")
        })
        .await;
    far.delete(&service("shop", "b", 80)).await.unwrap();
    far.apply(&service("shop", "e", 80)).await.unwrap();
    follower.rest(Duration::from_secs(2)).await;
    assert!(is(&follower.mirror, &[("eastb", 80), ("eastc", 80)]), "nobody knows any better");
    may.push(see(&[""], &["services"]));
    allow_bob(far, &json!(may)).await;
    let all = [("eastc", 80), ("easte", 80)];
    follower.until("what it may see now", |mirror| is(mirror, &all)).await;
    all
}
