use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Locality, Node, NodeOptions, ProxyType};
use crate::Env;
use crate::proxy_config::{Places, effective};
use crate::surroundings::Surroundings;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn options() -> NodeOptions {
    NodeOptions {
        proxy_type: ProxyType::Sidecar,
        domain: String::new(),
        sts_port: 0,
        outlier_log_path: String::new(),
        status_port: 15021,
        prometheus_port: 15090,
        secure_metrics_port: 0,
        secure_merged_metrics_port: 0,
    }
}

fn pod() -> Surroundings {
    Surroundings {
        env: Env::from([("POD_NAME", "web-1"), ("POD_NAMESPACE", "shop"), ("INSTANCE_IP", "10.0.0.7")]),
        host_name: "machine".to_owned(),
        ..Surroundings::default()
    }
}

fn node_of(options: &NodeOptions, around: &Surroundings) -> Result<Node, String> {
    let places = Places {
        mesh: None,
        env: &around.env,
        annotations: &around.annotations,
        concurrency: 0,
        service_cluster: "istio-proxy",
    };
    let config = effective(&places).map_err(|error| error.to_string())?;
    Node::new(options, &config, around).map_err(|error| error.to_string())
}

fn with_env<const N: usize>(variables: [(&str, &str); N]) -> Node {
    node_of(&options(), &Surroundings { env: Env::from(variables), ..pod() }).unwrap()
}

#[test]
fn the_id_has_four_parts() {
    assert_eq!(node_of(&options(), &pod()).unwrap().id, "sidecar~10.0.0.7~web-1.shop~shop.svc.cluster.local");
    let router =
        NodeOptions { proxy_type: ProxyType::Router, domain: "edge.svc.corp".to_owned(), ..options() };
    assert_eq!(node_of(&router, &pod()).unwrap().id, "router~10.0.0.7~web-1.shop~edge.svc.corp");
}

#[test]
fn outside_kubernetes_the_machine_gives_the_name() {
    assert_eq!(with_env([]).id, "sidecar~127.0.0.1~machine.default~default.svc.cluster.local");
    let domain = NodeOptions { domain: "lab.svc.cluster.local".to_owned(), ..options() };
    let around = Surroundings { env: Env::default(), ..pod() };
    let node = node_of(&domain, &around).unwrap();
    assert_eq!(node.id, "sidecar~127.0.0.1~machine.lab~lab.svc.cluster.local");
    assert_eq!(node.metadata["NAMESPACE"], "lab");
}

#[test]
fn what_is_always_told() {
    let mut metadata = node_of(&options(), &pod()).unwrap().metadata;
    metadata.remove("PROXY_CONFIG");
    let expected = json!({
        "NAME": "web-1",
        "NAMESPACE": "shop",
        "INSTANCE_IPS": "10.0.0.7",
        "ISTIO_VERSION": "1.31.0",
        "ENVOY_STATUS_PORT": 15021,
        "ENVOY_PROMETHEUS_PORT": 15090,
        "ENVOY_SKIP_DEPRECATED_LOGS": "true",
        "METADATA_DISCOVERY": "false",
        "WORKLOAD_IDENTITY_SOCKET_FILE": "socket",
        "PILOT_SAN": ["istiod.istio-system.svc"],
    });
    assert_eq!(Value::Object(metadata), expected);
}

#[test]
fn options_become_words() {
    let around = Surroundings { env: Env::from([("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "1")]), ..pod() };
    let options = NodeOptions {
        sts_port: 15463,
        outlier_log_path: "/dev/stdout".to_owned(),
        status_port: 0,
        ..options()
    };
    let node = node_of(&options, &around).unwrap();
    assert_eq!(node.metadata["STS_PORT"], "15463");
    assert_eq!(node.metadata["OUTLIER_LOG_PATH"], "/dev/stdout");
    assert_eq!(node.metadata["EXIT_ON_ZERO_ACTIVE_CONNECTIONS"], "true");
    assert!(!node.metadata.contains_key("ENVOY_STATUS_PORT"));
}

#[test]
fn variables_win_over_settings_and_json_over_both() {
    let node = with_env([
        ("PROXY_CONFIG", "proxyMetadata: {ISTIO_META_A: settings, ISTIO_META_B: settings, OTHER: x}"),
        ("ISTIO_META_B", "variable"),
        ("ISTIO_META_C", "variable"),
        ("ISTIO_METAJSON_ANY", r#"{"C": "json", "DNS_CAPTURE": true}"#),
        ("ISTIO_META_CLUSTER_ID", "east"),
        ("ISTIO_META_ISTIO_VERSION", "1.30.2"),
        ("ISTIO_META_ENABLE_HBONE", "T"),
    ]);
    for (field, value) in [
        ("A", "settings"),
        ("B", "variable"),
        ("C", "json"),
        ("DNS_CAPTURE", "true"),
        ("CLUSTER_ID", "east"),
        ("ISTIO_VERSION", "1.30.2"),
        ("ENABLE_HBONE", "true"),
        ("METADATA_DISCOVERY", "true"),
    ] {
        assert_eq!(node.metadata[field], value, "{field}");
    }
    assert!(!node.metadata.contains_key("OTHER"));
    assert_eq!(node.metadata["PROXY_CONFIG"]["proxyMetadata"]["OTHER"], "x");
}

#[test]
fn labels_come_from_the_pod_over_the_variable() {
    let around = Surroundings {
        env: Env::from([("ISTIO_METAJSON_LABELS", r#"{"app": "static", "tier": "front"}"#)]),
        labels: Some(map(&[("app", "pod"), ("pod-template-hash", "abc")])),
        annotations: map(&[("note", "yes")]),
        ..pod()
    };
    let node = node_of(&options(), &around).unwrap();
    assert_eq!(node.metadata["LABELS"], json!({"app": "pod", "tier": "front"}));
    assert_eq!(node.metadata["STATIC_LABELS"], json!({"app": "static", "tier": "front"}));
    assert_eq!(node.metadata["ANNOTATIONS"], json!({"note": "yes"}));
    assert_eq!(node.metadata["tier"], "front");
    assert_eq!(node.annotation("note"), Some("yes"));
}

#[test]
fn locality_comes_from_labels() {
    let place = |labels: &[(&str, &str)]| {
        let node = node_of(&options(), &Surroundings { labels: Some(map(labels)), ..pod() }).unwrap();
        (node.locality, node.metadata)
    };
    let expected = Locality { region: "eu".to_owned(), zone: "eu-1".to_owned(), sub_zone: "rack".to_owned() };
    let (locality, metadata) = place(&[("istio-locality", "eu.eu-1.rack")]);
    assert_eq!(locality, expected);
    assert_eq!(metadata["LABELS"]["istio-locality"], "eu/eu-1/rack");
    let both = [("istio-locality", "us"), ("topology.istio.io/locality", "eu/eu-1/rack")];
    assert_eq!(place(&both).0, expected);
    assert_eq!(place(&[]).0, Locality::default());
}

#[test]
fn the_service_cluster_is_given_or_made_of_labels() {
    let cluster = |config: &str, labels: &[(&str, &str)], workload: &str| {
        let env = Env::from([
            ("PROXY_CONFIG", config),
            ("POD_NAMESPACE", "shop"),
            ("ISTIO_META_WORKLOAD_NAME", workload),
        ]);
        node_of(&options(), &Surroundings { env, labels: Some(map(labels)), ..pod() }).unwrap().cluster
    };
    let both = [("app", "web"), ("service.istio.io/canonical-name", "front")];
    assert_eq!(cluster("", &[], ""), "istio-proxy.shop");
    assert_eq!(cluster("", &[], "web-v1"), "web-v1.shop");
    assert_eq!(cluster("", &both, "web-v1"), "web.shop");
    assert_eq!(cluster("serviceCluster: mine", &both, ""), "mine");
    assert_eq!(cluster("tracingServiceName: CANONICAL_NAME_ONLY", &both, ""), "front");
    assert_eq!(cluster("tracingServiceName: CANONICAL_NAME_AND_NAMESPACE", &both, ""), "front.shop");
    assert_eq!(cluster("tracingServiceName: APP_LABEL_AND_NAMESPACE", &both, ""), "web.shop");
}

#[test]
fn mistakes_name_the_variable() {
    let error = |name: &str, value: &str| {
        let env = Env::new(map(&[(name, value)]));
        node_of(&options(), &Surroundings { env, ..pod() }).unwrap_err()
    };
    assert_eq!(
        error("ISTIO_METAJSON_X", "5"),
        "environment variable ISTIO_METAJSON_X does not hold a JSON object"
    );
    assert_eq!(
        error("ISTIO_META_DNS_CAPTURE", "maybe"),
        "ISTIO_META_DNS_CAPTURE: \"maybe\" is not a boolean"
    );
}
