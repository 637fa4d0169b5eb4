use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{BootstrapOptions, LogFormat, Stack, XdsProtocol, build, file, write_text};
use crate::Env;
use crate::node::{Node, NodeOptions, ProxyType};
use crate::proxy_config::{Places, effective};
use crate::surroundings::Surroundings;

fn options() -> BootstrapOptions {
    BootstrapOptions {
        protocol: XdsProtocol::Delta,
        log_format: LogFormat::Text,
        stack: Stack::Single,
        outlier_log_path: String::new(),
        status_port: 15021,
        prometheus_port: 15090,
        secure_metrics_port: 0,
        secure_merged_metrics_port: 0,
        host_ip: None,
        fips: false,
        keeps_fragments: false,
        probes_with_proxy_protocol: false,
        counts_connections: false,
    }
}

fn bootstrap(
    config: &str,
    annotations: &[(&str, &str)],
    options: &BootstrapOptions,
) -> Result<Value, String> {
    let around = Surroundings {
        env: Env::from([("PROXY_CONFIG", config), ("POD_NAMESPACE", "shop"), ("INSTANCE_IP", "10.0.0.7")]),
        annotations: annotations
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect::<BTreeMap<_, _>>(),
        addresses: vec!["fd00::7".parse().unwrap()],
        ..Surroundings::default()
    };
    let places = Places {
        mesh: None,
        env: &around.env,
        annotations: &around.annotations,
        concurrency: 0,
        service_cluster: "istio-proxy",
    };
    let config = effective(&places).unwrap();
    let node_options = NodeOptions {
        proxy_type: ProxyType::Sidecar,
        domain: String::new(),
        sts_port: 0,
        outlier_log_path: String::new(),
        status_port: options.status_port,
        prometheus_port: options.prometheus_port,
        secure_metrics_port: options.secure_metrics_port,
        secure_merged_metrics_port: options.secure_merged_metrics_port,
    };
    let node = Node::new(&node_options, &config, &around).unwrap();
    build(&node, &config, options).map_err(|error| error.to_string())
}

const PLAIN: &str = "{discoveryAddress: 'pilot:15010'}";

fn named<'a>(list: &'a Value, name: &str) -> Option<&'a Value> {
    list.as_array().unwrap().iter().find(|item| item["name"] == name)
}

#[test]
fn envoy_asks_the_agent_for_everything() {
    let it = bootstrap(PLAIN, &[], &options()).unwrap();
    assert_eq!(it["dynamic_resources"]["ads_config"]["api_type"], "DELTA_GRPC");
    assert_eq!(it["dynamic_resources"]["cds_config"]["initial_fetch_timeout"], "0s");
    let xds = named(&it["static_resources"]["clusters"], "xds-grpc").unwrap();
    let endpoint = &xds["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"];
    assert_eq!(endpoint["address"]["pipe"]["path"], "./etc/istio/proxy/XDS", "the agent's socket");
    let whole = BootstrapOptions { protocol: XdsProtocol::StateOfTheWorld, ..options() };
    let it = bootstrap(PLAIN, &[], &whole).unwrap();
    assert_eq!(it["dynamic_resources"]["ads_config"]["api_type"], "GRPC");
}

#[test]
fn doors_stand_where_istio_has_them() {
    let it = bootstrap(PLAIN, &[], &options()).unwrap();
    let listeners = &it["static_resources"]["listeners"];
    assert!(named(listeners, "0.0.0.0_15090").is_some() && named(listeners, "0.0.0.0_15021").is_some());
    assert_eq!(it["admin"]["address"]["socket_address"]["address"], "127.0.0.1");
    let dual = BootstrapOptions { stack: Stack::Dual, ..options() };
    let it = bootstrap(PLAIN, &[], &dual).unwrap();
    let door = named(&it["static_resources"]["listeners"], "0.0.0.0_15021").unwrap();
    assert_eq!(door["additional_addresses"][0]["address"]["socket_address"]["address"], "::");
}

#[test]
fn port_zero_is_no_door() {
    let none = BootstrapOptions { status_port: 0, prometheus_port: 0, ..options() };
    let it = bootstrap(PLAIN, &[], &none).unwrap();
    assert_eq!(it["static_resources"]["listeners"], json!([]));
    let it = bootstrap("{discoveryAddress: 'pilot:15010', statusPort: 0}", &[], &options()).unwrap();
    assert!(named(&it["static_resources"]["listeners"], "0.0.0.0_15021").is_none());
    assert!(named(&it["static_resources"]["clusters"], "agent").is_none());
}

#[test]
fn statistics_follow_annotations_and_settings() {
    let notes = [
        ("sidecar.istio.io/extraStatTags", "colour,shape"),
        ("sidecar.istio.io/statsInclusionPrefixes", "http.{pod_ip}_,x"),
        ("sidecar.istio.io/statsFlushInterval", "1m"),
        ("sidecar.istio.io/statsHistogramBuckets", r#"{"istiocustom": [1, 5.5]}"#),
    ];
    let config = "{discoveryAddress: 'pilot:15010', extraStatTags: [colour], proxyStatsMatcher: {inclusionPrefixes: [unused], inclusionSuffixes: [used]}}";
    let counting = BootstrapOptions { counts_connections: true, ..options() };
    let it = bootstrap(config, &notes, &counting).unwrap();
    let tags = it["stats_config"]["stats_tags"].as_array().unwrap();
    assert_eq!(tags.iter().filter(|tag| tag["tag_name"] == "colour").count(), 1);
    let patterns = it["stats_config"]["stats_matcher"]["inclusion_list"]["patterns"].as_array().unwrap();
    let has = |pattern: Value| patterns.contains(&pattern);
    assert!(has(json!({"prefix": "http.10.0.0.7_"})) && has(json!({"prefix": "http.fd00::7_"})));
    assert!(
        has(json!({"prefix": "server"}))
            && has(json!({"suffix": "used"}))
            && !has(json!({"prefix": "unused"}))
    );
    assert!(has(json!({"suffix": "downstream_cx_active"})));
    assert_eq!(it["stats_flush_interval"], "60s");
    assert_eq!(
        it["stats_config"]["histogram_bucket_settings"],
        json!([{"match": {"prefix": "istiocustom"}, "buckets": [1.0, 5.5]}])
    );
    let error =
        bootstrap(PLAIN, &[("sidecar.istio.io/statsFlushInterval", "often")], &options()).unwrap_err();
    assert_eq!(
        error,
        "annotation sidecar.istio.io/statsFlushInterval: \"often\" is not a duration such as 5s"
    );
}

#[test]
fn runtime_switches_can_be_changed_and_taken_away() {
    let config = "{discoveryAddress: 'p:1', runtimeValues: {a: 'true', b: '7', re2.max_program_size.error_level: '', overload.global_downstream_max_connections: '50'}}";
    let it = bootstrap(config, &[], &options()).unwrap();
    let flags = &it["layered_runtime"]["layers"][0]["static_layer"];
    assert_eq!((&flags["a"], &flags["b"]), (&json!(true), &json!("7")));
    assert!(flags.get("re2.max_program_size.error_level").is_none());
    let limit = &it["overload_manager"]["resource_monitors"][0]["typed_config"];
    assert_eq!(limit["max_active_downstream_connections"], 50);
}

#[test]
fn services_of_envoys_own_are_called_as_the_settings_say() {
    let config = "{discoveryAddress: 'p:1', tracing: {datadog: {address: '$(HOST_IP):8126'}, tls_settings: {mode: ISTIO_MUTUAL, subjectAltNames: [a]}}, envoyMetricsServiceAddress: '[fd00::9]:1', envoyAccessLogService: {address: 'log:2', tlsSettings: {mode: SIMPLE}, tcpKeepalive: {probes: 3, time: 10s}}}";
    let here = BootstrapOptions { host_ip: Some("10.9.9.9".to_owned()), ..options() };
    let it = bootstrap(config, &[], &here).unwrap();
    let clusters = &it["static_resources"]["clusters"];
    let address = |name: &str| {
        let endpoint = &named(clusters, name).unwrap()["load_assignment"]["endpoints"][0]["lb_endpoints"][0];
        endpoint["endpoint"]["address"]["socket_address"].clone()
    };
    assert_eq!(address("datadog_agent"), json!({"address": "10.9.9.9", "port_value": 8126}));
    assert_eq!(address("envoy_metrics_service"), json!({"address": "fd00::9", "port_value": 1}));
    let tracer = &named(clusters, "datadog_agent").unwrap()["transport_socket"]["typed_config"];
    assert_eq!(tracer["sni"], "tracer");
    let common = &tracer["common_tls_context"];
    assert_eq!(common["tls_certificate_sds_secret_configs"][0]["name"], "default");
    assert!(common.get("alpn_protocols").is_none());
    let log = named(clusters, "envoy_accesslog_service").unwrap();
    assert_eq!(
        log["upstream_connection_options"],
        json!({"tcp_keepalive": {"keepalive_probes": 3, "keepalive_time": 10}})
    );
    assert_eq!(it["stats_sinks"].as_array().unwrap().len(), 1);
}

#[test]
fn metadata_asks_for_more() {
    let config = "{discoveryAddress: 'p:1', proxyMetadata: {ISTIO_META_ENABLE_SELF_DISCOVERY: 'true', ISTIO_META_file-credential: 'true'}}";
    let it = bootstrap(config, &[], &options()).unwrap();
    let clusters = &it["static_resources"]["clusters"];
    assert_eq!(named(clusters, "local_cluster").unwrap()["type"], "EDS");
    assert_eq!(it["cluster_manager"]["local_cluster_name"], "local_cluster");
    assert!(named(clusters, "sds-files-grpc").is_some());
    let config = "{discoveryAddress: 'p:1', proxyMetadata: {ISTIO_META_LOAD_STATS_CONFIG_JSON: '{'}}";
    let error = bootstrap(config, &[], &options()).unwrap_err();
    assert_eq!(error, "ISTIO_META_LOAD_STATS_CONFIG_JSON: \"{\" is not JSON");
    let probes = BootstrapOptions { probes_with_proxy_protocol: true, keeps_fragments: true, ..options() };
    let it = bootstrap(PLAIN, &[], &probes).unwrap();
    let door = named(&it["static_resources"]["listeners"], "0.0.0.0_15021").unwrap();
    assert_eq!(door["listener_filters"][0]["name"], "envoy.listener.proxy_protocol");
    let flag = "envoy.reloadable_features.http_strip_fragment_from_path_unsafe_if_disabled";
    assert_eq!(it["layered_runtime"]["layers"][0]["static_layer"][flag], "false");
}

#[test]
fn the_file_is_whole_or_not_there() {
    let directory = tempfile::tempdir().unwrap();
    let deep = directory.path().join("a/b");
    let path = file(&deep);
    assert_eq!(path, deep.join("envoy-rev.json"));
    write_text(&path, "old").unwrap();
    write_text(&path, "new").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
    assert_eq!(std::fs::read_dir(&deep).unwrap().count(), 1);
    let error = write_text(&path.join("below/it"), "").unwrap_err().to_string();
    assert!(error.starts_with("cannot create directory"), "{error}");
    // A directory cannot be replaced by a file, and the draft does not stay.
    let error = write_text(&deep, "").unwrap_err().to_string();
    assert!(error.contains("must be writable"), "{error}");
    assert_eq!(std::fs::read_dir(directory.path().join("a")).unwrap().count(), 1);
}
