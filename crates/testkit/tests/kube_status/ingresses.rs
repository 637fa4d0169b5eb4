//! Ingresses, and where they are served.

use std::time::Duration;

use pilot_envoy_api::envoy::config::core::v3::Node;
use pilot_envoy_api::envoy::service::discovery::v3::DiscoveryRequest;
use pilot_source_kube::Call;
use pilot_testkit::server::PilotServer;
use pilot_testkit::xds_client::{StateOfTheWorld, Stream};
use prost_types::value::Kind;
use prost_types::{Struct, Value as Word};
use serde_json::{Value, json};

use super::{ask, cluster, serve, until_told_of, was_allowed};

const INGRESSES: &str = "/apis/networking.k8s.io/v1/namespaces/shop/ingresses";
const ROUTES: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";

fn ingress(name: &str, class: &str, host: &str) -> Value {
    let service = |port: Value| json!({"service": {"name": "web", "port": port}});
    let paths = json!([
        {"path": "/cart", "pathType": "Prefix", "backend": service(json!({"name": "http"}))},
        {"path": "/exact", "pathType": "Exact", "backend": service(json!({"number": 80}))},
    ]);
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"ingressClassName": class, "rules": [{"host": host, "http": {"paths": paths}}]},
    })
}

fn gateway() -> Node {
    let word = |text: &str| Word { kind: Some(Kind::StringValue(text.to_owned())) };
    let labels = Struct { fields: [("istio".to_owned(), word("ingressgateway"))].into() };
    let labels = Word { kind: Some(Kind::StructValue(labels)) };
    let fields = [("LABELS".to_owned(), labels), ("NAMESPACE".to_owned(), word("istio-system"))];
    Node {
        id: "router~10.0.0.2~edge.istio-system~istio-system.svc.cluster.local".to_owned(),
        metadata: Some(Struct { fields: fields.into() }),
        ..Node::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ingresses_are_served_and_say_where() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(cluster) = cluster(scratch.path()).await else { return };
    let class = |name: &str, controller: &str| {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "IngressClass",
            "metadata": {"name": name}, "spec": {"controller": controller},
        })
    };
    let service = |namespace: &str, name: &str| {
        let spec = json!({"ports": [{"name": "http", "port": 80}], "externalIPs": ["192.0.2.7"]});
        let metadata = json!({"name": name, "namespace": namespace});
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    };
    cluster
        .client
        .call(Call::post(
            "/apis/networking.k8s.io/v1/ingressclasses",
            class("mesh", "istio.io/ingress-controller").to_string(),
        ))
        .await
        .unwrap();
    cluster
        .client
        .call(Call::post(
            "/apis/networking.k8s.io/v1/ingressclasses",
            class("other", "example.com/nginx").to_string(),
        ))
        .await
        .unwrap();
    cluster.apply(&service("shop", "web")).await.unwrap();
    cluster.apply(&service("istio-system", "istio-ingressgateway")).await.unwrap();
    let post = async |object: Value| {
        cluster.client.call(Call::post(INGRESSES, object.to_string())).await.unwrap();
    };
    post(ingress("ours", "mesh", "ours.com")).await;
    post(ingress("theirs", "other", "theirs.com")).await;
    let server = serve(scratch.path(), &cluster, &[]).await;
    let mut stream = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
    stream.send(ask(ROUTES, &["http.80"], Some(gateway())));
    let response = stream.next().await.unwrap().unwrap();
    let table = &response.resources[0].value;
    let holds = |text: &str| table.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(holds("ours.com") && !holds("theirs.com"));
    assert!(holds("outbound|80||web.shop.svc.cluster.local"));

    // It says where it is served; somebody else's does not.
    let at = |name: &str| format!("{INGRESSES}/{name}");
    let served = |found: &Value| found["status"]["loadBalancer"]["ingress"].clone();
    cluster.until(&at("ours"), |found| served(found) == json!([{"ip": "192.0.2.7"}])).await.unwrap();
    assert_eq!(served(&cluster.get(&at("theirs")).await), Value::Null);

    // One that comes later, one that changes hands, and one that goes.
    let (version_info, response_nonce) = (response.version_info, response.nonce);
    stream.send(DiscoveryRequest { version_info, response_nonce, ..ask(ROUTES, &["http.80"], None) });
    post(ingress("late", "mesh", "late.com")).await;
    until_told_of(&mut stream, ROUTES, ("http.80", "late.com")).await;
    let theirs = json!({"spec": {"ingressClassName": "mesh"}});
    cluster.client.call(Call::merge(&at("theirs"), theirs.to_string())).await.unwrap();
    until_told_of(&mut stream, ROUTES, ("http.80", "theirs.com")).await;
    cluster.until(&at("theirs"), |found| served(found).is_array()).await.unwrap();
    cluster.client.call(Call::delete(&at("ours"))).await.unwrap();
    until_gone(&server, "ours.com").await;

    // Somebody says that Ingresses are none of our business, whatever their class is.
    let mesh = json!({"mesh": "ingressControllerMode: 'OFF'\n"});
    let metadata = json!({"name": "istio", "namespace": "istio-system"});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": mesh});
    cluster.apply(&map).await.unwrap();
    until_gone(&server, "late.com").await;
    was_allowed(&cluster);
}

/// Waits until a gateway that comes is told of no such host.
async fn until_gone(server: &PilotServer, host: &str) {
    let gone = async {
        loop {
            let mut stream = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
            stream.send(ask(ROUTES, &["http.80"], Some(gateway())));
            // A gateway without hosts may be told nothing at all.
            let Ok(Ok(response)) = stream.next().await else { return };
            let tables = response.resources.iter().map(|any| &any.value);
            if !tables.flat_map(|table| table.windows(host.len())).any(|part| part == host.as_bytes()) {
                return;
            }
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(60), gone).await.is_ok(), "{host} is still there");
}
