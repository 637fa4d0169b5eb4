//! Istio's own examples of bootstraps. They come with Istio's module at test time; `PILOT_ISTIO_MODULE` says where it
//! lies. What depends on the machine is masked: the node's name, the version, paths, and who the server is.

mod text_format;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Map, Value, json};

use super::{BootstrapOptions, LogFormat, Stack, XdsProtocol, build, file, template, write_text};
use crate::Env;
use crate::node::{Node, NodeOptions, ProxyType};
use crate::proxy_config::{Places, ProxyConfig, effective};
use crate::surroundings::Surroundings;

/// What an example was made with, beside its file of settings.
#[derive(Default)]
struct Case {
    name: &'static str,
    settings: Option<&'static str>,
    variables: &'static [(&'static str, &'static str)],
    annotations: &'static [(&'static str, &'static str)],
    metadata: &'static [(&'static str, &'static str)],
    fips: bool,
    secure_ports: [u16; 2],
}

const POD: &[(&str, &str)] = &[
    ("ISTIO_META_ISTIO_PROXY_SHA", "istio-proxy:sha"),
    ("ISTIO_META_INTERCEPTION_MODE", "REDIRECT"),
    ("ISTIO_META_ISTIO_VERSION", "release-3.1"),
    ("ISTIO_META_POD_NAME", "svc-0-0-0-6944fb884d-4pgx8"),
    ("POD_NAME", "svc-0-0-0-6944fb884d-4pgx8"),
    ("POD_NAMESPACE", "test"),
    (
        "ISTIO_METAJSON_LABELS",
        r#"{"version": "v1alpha1", "app": "test", "istio-locality":"regionA.zoneB.sub_zoneC"}"#,
    ),
];
const INSECURE: &[(&str, &str)] = &[("istio.io/insecurepath", r#"{"paths":["/metrics","/live"]}"#)];
const STATS: &[(&str, &str)] = &[
    ("sidecar.istio.io/statsInclusionPrefixes", "prefix1,prefix2,http.{pod_ip}_"),
    (
        "sidecar.istio.io/statsInclusionSuffixes",
        "suffix1,suffix2,upstream_rq_1xx,upstream_rq_2xx,upstream_rq_3xx,upstream_rq_4xx,upstream_rq_5xx,upstream_rq_time,upstream_cx_tx_bytes_total,upstream_cx_rx_bytes_total,upstream_cx_total,downstream_rq_1xx,downstream_rq_2xx,downstream_rq_3xx,downstream_rq_4xx,downstream_rq_5xx,downstream_rq_time,downstream_cx_tx_bytes_total,downstream_cx_rx_bytes_total,downstream_cx_total",
    ),
    (
        "sidecar.istio.io/statsInclusionRegexps",
        r"http.[0-9]*\.[0-9]*\.[0-9]*\.[0-9]*_8080.downstream_rq_time",
    ),
    ("sidecar.istio.io/extraStatTags", "dlp_status,dlp_error"),
    (
        "sidecar.istio.io/statsHistogramBuckets",
        r#"{"istio":[1,5,10,50,100,500,1000,5000,10000],"envoy":[1,5,10,25,50,100,250,500,1000,2500,5000,10000]}"#,
    ),
];
const FLUSH: &str = "sidecar.istio.io/statsFlushInterval";
const EVICTION: &str = "sidecar.istio.io/statsEvictionInterval";
const MOST_CONNECTIONS: &str = "ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS";

fn cases() -> Vec<Case> {
    let plain = |name| Case { name, ..Case::default() };
    let noted = |name, annotations| Case { name, annotations, ..Case::default() };
    let mut all: Vec<Case> = [
        "xdsproxy",
        "auth",
        "authsds",
        "default",
        "explicit_internal_address",
        "tracing_lightstep",
        "tracing_zipkin",
        "tracing_datadog",
        "metrics_no_statsd",
        "tracing_none",
        "all",
        "tracing_tls",
        "tracing_tls_custom_sni",
        "global_downstream_max_connections_runtime",
        "stats_compression",
    ]
    .map(plain)
    .into();
    all.extend([
        Case { variables: &[("ISTIO_META_ENABLE_HBONE", "true")], ..plain("ambient") },
        Case { variables: POD, ..noted("running", INSECURE) },
        Case { variables: POD, ..noted("runningsds", INSECURE) },
        noted("stats_inclusion", STATS),
        Case {
            variables: &[(
                "ISTIO_META_LOAD_STATS_CONFIG_JSON",
                r#"{"api_type": "GRPC", "transport_api_version": "V3"}"#,
            )],
            fips: true,
            ..plain("lrs")
        },
        noted("stats_flush_interval", &[(FLUSH, "10s")]),
        noted("stats_eviction_interval", &[(EVICTION, "10s")]),
        noted("invalid_stats_eviction_interval", &[(EVICTION, "11s")]),
        noted("stats_interval", &[(FLUSH, "10s"), (EVICTION, "20s")]),
        Case { metadata: &[(MOST_CONNECTIONS, "10000")], ..plain("global_downstream_max_connections_meta") },
        Case { metadata: &[(MOST_CONNECTIONS, "20000")], ..plain("global_downstream_max_connections_both") },
        Case { settings: Some("default"), secure_ports: [15091, 15092], ..plain("secure_metrics") },
    ]);
    all
}

impl Case {
    fn inputs(&self, folder: &Path) -> (Node, ProxyConfig, BootstrapOptions) {
        let settings = self.settings.unwrap_or(self.name);
        let text = std::fs::read_to_string(folder.join(format!("{settings}.proxycfg"))).unwrap();
        let mut config = text_format::parse(&text);
        config.insert("configPath".to_owned(), json!(format!("/tmp/bootstrap/{settings}")));
        config.insert("customConfigFile".to_owned(), json!("envoy_bootstrap.json"));
        config.entry("statusPort").or_insert(json!(15020));
        config.insert("discoveryAddress".to_owned(), json!("unix:/tmp/XDS"));
        if !self.metadata.is_empty() {
            config.insert(
                "proxyMetadata".to_owned(),
                json!(BTreeMap::from_iter(self.metadata.iter().copied())),
            );
        }
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let annotations: BTreeMap<String, String> = self.annotations.iter().map(owned).collect();
        let mut variables: BTreeMap<String, String> = self.variables.iter().map(owned).collect();
        variables.insert("PROXY_CONFIG".to_owned(), Value::Object(config).to_string());
        variables.insert("WORKLOAD_IDENTITY_SOCKET_FILE".to_owned(), "test.sock".to_owned());
        variables.insert("ISTIO_METAJSON_ANNOTATIONS".to_owned(), json!(annotations).to_string());
        self.inputs_with(&Surroundings {
            env: Env::new(variables),
            annotations,
            addresses: ["10.3.3.3", "10.4.4.4", "10.5.5.5", "10.6.6.6"]
                .map(|ip| ip.parse().unwrap())
                .to_vec(),
            ..Surroundings::default()
        })
    }

    fn build(&self, folder: &Path) -> Value {
        let (node, config, options) = self.inputs(folder);
        // The examples were made with one socket for all of them.
        let text = build(&node, &config, &options).unwrap().to_string();
        let path = config.config_path.display().to_string();
        serde_json::from_str(&text.replace(&format!("{path}/XDS"), "/tmp/XDS")).unwrap()
    }

    fn inputs_with(&self, around: &Surroundings) -> (Node, ProxyConfig, BootstrapOptions) {
        let places = Places {
            mesh: None,
            env: &around.env,
            annotations: &BTreeMap::new(),
            concurrency: 0,
            service_cluster: "istio-proxy",
        };
        let config = effective(&places).unwrap();
        let log = "/dev/stdout".to_owned();
        let [secure_metrics_port, secure_merged_metrics_port] = self.secure_ports;
        let node_options = NodeOptions {
            proxy_type: ProxyType::Sidecar,
            domain: String::new(),
            sts_port: 0,
            outlier_log_path: log.clone(),
            status_port: 15021,
            prometheus_port: 15090,
            secure_metrics_port,
            secure_merged_metrics_port,
        };
        let options = BootstrapOptions {
            protocol: XdsProtocol::Delta,
            log_format: LogFormat::Text,
            stack: Stack::Single,
            outlier_log_path: log,
            status_port: 15021,
            prometheus_port: 15090,
            secure_metrics_port,
            secure_merged_metrics_port,
            host_ip: None,
            fips: self.fips,
            keeps_fragments: false,
            probes_with_proxy_protocol: false,
            counts_connections: false,
        };
        let node = Node::new(&node_options, &config, around).unwrap();
        (node, config, options)
    }
}

/// What both sides are compared without.
fn masked(bootstrap: &Value, golden: &Value) -> Value {
    // A node of ours always has a namespace, which becomes part of its name.
    let text = bootstrap.to_string().replace("istio-proxy.default", "istio-proxy");
    let token = "/lightstep_access_token.txt";
    let text =
        text.replace(&format!("/tmp/bootstrap/tracing_lightstep{token}"), &format!("/test-path{token}"));
    let mut value: Value = serde_json::from_str(&text).unwrap();
    value["node"]["id"] = golden["node"]["id"].clone();
    let (own, told) = (value["node"]["metadata"].as_object_mut().unwrap(), &golden["node"]["metadata"]);
    for field in ["PILOT_SAN", "ISTIO_VERSION"] {
        own.insert(field.to_owned(), told[field].clone());
    }
    for field in ["NAME", "NAMESPACE", "ENVOY_SKIP_DEPRECATED_LOGS", "ANNOTATIONS"] {
        if told.get(field).is_none() {
            own.remove(field);
        }
    }
    let (own, told) = (own["PROXY_CONFIG"].as_object_mut().unwrap(), &told["PROXY_CONFIG"]);
    own.insert("discoveryAddress".to_owned(), told["discoveryAddress"].clone());
    // Defaults of ours that the examples were made without.
    own.retain(|field, _| told.get(field).is_some());
    plain(value)
}

/// Without what protobuf takes for nothing, and with numbers in one form.
fn plain(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let told = fields.into_iter().filter(|(key, value)| !(key == "protocol" && value == "TCP"));
            Value::Object(told.map(|(key, value)| (key, plain(value))).collect::<Map<_, _>>())
        }
        Value::Array(items) => items.into_iter().map(plain).collect(),
        Value::Number(number) => json!(number.as_f64()),
        other => other,
    }
}

/// Paths at which two values differ.
fn differences(path: &str, golden: &Value, own: &Value, found: &mut Vec<String>) {
    match (golden, own) {
        (Value::Object(golden), Value::Object(own)) => {
            for key in golden.keys().chain(own.keys().filter(|key| !golden.contains_key(*key))) {
                let null = Value::Null;
                let (golden, own) = (golden.get(key).unwrap_or(&null), own.get(key).unwrap_or(&null));
                differences(&format!("{path}.{key}"), golden, own, found);
            }
        }
        (Value::Array(golden), Value::Array(own)) if golden.len() == own.len() => {
            for (at, (golden, own)) in golden.iter().zip(own).enumerate() {
                differences(&format!("{path}[{at}]"), golden, own, found);
            }
        }
        (golden, own) if golden == own => (),
        (golden, own) => found.push(format!("{path}: {golden} is {own}")),
    }
}

#[allow(clippy::disallowed_methods, reason = "tests are told what the machine has by its environment")]
fn variable(name: &str, otherwise: &str) -> Option<PathBuf> {
    let found = std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let required = std::env::var_os("PILOT_REQUIRE_ALL").is_some_and(|value| !value.is_empty());
    assert!(found.is_some() || !required, "{otherwise}");
    if found.is_none() {
        eprintln!("skipped: {otherwise}");
    }
    found
}

fn folder() -> Option<PathBuf> {
    let module = variable("PILOT_ISTIO_MODULE", "Istio's module is not there; `make corpora` gets it")?;
    Some(module.join("pkg/bootstrap/testdata"))
}

#[test]
fn bootstraps_are_istios() {
    let Some(folder) = folder() else { return };
    let (mut wrong, cases) = (Vec::new(), cases());
    for case in &cases {
        let text = std::fs::read_to_string(folder.join(format!("{}_golden.json", case.name))).unwrap();
        let golden: Value = serde_json::from_str(&text).unwrap();
        let mut found = Vec::new();
        differences("", &plain(golden.clone()), &masked(&case.build(&folder), &golden), &mut found);
        if !found.is_empty() {
            wrong.push(format!("{}:\n  {}", case.name, found.join("\n  ")));
        }
    }
    assert_eq!(cases.len(), 27);
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Istio's own template, which comes with its module as well, with our data.
#[test]
fn istios_template_gives_istios_bootstraps() {
    let Some(folder) = folder() else { return };
    let stock = folder.join("../../../tools/packaging/common/envoy_bootstrap.json");
    let stock = std::fs::read_to_string(stock).unwrap();
    let (mut wrong, cases) = (Vec::new(), cases());
    for case in &cases {
        let text = std::fs::read_to_string(folder.join(format!("{}_golden.json", case.name))).unwrap();
        let golden: Value = serde_json::from_str(&text).unwrap();
        let (node, config, options) = case.inputs(&folder);
        let rendered = template::rendered(&stock, &node, &config, &options).unwrap();
        let path = config.config_path.display().to_string();
        let rendered = rendered.replace(&format!("{path}/XDS"), "/tmp/XDS");
        let own: Value =
            serde_json::from_str(&rendered).unwrap_or_else(|error| panic!("{error}: {rendered}"));
        let mut found = Vec::new();
        differences("", &plain(golden.clone()), &masked(&own, &golden), &mut found);
        if !found.is_empty() {
            wrong.push(format!("{}:\n  {}", case.name, found.join("\n  ")));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Only Istio's own Envoy, or an older one, has what these ask for.
const NOT_IN_A_STOCK_ENVOY: [(&str, &str); 2] =
    [("ambient", "istio.workload.BootstrapExtension"), ("tracing_lightstep", "envoy.tracers.lightstep")];

#[test]
fn a_stock_envoy_accepts_the_bootstraps() {
    let (Some(folder), Some(envoy)) = (folder(), variable("PILOT_ENVOY", "PILOT_ENVOY must name an Envoy"))
    else {
        return;
    };
    let scratch = tempfile::tempdir().unwrap();
    for case in cases() {
        let file = file(&scratch.path().join(case.name));
        write_text(&file, &case.build(&folder).to_string()).unwrap();
        let output = Command::new(&envoy)
            .args(["--mode", "validate", "--disable-hot-restart", "-l", "error", "-c"])
            .arg(&file)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match NOT_IN_A_STOCK_ENVOY.iter().find(|(name, _)| *name == case.name) {
            None => assert!(output.status.success(), "{}: {said}", case.name),
            Some((_, what)) => {
                assert!(!output.status.success() && said.contains(what), "{}: {said}", case.name);
            }
        }
    }
}
