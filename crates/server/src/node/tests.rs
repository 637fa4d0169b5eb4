use std::time::Duration;

use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_model::{Interception, Locality, ProxyType};
use prost_types::Struct;

use super::{NodeError, proxy};

fn value(json: &serde_json::Value) -> prost_types::Value {
    use prost_types::value::Kind;
    let kind = match json {
        serde_json::Value::String(text) => Kind::StringValue(text.clone()),
        serde_json::Value::Bool(value) => Kind::BoolValue(*value),
        serde_json::Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap()),
        serde_json::Value::Object(_) => Kind::StructValue(fields(json)),
        other => panic!("not used in these tests: {other}"),
    };
    prost_types::Value { kind: Some(kind) }
}

fn fields(json: &serde_json::Value) -> Struct {
    let object = json.as_object().unwrap();
    Struct { fields: object.iter().map(|(key, json)| (key.clone(), value(json))).collect() }
}

fn node(id: &str, metadata: &serde_json::Value) -> core::Node {
    core::Node { id: id.to_owned(), metadata: Some(fields(metadata)), ..core::Node::default() }
}

#[test]
fn a_sidecar_introduces_itself() {
    let metadata = serde_json::json!({
        "NAMESPACE": "shop", "INSTANCE_IPS": "10.0.0.7,fd00::7", "CLUSTER_ID": "east", "HTTP10": "1",
        "LABELS": {"app": "cart", "istio-locality": "r1.z2"}, "STATIC_LABELS": {"app": "x", "team": "a"},
        "INTERCEPTION_MODE": "NONE", "ENVOY_STATUS_PORT": 15021, "UNPRIVILEGED_POD": "true", "IDLE_TIMEOUT": "1m30s",
        "PROXY_CONFIG": {"tracing": {"sampling": 10}, "unknownField": true},
        "POD_PORTS": r#"[{"name":"web","containerPort":8080,"protocol":"TCP"},{"name":"web","containerPort":1},{"containerPort":2},{"name":"dns","containerPort":53,"protocol":"UDP"}]"#,
    });
    let proxy = proxy(Some(&node("sidecar~10.0.0.1~cart-1.shop~shop.svc.cluster.local", &metadata))).unwrap();
    assert_eq!((proxy.kind, proxy.name.as_str()), (ProxyType::Sidecar, "cart-1.shop"));
    assert_eq!(proxy.ips.len(), 2);
    assert_eq!(proxy.namespace.as_str(), "shop");
    assert_eq!(proxy.labels.get("app").unwrap().as_str(), "cart");
    assert_eq!(proxy.labels.get("team").unwrap().as_str(), "a");
    assert_eq!(proxy.static_labels.get("app").unwrap().as_str(), "x");
    assert_eq!(proxy.pod_ports.iter().map(|(n, p)| (n.as_str(), *p)).collect::<Vec<_>>(), [("web", 8080)]);
    assert_eq!(proxy.locality, Locality::parse("r1/z2"));
    assert_eq!(proxy.interception, Interception::None);
    assert_eq!(proxy.own_ports, [15021]);
    assert_eq!(proxy.idle_timeout, Some(Duration::from_secs(90)));
    assert!(proxy.http10 && proxy.unprivileged);
    assert_eq!(proxy.config.unwrap().tracing.sampling, Some(pilot_model::Number(10.0)));
}

#[test]
fn a_namespace_comes_from_the_domain_if_need_be() {
    let none = serde_json::json!({});
    let of = |domain: &str| {
        let id = format!("router~10.0.0.1~gw~{domain}");
        proxy(Some(&node(&id, &none))).unwrap().namespace.to_string()
    };
    assert_eq!(of("edge.svc.cluster.local"), "edge");
    assert_eq!(of("cluster.local"), "cluster");
    assert_eq!(of("here"), "");
}

#[test]
fn a_bad_node_is_told_why() {
    let none = serde_json::json!({});
    let error = |id: &str, metadata: &serde_json::Value| proxy(Some(&node(id, metadata))).unwrap_err();
    assert_eq!(proxy(None).unwrap_err(), NodeError::Missing);
    assert_eq!(error("", &none), NodeError::Missing);
    assert_eq!(error("sidecar~10.0.0.1~x", &none), NodeError::Id("sidecar~10.0.0.1~x".to_owned()));
    assert_eq!(error("sidecar~a~b~c~d", &none), NodeError::Id("sidecar~a~b~c~d".to_owned()));
    assert_eq!(error("ztunnel~10.0.0.1~x~y", &none), NodeError::Type("ztunnel".to_owned()));
    assert_eq!(error("sidecar~here~x~y", &none), NodeError::Address("sidecar~here~x~y".to_owned()));
    let id = "sidecar~10.0.0.1~x.y~y.svc.cluster.local";
    let told = |metadata: serde_json::Value| error(id, &metadata).to_string();
    assert_eq!(told(serde_json::json!({"LABELS": "app=x"})), "node metadata LABELS: is not a map");
    assert_eq!(told(serde_json::json!({"LABELS": {"app": 1}})), "node metadata LABELS: \"app\" is not text");
    let idle = told(serde_json::json!({"IDLE_TIMEOUT": "soon"}));
    assert!(idle.starts_with("node metadata IDLE_TIMEOUT: \"soon\" is not a duration"), "{idle}");
    assert_eq!(
        told(serde_json::json!({"ENVOY_STATUS_PORT": "99999"})),
        "node metadata ENVOY_STATUS_PORT: \"99999\" is not a port"
    );
    assert!(
        told(serde_json::json!({"PROXY_CONFIG": {"tracing": 7}})).starts_with("node metadata PROXY_CONFIG: ")
    );
    assert!(told(serde_json::json!({"POD_PORTS": "8080"})).starts_with("node metadata POD_PORTS: "));
    assert_eq!(
        told(serde_json::json!({"POD_PORTS": r#"[{"name":"a"}]"#})),
        r#"node metadata POD_PORTS: {"name":"a"} has no containerPort"#
    );
    assert!(error(&"x".repeat(10_000_000), &none).to_string().len() < 1000);
}
