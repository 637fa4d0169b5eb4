//! What a token may not see is not gone.

use http::Method;
use pilot_model::Object;
use pilot_source::contract::{Follower, Mirror, Registered, RegistryRig as _};
use pilot_source_store::contract::{StoreRig as _, rule};
use serde_json::{Value, json};

use crate::agent::{Consul, at};
use crate::keys::Kv;

/// Whoever has this may see what a policy says.
const NARROW: &str = "22222222-2222-3333-4444-555555555555";

impl Consul {
    async fn answer(&self, path: &str, body: Value) -> Value {
        let answer = self.client.ask(Method::PUT, path, body.to_string().into(), std::time::Duration::ZERO);
        let answer = answer.await.unwrap();
        assert!(answer.status.is_success(), "{path}: {:?}", answer.body);
        answer.json().unwrap()
    }

    /// Makes a token, and tells the policy that it has.
    async fn may(&self, rules: &str) -> String {
        let policy = self.answer("/v1/acl/policy", json!({"Name": "some", "Rules": rules})).await;
        let id = policy["ID"].as_str().unwrap().to_owned();
        self.answer("/v1/acl/token", json!({"SecretID": NARROW, "Policies": [{"ID": id}]})).await;
        id
    }

    async fn may_now(&self, policy: &str, rules: &str) {
        self.answer(&format!("/v1/acl/policy/{policy}"), json!({"Name": "some", "Rules": rules})).await;
    }
}

fn hosts(mirror: &Mirror) -> Vec<String> {
    let host = |object: &Object| match object {
        Object::ServiceEntry(entry) => {
            Some(format!("{} {}", entry.spec.hosts[0], entry.spec.endpoints.len()))
        }
        _ => None,
    };
    mirror.objects().filter_map(host).collect()
}

fn issues(mirror: &Mirror) -> String {
    mirror.issues.values().flatten().map(|issue| format!("{issue}\n")).collect()
}

const ALL: &str = r#"service_prefix "" { policy = "read" } node_prefix "" { policy = "read" }"#;
const SHOP: &str = r#"service "shop" { policy = "read" } node_prefix "" { policy = "read" }"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_that_a_token_may_not_see_any_more_are_kept_and_that_is_told() {
    let Some(mut consul) = Consul::start().await else { return };
    let policy = consul.may(ALL).await;
    consul.register(&Registered::new("shop", "shop-1", 8080)).await;
    consul.register(&Registered::new("cart", "cart-1", 8080)).await;
    let mut follower = Follower::start(consul.follow_at(at(consul.address, NARROW), "dc1"));
    let both = ["cart.service.consul 1", "shop.service.consul 1"];
    follower.until("both", |mirror| hosts(mirror) == both).await;
    assert!(follower.mirror.issues.is_empty(), "{}", issues(&follower.mirror));
    consul.may_now(&policy, SHOP).await;
    let held = |mirror: &Mirror| {
        let told = issues(mirror);
        told.contains("the token may not see everything") && told.contains("1 of 2 instances are missing")
    };
    follower.until("that it may see less", held).await;
    assert_eq!(hosts(&follower.mirror), both, "what may not be seen is not gone");
    // What may be seen is followed.
    consul.register(&Registered::new("shop", "shop-2", 8080)).await;
    follower.until("a change", |mirror| hosts(mirror)[1] == "shop.service.consul 2").await;
    consul.may_now(&policy, r#"node_prefix "" { policy = "read" }"#).await;
    follower
        .until("that it may see nothing", |mirror| issues(mirror).contains("may not see any service"))
        .await;
    assert_eq!(hosts(&follower.mirror).len(), 2, "nothing is not what there is");
    consul.may_now(&policy, ALL).await;
    follower.until("that all is well", |mirror| mirror.issues.is_empty()).await;
    assert_eq!(hosts(&follower.mirror).len(), 2);
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_a_token_may_not_see_any_more_are_kept_and_that_is_told() {
    let Some(consul) = Consul::start().await else { return };
    let all = r#"key_prefix "" { policy = "read" }"#;
    let policy = consul.may(all).await;
    let mut kv = Kv(consul);
    for (key, value) in [("first", 1), ("second", 2)] {
        assert!(kv.put(key, rule(key, value).as_bytes()).await);
    }
    let mut follower = Follower::start(kv.0.keys_at(at(kv.0.address, NARROW)));
    follower.until("both", |mirror| mirror.objects().count() == 2).await;
    kv.0.may_now(&policy, r#"key_prefix "istio/config/first" { policy = "read" }"#).await;
    kv.put("first", rule("first", 3).as_bytes()).await;
    let is_told = |mirror: &Mirror| issues(mirror).contains("the token may not see");
    follower.until("that it may see less", is_told).await;
    assert_eq!(follower.mirror.objects().count(), 2, "what may not be seen is not gone");
    kv.0.may_now(&policy, r#"node_prefix "" { policy = "read" }"#).await;
    kv.put("first", rule("first", 4).as_bytes()).await;
    follower
        .until("that it may see nothing", |mirror| issues(mirror).contains("may not see what is there"))
        .await;
    assert_eq!(follower.mirror.objects().count(), 2, "nothing is not what there is");
    kv.0.may_now(&policy, all).await;
    follower.until("that all is well", |mirror| mirror.issues.is_empty()).await;
    assert_eq!(follower.mirror.objects().count(), 2);
    follower.stop().await;
}
