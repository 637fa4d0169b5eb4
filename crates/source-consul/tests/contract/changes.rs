//! Changes that Consul does not tell by name.

use pilot_model::{Object, ServiceEntry};
use pilot_source::contract::{Follower, Mirror, RegistryRig, Relay, Road};
use serde_json::{Value, json};

use crate::agent::{Consul, TOKEN, at};

impl Consul {
    /// Writes into the catalog, as those do who have no agent.
    async fn catalog(&self, node: &str, address: &str, more: Value) {
        let mut body = json!({"Node": node, "Address": address, "NodeMeta": {"network": "n1"}});
        let fields = more.as_object().into_iter().flatten();
        fields.for_each(|(key, value)| body[key] = value.clone());
        self.ask("/v1/catalog/register", body.to_string()).await;
    }
}

fn service(name: &str, id: &str, port: u16) -> Value {
    json!({"Service": {"ID": id, "Service": name, "Port": port, "Meta": {"version": "v1"}}})
}

fn entry<'a>(mirror: &'a Mirror, name: &str) -> Option<&'a ServiceEntry> {
    mirror.objects().find_map(|object| match object {
        Object::ServiceEntry(entry) if entry.spec.hosts[0].as_str().starts_with(name) => Some(&entry.spec),
        _ => None,
    })
}

/// Address, port and version of each instance.
fn told(mirror: &Mirror, name: &str) -> Vec<String> {
    let endpoints = entry(mirror, name).into_iter().flat_map(|entry| &entry.endpoints);
    let each = endpoints.map(|endpoint| {
        let version = endpoint.labels.get("version").map(ToString::to_string).unwrap_or_default();
        let port = endpoint.ports.values().next().copied().unwrap_or_default();
        format!("{}:{port} {version}", endpoint.address)
    });
    each.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_without_checks_are_told_as_they_come_change_and_go() {
    let Some(consul) = Consul::start().await else { return };
    for i in 0..50 {
        consul.catalog("n1", "10.0.0.1", service(&format!("other-{i}"), &format!("other-{i}"), 8080)).await;
    }
    consul.catalog("n1", "10.0.0.1", service("shop", "shop-1", 8080)).await;
    let mut follower = Follower::start(consul.follow_at(at(consul.address, TOKEN), "dc1"));
    follower.until("an instance", |mirror| told(mirror, "shop") == ["10.0.0.1:8080 v1"]).await;
    consul.catalog("n2", "10.0.0.2", service("shop", "shop-2", 8081)).await;
    let both = ["10.0.0.1:8080 v1", "10.0.0.2:8081 v1"];
    follower.until("another one", |mirror| told(mirror, "shop") == both).await;
    let mut moved = service("shop", "shop-2", 8082);
    moved["Service"]["Meta"] = json!({"version": "v2"});
    consul.catalog("n2", "10.0.0.2", moved).await;
    let both = ["10.0.0.1:8080 v1", "10.0.0.2:8082 v2"];
    follower.until("another port and version", |mirror| told(mirror, "shop") == both).await;
    consul.catalog("n2", "10.0.0.3", json!({})).await;
    let both = ["10.0.0.1:8080 v1", "10.0.0.3:8082 v2"];
    follower.until("another address of its node", |mirror| told(mirror, "shop") == both).await;
    consul.ask("/v1/catalog/deregister", json!({"Node": "n2", "ServiceID": "shop-2"}).to_string()).await;
    follower.until("that it is gone", |mirror| told(mirror, "shop") == ["10.0.0.1:8080 v1"]).await;
    assert!(follower.mirror.issues.is_empty(), "{:?}", follower.mirror.issues);
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_fails_takes_all_that_is_on_it_along() {
    let Some(consul) = Consul::start().await else { return };
    for name in ["shop", "cart"] {
        consul.catalog("n1", "10.0.0.1", service(name, name, 8080)).await;
        consul.catalog("n2", "10.0.0.2", service(name, &format!("{name}-2"), 8080)).await;
    }
    let mut follower = Follower::start(consul.follow_at(at(consul.address, TOKEN), "dc1"));
    let left = |mirror: &Mirror| [told(mirror, "shop").len(), told(mirror, "cart").len()];
    follower.until("two each", |mirror| left(mirror) == [2, 2]).await;
    let health =
        |status: &str| json!({"Check": {"CheckID": "serfHealth", "Name": "alive", "Status": status}});
    consul.catalog("n1", "10.0.0.1", health("critical")).await;
    follower.until("one each", |mirror| left(mirror) == [1, 1]).await;
    consul.catalog("n1", "10.0.0.1", health("passing")).await;
    follower.until("two each again", |mirror| left(mirror) == [2, 2]).await;
    consul.ask("/v1/catalog/deregister", json!({"Node": "n1"}).to_string()).await;
    follower.until("that the node is gone", |mirror| left(mirror) == [1, 1]).await;
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_that_are_taken_away_together_are_gone_at_once() {
    let Some(consul) = Consul::start().await else { return };
    for name in ["shop", "cart"] {
        consul.catalog("n1", "10.0.0.1", service(name, name, 8080)).await;
    }
    let mut follower = Follower::start(consul.follow_at(at(consul.address, TOKEN), "dc1"));
    follower.until("both", |mirror| mirror.objects().count() == 2).await;
    consul.ask("/v1/catalog/deregister", json!({"Node": "n1"}).to_string()).await;
    follower.until("that both are gone", |mirror| mirror.objects().count() == 0).await;
    assert_eq!(follower.mirror.reports, 0, "an answer that is newer is believed");
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_begins_anew_takes_nobody_back_though_most_are_there_again() {
    let Some(mut consul) = Consul::start().await else { return };
    let names = ["a", "b", "c", "d", "e"];
    for port in 8080..8090 {
        for name in names {
            consul.catalog("n1", "10.0.0.1", service(name, name, port)).await;
        }
    }
    let relay = Relay::to(consul.address).await;
    let mut follower = Follower::start(RegistryRig::source(&consul, relay.address));
    follower.until("all", |mirror| mirror.objects().count() == names.len()).await;
    relay.set(Road::Cut);
    RegistryRig::restart(&mut consul).await;
    for name in &names[..3] {
        consul.catalog("n1", "10.0.0.1", service(name, name, 8089)).await;
    }
    relay.set(Road::Open);
    let is_held = |mirror: &Mirror| {
        mirror
            .issues
            .values()
            .flatten()
            .any(|issue| issue.to_string().contains("2 of 5 instances are missing"))
    };
    follower.until("that two are missing", is_held).await;
    assert_eq!(follower.mirror.objects().count(), names.len(), "they are kept until they come back");
    for name in &names[3..] {
        consul.catalog("n1", "10.0.0.1", service(name, name, 8089)).await;
    }
    follower.until("that all is well", |mirror| mirror.issues.is_empty()).await;
    follower.stop().await;
}
