//! The settings a proxy runs with: Istio's `ProxyConfig`, put together from all places where it may be written.

mod fields;
mod merge;
mod remote;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use pilot_base::Issue;
use serde_json::{Map, Value, json};

use crate::Env;
use fields::{Fields, WrongField};
pub(crate) use remote::{HostPort, Keepalive, Remote, Tls, TlsMode, Tracer, Tracing};

const ANNOTATION: &str = "proxy.istio.io/config";
const DISCOVERY_ANNOTATION: &str = "sidecar.istio.io/discoveryAddress";
const STATUS_PORT_ANNOTATION: &str = "status.sidecar.istio.io/port";
/// What Istio calls a proxy that nobody gave a name.
pub(crate) const DEFAULT_SERVICE_CLUSTER: &str = "istio-proxy";

/// What the bootstrap and the supervisor need to know, and in `said` everything else, for the node's metadata.
#[derive(Clone, Debug)]
pub(crate) struct ProxyConfig {
    pub(crate) said: Map<String, Value>,
    pub(crate) discovery_address: String,
    pub(crate) config_path: PathBuf,
    pub(crate) binary_path: PathBuf,
    pub(crate) custom_config_file: Option<PathBuf>,
    pub(crate) bootstrap_template: Option<String>,
    pub(crate) service_cluster: Option<String>,
    pub(crate) tracing_service_name: Option<String>,
    pub(crate) drain_duration: Duration,
    pub(crate) termination_drain_duration: Duration,
    pub(crate) admin_port: u16,
    /// 0: no status server.
    pub(crate) status_port: u16,
    /// 0: a thread for each processor.
    pub(crate) concurrency: u32,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) interception_mode: Option<String>,
    pub(crate) mutual_tls: bool,
    pub(crate) stats: StatsSettings,
    pub(crate) runtime_values: BTreeMap<String, String>,
    pub(crate) tracing: Option<Tracing>,
    pub(crate) statsd: Option<HostPort>,
    pub(crate) metrics_service: Option<Remote>,
    pub(crate) access_log_service: Option<Remote>,
    pub(crate) file_flush_interval: Option<Duration>,
    pub(crate) file_flush_min_size_kb: Option<u32>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct StatsSettings {
    pub(crate) compression: bool,
    pub(crate) extra_tags: Vec<String>,
    pub(crate) prefixes: Vec<String>,
    pub(crate) suffixes: Vec<String>,
    pub(crate) regexps: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyConfigError {
    /// A text is not YAML.
    #[error("{0}")]
    Yaml(Issue),
    /// A text is YAML, but not a set of fields.
    #[error("{place}: must be a map of proxy settings")]
    NotAMap { place: String },
    /// A field cannot be what was written.
    #[error("{place}: {path}: {message}")]
    Field { place: String, path: String, message: String },
}

/// Where settings are written, from the weakest to the strongest.
pub(crate) struct Places<'a> {
    /// Name and text of the mesh file.
    pub(crate) mesh: Option<(&'a str, &'a str)>,
    pub(crate) env: &'a Env,
    pub(crate) annotations: &'a BTreeMap<String, String>,
    /// The `--concurrency` and `--serviceCluster` flags of old installations.
    pub(crate) concurrency: u32,
    pub(crate) service_cluster: &'a str,
}

pub(crate) fn effective(places: &Places<'_>) -> Result<ProxyConfig, ProxyConfigError> {
    let mut said = defaults();
    if let Some((file, text)) = places.mesh {
        let mesh = read(text, file)?;
        let place = format!("{file}: defaultConfig");
        apply(&mut said, mesh.get("defaultConfig").cloned().unwrap_or(Value::Null), &place)?;
    }
    if let Some(text) = places.env.get("PROXY_CONFIG") {
        apply(&mut said, read(text, "PROXY_CONFIG")?, "PROXY_CONFIG")?;
    }
    let place = format!("annotation {ANNOTATION}");
    if let Some(text) = places.annotations.get(ANNOTATION) {
        apply(&mut said, read(text, &place)?, &place)?;
    }
    let flags = from_flags(&said, places);
    apply(&mut said, flags, "flags")?;
    for (annotation, field) in
        [(DISCOVERY_ANNOTATION, "discoveryAddress"), (STATUS_PORT_ANNOTATION, "statusPort")]
    {
        if let Some(value) = places.annotations.get(annotation) {
            apply(&mut said, json!({ field: value }), &format!("annotation {annotation}"))?;
        }
    }
    typed(said).map_err(|wrong| wrong.at("proxy configuration"))
}

fn defaults() -> Map<String, Value> {
    let defaults = json!({
        "configPath": "./etc/istio/proxy",
        "binaryPath": "/usr/local/bin/envoy",
        "serviceCluster": DEFAULT_SERVICE_CLUSTER,
        "drainDuration": "45s",
        "terminationDrainDuration": "5s",
        "proxyAdminPort": 15000,
        "statusPort": 15020,
        "statNameLength": 189,
        "controlPlaneAuthPolicy": "MUTUAL_TLS",
        "discoveryAddress": "istiod.istio-system.svc:15012",
    });
    merge::into_map(defaults).expect("the defaults are a map")
}

/// What is left to the command line and to the limits of the container.
fn from_flags(said: &Map<String, Value>, places: &Places<'_>) -> Value {
    let mut flags = Map::new();
    let limit = places.env.number::<u32>("ISTIO_CPU_LIMIT").filter(|limit| *limit > 0);
    if places.concurrency > 0 {
        flags.insert("concurrency".to_owned(), json!(places.concurrency));
    } else if let Some(limit) = limit.filter(|_| !said.contains_key("concurrency")) {
        flags.insert("concurrency".to_owned(), json!(limit));
    }
    if said.get("serviceCluster").and_then(Value::as_str) == Some("") {
        flags.insert("serviceCluster".to_owned(), json!(places.service_cluster));
    }
    Value::Object(flags)
}

fn read(text: &str, place: &str) -> Result<Value, ProxyConfigError> {
    pilot_config::read_value(text, place).map_err(ProxyConfigError::Yaml)
}

/// Each layer is checked when it is applied, so that a mistake is told with the place where it was made.
fn apply(said: &mut Map<String, Value>, layer: Value, place: &str) -> Result<(), ProxyConfigError> {
    if layer.is_null() {
        return Ok(());
    }
    let layer =
        merge::into_map(layer).ok_or_else(|| ProxyConfigError::NotAMap { place: place.to_owned() })?;
    merge::merge(said, layer);
    typed(said.clone()).map(|_| ()).map_err(|wrong| wrong.at(place))
}

impl WrongField {
    fn at(self, place: &str) -> ProxyConfigError {
        ProxyConfigError::Field { place: place.to_owned(), path: self.path, message: self.message }
    }
}

fn typed(said: Map<String, Value>) -> Result<ProxyConfig, WrongField> {
    let fields = Fields::new(&said);
    let matcher = fields.map("proxyStatsMatcher")?;
    let config = ProxyConfig {
        discovery_address: fields.text("discoveryAddress")?.unwrap_or_default(),
        config_path: fields.text("configPath")?.unwrap_or_default().into(),
        binary_path: fields.text("binaryPath")?.unwrap_or_default().into(),
        custom_config_file: fields.text("customConfigFile")?.map(PathBuf::from),
        bootstrap_template: fields.text("proxyBootstrapTemplatePath")?,
        service_cluster: fields.text("serviceCluster")?,
        tracing_service_name: fields.text("tracingServiceName")?,
        drain_duration: fields.span("drainDuration")?.unwrap_or_default(),
        termination_drain_duration: fields.span("terminationDrainDuration")?.unwrap_or_default(),
        admin_port: fields.number("proxyAdminPort")?.unwrap_or(15000),
        status_port: fields.number("statusPort")?.unwrap_or_default(),
        concurrency: fields.number("concurrency")?.unwrap_or_default(),
        metadata: fields.texts_by_key("proxyMetadata")?,
        interception_mode: fields.text("interceptionMode")?,
        mutual_tls: fields.text("controlPlaneAuthPolicy")?.as_deref() == Some("MUTUAL_TLS"),
        stats: StatsSettings {
            compression: fields.flag("statsCompression")?.unwrap_or(true),
            extra_tags: fields.texts("extraStatTags")?,
            prefixes: matcher.texts("inclusionPrefixes")?,
            suffixes: matcher.texts("inclusionSuffixes")?,
            regexps: matcher.texts("inclusionRegexps")?,
        },
        runtime_values: fields.texts_by_key("runtimeValues")?,
        tracing: remote::tracing(&fields)?,
        statsd: remote::address(&fields, "statsdUdpAddress")?,
        metrics_service: remote::service(&fields, "envoyMetricsService", Some("envoyMetricsServiceAddress"))?,
        access_log_service: remote::service(&fields, "envoyAccessLogService", None)?,
        file_flush_interval: fields.span("fileFlushInterval")?,
        file_flush_min_size_kb: fields.number("fileFlushMinSizeKb")?,
        said: Map::new(),
    };
    Ok(ProxyConfig { said, ..config })
}
