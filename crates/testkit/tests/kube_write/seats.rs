//! Who does what only one may do, and where several servers keep what they share.

use std::time::Duration;

use pilot_testkit::gatekeeper::{Asked, Gatekeeper};
use pilot_testkit::kube::KubeServer;
use pilot_testkit::process::free_address;
use pilot_testkit::server::PilotServer;
use serde_json::{Value, json};

use super::webhook::plugged;
use super::{LOCK, Plane, injector, leader, skipped};

#[tokio::test]
async fn a_seat_is_taken_from_others_only_by_the_revision_that_the_tag_leads_to() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let cluster = KubeServer::start(&scratch.path().join("cluster"), &[]).await.unwrap();
    cluster.namespace("istio-system", &json!({})).await.unwrap();
    may_read_settings(&cluster, "istio-blue").await;
    let start = async |revision: &str| {
        let env = [("REVISION", revision), ("POD_NAME", revision)];
        Plane::start_with(&scratch.path().join(revision), &cluster, free_address().unwrap(), &env).await
    };
    let holds = |who: &'static str| move |found: &Value| leader(found)["holderIdentity"] == who;
    let blue = start("blue").await;
    cluster.until(LOCK, holds("blue")).await.unwrap();
    let default = start("default").await;
    // It looks every few seconds, and leaves it alone: a revision is not the default by its name.
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(leader(&cluster.get(LOCK).await)["holderIdentity"], "blue");
    cluster.apply(&injector("istio-revision-tag-default", "default")).await.unwrap();
    cluster.until(LOCK, holds("default")).await.unwrap();
    assert_eq!(leader(&cluster.get(LOCK).await)["holderKey"], "default");
    cluster.apply(&injector("istio-revision-tag-default", "blue")).await.unwrap();
    cluster.until(LOCK, holds("blue")).await.unwrap();
    drop((blue, default));
}

/// The settings of another revision than the one that our manifests speak of.
async fn may_read_settings(cluster: &KubeServer, map: &str) {
    let (api, group) = ("rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io");
    let metadata = json!({"name": map, "namespace": "istio-system"});
    let rule = json!({"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [map], "verbs": ["list", "watch"]});
    let role = json!({"apiVersion": api, "kind": "Role", "metadata": metadata, "rules": [rule]});
    cluster.apply(&role).await.unwrap();
    let binding = json!({
        "apiVersion": api, "kind": "RoleBinding", "metadata": metadata,
        "subjects": [{"kind": "ServiceAccount", "name": "istiod", "namespace": "istio-system"}],
        "roleRef": {"kind": "Role", "name": map, "apiGroup": group},
    });
    cluster.apply(&binding).await.unwrap();
}

#[tokio::test]
async fn when_a_leader_is_killed_another_server_does_its_work() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let cluster = KubeServer::start(&scratch.path().join("cluster"), &[]).await.unwrap();
    let start = async |name: &str| {
        let env = [("POD_NAME", name)];
        Plane::start_with(&scratch.path().join(name), &cluster, free_address().unwrap(), &env).await
    };
    let mut first = start("istiod-0").await;
    let is = |who: &'static str| move |found: &Value| leader(found)["holderIdentity"] == who;
    cluster.until(LOCK, is("istiod-0")).await.unwrap();
    let second = start("istiod-1").await;
    // Both look every few seconds, and the seat stays where it is.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = leader(&cluster.get(LOCK).await);
    assert_eq!((&before["holderIdentity"], &before["leaderTransitions"]), (&json!("istiod-0"), &json!(0)));

    first.server.process.kill().await.unwrap();
    cluster.namespace("late", &json!({})).await.unwrap();
    let taken = cluster.until(LOCK, is("istiod-1")).await.unwrap();
    assert_eq!(leader(&taken)["leaderTransitions"], 1);
    let map = "/api/v1/namespaces/late/configmaps/istio-ca-root-cert";
    cluster.until(map, |found| found["data"]["root-cert.pem"].is_string()).await.unwrap();
    drop(second);
}

#[tokio::test]
async fn an_authority_of_our_own_may_be_kept_where_those_of_others_are() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let cluster = KubeServer::start(&scratch.path().join("cluster"), &[]).await.unwrap();
    let env = [("USE_CACERTS_FOR_SELF_SIGNED_CA", "true")];
    let folder = scratch.path().join("pilot");
    let plane = Plane::start_with(&folder, &cluster, free_address().unwrap(), &env).await;
    let at = |name: &str| format!("/api/v1/namespaces/istio-system/secrets/{name}");
    let kept = cluster.get(&at("cacerts")).await;
    assert!(kept["data"]["ca-cert.pem"].is_string() && kept["data"]["ca-key.pem"].is_string());
    assert!(kept["data"]["istio-generated"].is_string(), "nobody put it there");
    assert!(cluster.get(&at("istio-ca-secret")).await.is_null());
    drop(plane);
}

/// So many writes may be needed for good reasons.
const FEW: usize = 20;

#[tokio::test]
async fn two_servers_with_different_roots_do_not_write_against_each_other_as_fast_as_they_can() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let cluster = KubeServer::start(&scratch.path().join("cluster"), &[]).await.unwrap();
    cluster.namespace("istio-system", &json!({})).await.unwrap();
    cluster.apply(&injector("istio-sidecar-injector", "default")).await.unwrap();
    let gate = Gatekeeper::before(&cluster).await.unwrap();
    let mut servers = Vec::new();
    for name in ["istiod-0", "istiod-1"] {
        let folder = scratch.path().join(name);
        let authority = plugged(&folder);
        let file = folder.join("kubeconfig");
        std::fs::write(&file, gate.kubeconfig("lab-admin-token")).unwrap();
        let kubeconfig = format!("--kubeconfig={}", file.display());
        let https = format!("--httpsAddr={}", free_address().unwrap());
        let flags = ["--registries=Kubernetes", &kubeconfig, &https];
        let env = [("POD_NAME", name), ("ROOT_CA_DIR", authority.to_str().unwrap())];
        servers.push(PilotServer::start_in(&folder, &flags, &env).await.unwrap());
    }
    let is_write = |asked: &Asked| asked.method == "PUT" && asked.path.ends_with("istio-sidecar-injector");
    let mut writes = 0;
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        writes += gate.asked().iter().filter(|asked| is_write(asked)).count();
    }
    assert!((2..=FEW).contains(&writes), "{writes} writes in ten seconds");
    drop(servers);
}
