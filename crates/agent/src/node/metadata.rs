use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::{Identity, Locality, NodeOptions, locality};
use crate::proxy_config::ProxyConfig;
use crate::surroundings::Surroundings;
use crate::version::ISTIO_VERSION;
use pilot_base::parse_bool;

const META: &str = "ISTIO_META_";
const META_JSON: &str = "ISTIO_METAJSON_";
const LABELS_VARIABLE: &str = "ISTIO_METAJSON_LABELS";
/// Changes with each rollout, so nobody should select by it.
const UNSTABLE_LABEL: &str = "pod-template-hash";
/// Booleans that servers read as the words `"true"` and `"false"`.
const FLAGS: [&str; 9] = [
    "ENABLE_SELF_DISCOVERY",
    "DNS_CAPTURE",
    "DNS_AUTO_ALLOCATE",
    "ENABLE_HBONE",
    "DISABLE_HBONE_SEND",
    "INBOUND_LISTENER_EXACT_BALANCE",
    "OUTBOUND_LISTENER_EXACT_BALANCE",
    "EXIT_ON_ZERO_ACTIVE_CONNECTIONS",
    "METADATA_DISCOVERY",
];

#[derive(Debug, thiserror::Error)]
pub(crate) enum MetadataError {
    /// A variable that must hold JSON does not.
    #[error("environment variable {name} does not hold a JSON object")]
    Json { name: String, source: serde_json::Error },
    /// A word that servers read as a boolean is none.
    #[error("{META}{name}: {value} is not a boolean")]
    Flag { name: &'static str, value: Value },
}

/// The node's metadata while it is being put together. Names and forms are Istio's: numbers and booleans are mostly words,
/// lists are words with commas.
pub(super) struct Metadata {
    fields: Map<String, Value>,
    labels: BTreeMap<String, String>,
}

/// What users wrote: `ISTIO_META_*` of the proxy settings, over it the environment, over it `ISTIO_METAJSON_*`.
pub(super) fn build(config: &ProxyConfig, around: &Surroundings) -> Result<Metadata, MetadataError> {
    let mut fields = Map::new();
    let settings = config.metadata.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    for (name, value) in settings.chain(around.env.iter()) {
        if let Some(name) = name.strip_prefix(META) {
            fields.insert(name.to_owned(), json!(value));
        }
    }
    for (name, text) in around.env.iter().filter(|(name, _)| name.starts_with(META_JSON)) {
        // Also the keys of labels stand at the top, where patches for particular proxies look for them.
        fields.extend(json_object(name, text)?);
    }
    for name in FLAGS {
        if let Some(value) = fields.get_mut(name) {
            let word = value.as_bool().or_else(|| parse_bool(value.as_str()?).ok());
            let word = word.ok_or_else(|| MetadataError::Flag { name, value: value.clone() })?;
            *value = json!(word.to_string());
        }
    }
    let static_labels = match around.env.get(LABELS_VARIABLE) {
        Some(text) => words(json_object(LABELS_VARIABLE, text)?),
        None => BTreeMap::new(),
    };
    let mut metadata = Metadata { fields, labels: static_labels };
    metadata.add_pod(around);
    Ok(metadata)
}

fn json_object(name: &str, text: &str) -> Result<Map<String, Value>, MetadataError> {
    serde_json::from_str(text).map_err(|source| MetadataError::Json { name: name.to_owned(), source })
}

fn words(map: Map<String, Value>) -> BTreeMap<String, String> {
    let word = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    map.into_iter().map(|(key, value)| (key, word(value))).collect()
}

impl Metadata {
    pub(super) fn text(&self, field: &str) -> Option<&str> {
        self.fields.get(field)?.as_str().filter(|text| !text.is_empty())
    }

    pub(super) fn labels(&self) -> &BTreeMap<String, String> {
        &self.labels
    }

    fn set(&mut self, field: &str, value: impl Into<Value>) {
        self.fields.insert(field.to_owned(), value.into());
    }

    fn set_text(&mut self, field: &str, text: &str) {
        if !text.is_empty() {
            self.set(field, text);
        }
    }

    fn add_pod(&mut self, around: &Surroundings) {
        if !self.labels.is_empty() {
            self.set("STATIC_LABELS", json!(self.labels));
        }
        let pod = around.labels.iter().flatten().filter(|(key, _)| *key != UNSTABLE_LABEL);
        self.labels.extend(pod.map(|(key, value)| (key.clone(), value.clone())));
        let annotations = around.annotations.iter().map(|(key, value)| (key.clone(), json!(value)));
        match self.fields.get_mut("ANNOTATIONS") {
            Some(Value::Object(told)) => told.extend(annotations),
            _ if around.annotations.is_empty() => (),
            _ => self.set("ANNOTATIONS", annotations.collect::<Map<_, _>>()),
        }
    }

    pub(super) fn set_identity(&mut self, identity: &Identity, around: &Surroundings) {
        self.set_text("NAME", &identity.name);
        self.set_text("NAMESPACE", &identity.namespace);
        for (field, variable) in
            [("SERVICE_ACCOUNT", "SERVICE_ACCOUNT"), ("DNS_PROXY_ADDR", "DNS_PROXY_ADDR")]
        {
            self.set_text(field, around.env.get(variable).unwrap_or_default());
        }
        if self.text("ISTIO_VERSION").is_none() {
            self.set("ISTIO_VERSION", ISTIO_VERSION);
        }
    }

    pub(super) fn set_addresses(&mut self, addresses: &[IpAddr]) {
        let words: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        self.set("INSTANCE_IPS", words.join(","));
    }

    pub(super) fn set_options(&mut self, options: &NodeOptions, config: &ProxyConfig, around: &Surroundings) {
        let env = &around.env;
        if options.sts_port != 0 {
            self.set("STS_PORT", options.sts_port.to_string());
        }
        // These are numbers, and 0 is not told.
        let ports = [
            ("ENVOY_STATUS_PORT", options.status_port),
            ("ENVOY_PROMETHEUS_PORT", options.prometheus_port),
            ("ENVOY_SECURE_METRICS_PORT", options.secure_metrics_port),
            ("ENVOY_SECURE_MERGED_METRICS_PORT", options.secure_merged_metrics_port),
        ];
        for (field, port) in ports.into_iter().filter(|(_, port)| *port != 0) {
            self.set(field, port);
        }
        if env.flag("EXIT_ON_ZERO_ACTIVE_CONNECTIONS") == Some(true) {
            self.set("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "true");
        }
        if env.flag("ENVOY_SKIP_DEPRECATED_LOGS").unwrap_or(true) {
            self.set("ENVOY_SKIP_DEPRECATED_LOGS", "true");
        }
        let discovery = match env.flag("PEER_METADATA_DISCOVERY") {
            Some(wanted) => wanted,
            None => self.text("ENABLE_HBONE") == Some("true"),
        };
        self.set("METADATA_DISCOVERY", discovery.to_string());
        self.set(
            "WORKLOAD_IDENTITY_SOCKET_FILE",
            env.get("WORKLOAD_IDENTITY_SOCKET_FILE").unwrap_or("socket"),
        );
        self.set_text("OUTLIER_LOG_PATH", &options.outlier_log_path);
        if self.text("INTERCEPTION_MODE").is_none() {
            self.set_text("INTERCEPTION_MODE", config.interception_mode.as_deref().unwrap_or_default());
        }
        if config.mutual_tls {
            self.set("PILOT_SAN", json!([server_name(&config.discovery_address)]));
        }
        self.set("PROXY_CONFIG", config.said.clone());
    }

    /// The locality that the labels tell. It travels on in one form, whichever way it was written.
    pub(super) fn take_locality(&mut self) -> Locality {
        let Some(text) = locality::from_labels(&self.labels) else { return Locality::default() };
        let locality = Locality::parse(&text);
        if let Some(Value::Object(told)) = self.fields.get_mut("STATIC_LABELS")
            && let Some(label) = told.get_mut(locality::LABEL)
        {
            *label = json!(text);
        }
        self.labels.insert(locality::LABEL.to_owned(), text);
        locality
    }

    pub(super) fn into_json(mut self) -> Map<String, Value> {
        if !self.labels.is_empty() {
            self.set("LABELS", json!(self.labels));
        }
        self.fields
    }
}

/// The name in the server's certificate. A server on this machine has the certificate of one in a cluster.
fn server_name(address: &str) -> &str {
    match address.rsplit_once(':').map_or(address, |(host, _)| host) {
        "localhost" => "istiod.istio-system.svc",
        host => host,
    }
}
