use std::collections::BTreeMap;

use serde_json::json;

use super::{Places, ProxyConfig, ProxyConfigError, effective};
use crate::Env;

fn with(mesh: &str, env: &Env, annotations: &[(&str, &str)]) -> Result<ProxyConfig, ProxyConfigError> {
    let annotations: BTreeMap<String, String> =
        annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    effective(&Places {
        mesh: (!mesh.is_empty()).then_some(("mesh.yaml", mesh)),
        env,
        annotations: &annotations,
        concurrency: 0,
        service_cluster: "istio-proxy",
    })
}

#[test]
fn nothing_said_is_istios_default() {
    let config = with("", &Env::default(), &[]).unwrap();
    assert_eq!(config.discovery_address, "istiod.istio-system.svc:15012");
    assert_eq!((config.admin_port, config.status_port, config.concurrency), (15000, 15020, 0));
    assert_eq!(config.drain_duration.as_secs(), 45);
    assert_eq!(config.termination_drain_duration.as_secs(), 5);
    assert!(config.stats.compression && config.mutual_tls);
    assert_eq!(config.said["statNameLength"], 189);
}

#[test]
fn later_places_win_field_by_field() {
    let mesh = "defaultConfig:\n  discoveryAddress: mesh:15010\n  drainDuration: 1s\n  concurrency: 2\n  proxyMetadata: {A: mesh, B: mesh, C: mesh}\n";
    let env = Env::from([("PROXY_CONFIG", "discoveryAddress: env:15010\nproxyMetadata: {B: env, C: env}")]);
    let note = ("proxy.istio.io/config", "drainDuration: 3s\nproxyMetadata: {C: note}");
    let config = with(mesh, &env, &[note]).unwrap();
    assert_eq!(config.discovery_address, "env:15010");
    assert_eq!(config.drain_duration.as_secs(), 3);
    assert_eq!(config.concurrency, 2);
    assert_eq!(json!(config.metadata), json!({"A": "mesh", "B": "env", "C": "note"}));
    assert_eq!(config.said["proxyMetadata"], json!({"A": "mesh", "B": "env", "C": "note"}));
}

#[test]
fn single_annotations_have_the_last_word() {
    let notes = [
        ("proxy.istio.io/config", "discoveryAddress: config:15010\nstatusPort: 1"),
        ("sidecar.istio.io/discoveryAddress", "annotation:15010"),
        ("status.sidecar.istio.io/port", "15099"),
    ];
    let config = with("", &Env::default(), &notes).unwrap();
    assert_eq!((config.discovery_address.as_str(), config.status_port), ("annotation:15010", 15099));
}

#[test]
fn protobufs_spellings_are_understood() {
    let env = Env::from([(
        "PROXY_CONFIG",
        "{status_port: \"0\", proxyAdminPort: 1, proxyStatsMatcher: {inclusionPrefixes: [a]}, statsCompression: false, concurrency: null}",
    )]);
    let config = with("", &env, &[]).unwrap();
    assert_eq!((config.status_port, config.admin_port), (0, 1));
    assert_eq!(config.stats.prefixes, ["a"]);
    assert!(!config.stats.compression);
}

#[test]
fn a_name_made_from_labels_replaces_a_given_one() {
    let env = Env::from([("PROXY_CONFIG", "tracingServiceName: CANONICAL_NAME_ONLY")]);
    let config = with("", &env, &[]).unwrap();
    assert_eq!(
        (config.service_cluster, config.tracing_service_name.as_deref()),
        (None, Some("CANONICAL_NAME_ONLY"))
    );
}

#[test]
fn threads_follow_the_container_unless_told() {
    let limit = ("ISTIO_CPU_LIMIT", "3");
    assert_eq!(with("", &Env::from([limit]), &[]).unwrap().concurrency, 3);
    let told = Env::from([limit, ("PROXY_CONFIG", "concurrency: 0")]);
    assert_eq!(with("", &told, &[]).unwrap().concurrency, 0);
    let old_flag = Places {
        mesh: None,
        env: &told,
        annotations: &BTreeMap::new(),
        concurrency: 5,
        service_cluster: "istio-proxy",
    };
    assert_eq!(effective(&old_flag).unwrap().concurrency, 5);
}

#[test]
fn mistakes_are_told_with_their_place() {
    let error = |mesh: &str, env: &str, note: &str| {
        let notes = [("proxy.istio.io/config", note)];
        with(mesh, &Env::from([("PROXY_CONFIG", env)]), &notes).unwrap_err().to_string()
    };
    assert!(error("defaultConfig:\n  a: [", "", "").starts_with("mesh.yaml:"));
    assert!(error("", "statusPort: 1\nx: [", "").starts_with("PROXY_CONFIG:"));
    assert!(error("", "", "x: [").starts_with("annotation proxy.istio.io/config:"));
    assert_eq!(error("", "5", ""), "PROXY_CONFIG: must be a map of proxy settings");
    assert_eq!(
        error("defaultConfig: {statusPort: many}", "", ""),
        "mesh.yaml: defaultConfig: statusPort: \"many\" is not a number in range"
    );
    assert_eq!(
        error("", "", "proxyStatsMatcher: {inclusionSuffixes: x}"),
        "annotation proxy.istio.io/config: proxyStatsMatcher.inclusionSuffixes: \"x\" is not a list of texts"
    );
    assert_eq!(
        error("", "tracing: {zipkin: {address: nowhere}}", ""),
        "PROXY_CONFIG: tracing.zipkin.address: \"nowhere\" is not host:port"
    );
    assert_eq!(
        error("", "envoyMetricsService: {address: 'a:1', tlsSettings: {mode: FULL}}", ""),
        "PROXY_CONFIG: envoyMetricsService.tlsSettings.mode: \"FULL\" is not DISABLE, SIMPLE, MUTUAL or ISTIO_MUTUAL"
    );
}

#[test]
fn services_without_an_address_are_not_called() {
    let env = Env::from([(
        "PROXY_CONFIG",
        "{tracing: {zipkin: {address: ''}}, statsdUdpAddress: '', envoyMetricsService: {tlsSettings: {mode: SIMPLE}}}",
    )]);
    let config = with("", &env, &[]).unwrap();
    assert_eq!((config.tracing, config.statsd, config.metrics_service), (None, None, None));
}
