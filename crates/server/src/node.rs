//! How a proxy introduces itself: the node of its first request.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use pilot_base::{Labels, Name};
use pilot_envoy_api::envoy::config::core::v3::Node;
use pilot_model::{CertificateFiles, Interception, Locality, Proxy, ProxyType, SecretAccess, Version};
use prost_types::value::Kind;
use prost_types::{Struct, Value};

/// Why a node is not accepted; the text reaches the proxy's log.
#[derive(thiserror::Error, PartialEq, Eq, Debug)]
pub(crate) enum NodeError {
    /// There is no node, or it has no id.
    #[error("missing node information")]
    Missing,
    #[error("node id {0:?} is not of the form type~ip~pod.namespace~domain")]
    Id(String),
    #[error("node type {0:?} is not served: use sidecar or router")]
    Type(String),
    #[error("node {0:?} has no valid address, neither in its id nor in INSTANCE_IPS")]
    Address(String),
    #[error("node metadata {0}: {1}")]
    Metadata(&'static str, String),
}

pub(crate) fn proxy(node: Option<&Node>) -> Result<Proxy, NodeError> {
    let node = node.filter(|node| !node.id.is_empty()).ok_or(NodeError::Missing)?;
    let parts: Vec<&str> = node.id.split('~').collect();
    let [kind, ip, name, domain] = parts[..] else { return Err(NodeError::Id(shorten(&node.id))) };
    let kind = match kind {
        "sidecar" => ProxyType::Sidecar,
        "router" => ProxyType::Router,
        other => return Err(NodeError::Type(shorten(other))),
    };
    let meta = Metadata(node.metadata.as_ref());
    let config = meta.settings("PROXY_CONFIG")?;
    let labels = meta.labels()?;
    Ok(Proxy {
        kind,
        name: name.into(),
        ips: addresses(&meta.text("INSTANCE_IPS"), ip)
            .ok_or_else(|| NodeError::Address(shorten(&node.id)))?,
        namespace: namespace(&meta.text("NAMESPACE"), domain),
        dns_domain: domain.into(),
        locality: locality(&labels, node),
        labels,
        static_labels: meta.some_labels(&["STATIC_LABELS"])?,
        pod_ports: meta.pod_ports()?,
        cluster: meta.name("CLUSTER_ID"),
        network: meta.name("NETWORK"),
        network_view: network_view(&meta.text("REQUESTED_NETWORK_VIEW")),
        mesh_id: meta.name("MESH_ID"),
        node: meta.name("NODE_NAME"),
        service_account: meta.name("SERVICE_ACCOUNT"),
        interception: match meta.text("INTERCEPTION_MODE").as_str() {
            "NONE" => Interception::None,
            "TPROXY" => Interception::Tproxy,
            _ => Interception::Redirect,
        },
        version: Version::parse(&meta.text("ISTIO_VERSION")),
        version_text: meta.name("ISTIO_VERSION"),
        proxyless: meta.text("GENERATOR") == "grpc",
        // Not the node says that, but the stream it comes on.
        takes_changes: false,
        metadata: meta.words(),
        http10: meta.text("HTTP10") == "1",
        idle_timeout: meta.span("IDLE_TIMEOUT")?,
        http_proxy_port: meta.port("HTTP_PROXY_PORT")?,
        inbound_exact_balance: meta.is_true("INBOUND_LISTENER_EXACT_BALANCE"),
        outbound_exact_balance: meta.is_true("OUTBOUND_LISTENER_EXACT_BALANCE"),
        unprivileged: meta.is_true("UNPRIVILEGED_POD"),
        external_secrets: meta.text("credential") == "true",
        own_ports: [meta.port("ENVOY_STATUS_PORT")?, meta.port("ENVOY_PROMETHEUS_PORT")?]
            .into_iter()
            .flatten()
            .collect(),
        server_files: meta.files("TLS_SERVER_CERT_CHAIN", "TLS_SERVER_KEY", "TLS_SERVER_ROOT_CERT"),
        client_files: meta.files("TLS_CLIENT_CERT_CHAIN", "TLS_CLIENT_KEY", "TLS_CLIENT_ROOT_CERT"),
        dns_capture: meta.is_true("DNS_CAPTURE"),
        dns_auto_allocate: meta.is_true("DNS_AUTO_ALLOCATE"),
        dns_proxy: dns_proxy(&meta.text("DNS_PROXY_ADDR")),
        service_cluster: node.cluster.as_str().into(),
        otel_annotation: meta.annotation("resource.opentelemetry.io/service.name"),
        workload_name: meta.name("WORKLOAD_NAME"),
        container: Some(meta.text("APP_CONTAINERS"))
            .filter(|containers| !containers.contains(','))
            .unwrap_or_default()
            .into(),
        config,
        // What it says of itself proves nothing.
        secrets: SecretAccess::None,
    })
}

/// Enough of what somebody sent to recognise it in a log.
fn shorten(text: &str) -> String {
    const LONGEST: usize = 128;
    if text.len() <= LONGEST {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(LONGEST).collect();
    short.push('…');
    short
}

/// All of `INSTANCE_IPS` if all are valid, else the one in the id.
fn addresses(instance_ips: &str, id: &str) -> Option<Vec<IpAddr>> {
    let all: Option<Vec<IpAddr>> = instance_ips.split(',').map(|ip| ip.trim().parse().ok()).collect();
    all.or_else(|| id.parse().ok().map(|ip| vec![ip]))
}

/// In one order, so that proxies that see the same are sent the same.
fn network_view(text: &str) -> Vec<Name> {
    let named: BTreeSet<Name> =
        text.split(',').filter(|network| !network.is_empty()).map(Name::new).collect();
    named.into_iter().collect()
}

/// What the proxy says, else the first part of a domain that has several.
fn namespace(said: &str, domain: &str) -> Name {
    match domain.split_once('.') {
        _ if !said.is_empty() => said.into(),
        Some((first, _)) => first.into(),
        None => Name::empty(),
    }
}

/// Where the agent answers DNS queries; its usual place, if it does not say.
fn dns_proxy(address: &str) -> (Name, u16) {
    const PORT: u16 = 15053;
    let (host, port) = address.rsplit_once(':').unwrap_or(("localhost", ""));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = if host == "localhost" { "127.0.0.1" } else { host };
    (Name::new(host), port.parse().unwrap_or(PORT))
}

/// From labels, else what Envoy was told.
fn locality(labels: &Labels, node: &Node) -> Locality {
    let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
    let known = Locality {
        region: label("topology.kubernetes.io/region"),
        zone: label("topology.kubernetes.io/zone"),
        subzone: label("topology.istio.io/subzone"),
    };
    if !known.is_empty() {
        return known;
    }
    let named = [label("topology.istio.io/locality"), label("istio-locality")];
    if let Some(named) = named.iter().find(|named| !named.is_empty()) {
        // A label cannot hold slashes, so dots stand for them.
        return Locality::parse(&if named.contains('/') {
            named.to_string()
        } else {
            named.replace('.', "/")
        });
    }
    node.locality.as_ref().map_or_else(Locality::default, |locality| Locality {
        region: locality.region.as_str().into(),
        zone: locality.zone.as_str().into(),
        subzone: locality.sub_zone.as_str().into(),
    })
}

/// Values are strings, also where they mean truth values, numbers or lists.
struct Metadata<'a>(Option<&'a Struct>);

impl Metadata<'_> {
    fn get(&self, key: &str) -> Option<&Kind> {
        self.0?.fields.get(key)?.kind.as_ref()
    }

    fn text(&self, key: &str) -> String {
        match self.get(key) {
            Some(Kind::StringValue(text)) => text.clone(),
            Some(Kind::BoolValue(value)) => value.to_string(),
            Some(Kind::NumberValue(value)) => value.to_string(),
            _ => String::new(),
        }
    }

    fn name(&self, key: &str) -> Name {
        self.text(key).into()
    }

    /// What is a plain word: EnvoyFilters can ask for it.
    fn words(&self) -> Labels {
        let fields = self.0.into_iter().flat_map(|all| &all.fields);
        let words = fields.filter_map(|(key, value)| match &value.kind {
            Some(Kind::StringValue(text)) => Some((Name::new(key), Name::new(text))),
            _ => None,
        });
        Labels::new(words)
    }

    fn annotation(&self, key: &str) -> Name {
        let Some(Kind::StructValue(all)) = self.get("ANNOTATIONS") else { return Name::empty() };
        match all.fields.get(key).and_then(|value| value.kind.as_ref()) {
            Some(Kind::StringValue(text)) => text.as_str().into(),
            _ => Name::empty(),
        }
    }

    fn is_true(&self, key: &str) -> bool {
        pilot_base::parse_bool(&self.text(key)).unwrap_or(false)
    }

    fn port(&self, key: &'static str) -> Result<Option<u16>, NodeError> {
        match self.text(key).as_str() {
            "" => Ok(None),
            text => text
                .parse()
                .map(Some)
                .map_err(|_| NodeError::Metadata(key, format!("{:?} is not a port", shorten(text)))),
        }
    }

    fn files(&self, chain: &'static str, key: &'static str, root: &'static str) -> CertificateFiles {
        CertificateFiles {
            chain: self.name(chain),
            key: self.name(key),
            root: self.name(root),
            served_apart: self.text("file-credential") == "true",
        }
    }

    /// A duration as people write it: `30s`, `1m30s`.
    fn span(&self, key: &'static str) -> Result<Option<Duration>, NodeError> {
        match self.text(key).as_str() {
            "" => Ok(None),
            text => pilot_base::parse_span(&shorten(text))
                .map(Some)
                .map_err(|error| NodeError::Metadata(key, error)),
        }
    }

    /// The proxy's labels over those that were given to it.
    fn labels(&self) -> Result<Labels, NodeError> {
        self.some_labels(&["STATIC_LABELS", "LABELS"])
    }

    /// Later ones count more.
    fn some_labels(&self, keys: &[&'static str]) -> Result<Labels, NodeError> {
        let mut all = BTreeMap::new();
        for &key in keys {
            match self.get(key) {
                None | Some(Kind::NullValue(_)) => {}
                Some(Kind::StructValue(labels)) => {
                    for (name, value) in &labels.fields {
                        let Some(Kind::StringValue(value)) = &value.kind else {
                            return Err(NodeError::Metadata(key, format!("{:?} is not text", shorten(name))));
                        };
                        all.insert(Name::new(name), Name::new(value));
                    }
                }
                Some(_) => return Err(NodeError::Metadata(key, "is not a map".to_owned())),
            }
        }
        Ok(Labels::new(all))
    }

    /// A list as JSON, of ports as they stand in a pod. The first of a name counts, and only those of TCP are called.
    fn pod_ports(&self) -> Result<BTreeMap<Name, u16>, NodeError> {
        const KEY: &str = "POD_PORTS";
        let mut out = BTreeMap::new();
        let text = self.text(KEY);
        if text.is_empty() {
            return Ok(out);
        }
        let wrong = |why: String| NodeError::Metadata(KEY, shorten(&why));
        let ports: Vec<serde_json::Value> =
            serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        for port in &ports {
            let text = |key: &str| port.get(key).and_then(serde_json::Value::as_str).unwrap_or_default();
            let number = port.get("containerPort").and_then(serde_json::Value::as_u64);
            let number = number.and_then(|number| u16::try_from(number).ok());
            let number = number.ok_or_else(|| wrong(format!("{port} has no containerPort")))?;
            if !text("name").is_empty() && matches!(text("protocol"), "" | "TCP") {
                out.entry(Name::new(text("name"))).or_insert(number);
            }
        }
        Ok(out)
    }

    fn settings(&self, key: &'static str) -> Result<Option<pilot_model::ProxyConfig>, NodeError> {
        let Some(Kind::StructValue(fields)) = self.get(key) else { return Ok(None) };
        let text = json(&Kind::StructValue(fields.clone())).to_string();
        pilot_config::read_proxy_config(&text).map(Some).map_err(|error| NodeError::Metadata(key, error))
    }
}

/// Metadata comes with the limits of the decoder, a hundred levels among them, so this ends soon.
fn json(kind: &Kind) -> serde_json::Value {
    let of = |value: &Value| value.kind.as_ref().map_or(serde_json::Value::Null, json);
    match kind {
        Kind::NullValue(_) => serde_json::Value::Null,
        // Protobuf's JSON has only doubles; what was an integer is written as one again.
        #[allow(clippy::cast_possible_truncation, reason = "checked by the comparison")]
        Kind::NumberValue(number) if *number == f64::from(*number as i32) => (*number as i32).into(),
        Kind::NumberValue(number) => (*number).into(),
        Kind::StringValue(text) => text.clone().into(),
        Kind::BoolValue(value) => (*value).into(),
        Kind::StructValue(fields) => {
            fields.fields.iter().map(|(name, value)| (name.clone(), of(value))).collect()
        }
        Kind::ListValue(list) => list.values.iter().map(of).collect(),
    }
}

#[cfg(test)]
mod tests;
