//! A bootstrap from a template of the user's, in the language of Go's templates and with the names that Istio's own has.

use std::path::{Path, PathBuf};

use pilot_gotmpl::{Functions, Limits, Template, TemplateError, Value as Data};
use serde_json::{Map, Value, json};

use super::hosts::Hosts;
use super::services::{self, socket};
use super::tls::{Speaks, transport_socket};
use super::{BootstrapError, BootstrapOptions, LOAD_STATS, LogFormat, XdsProtocol, clusters, runtime, stats};
use crate::Env;
use crate::node::Node;
use crate::proxy_config::{ProxyConfig, Remote, Tracer};

#[derive(Debug, thiserror::Error)]
pub(crate) enum RenderError {
    /// It is not what Go would read, or asks for what is not there.
    #[error("{0}; {1} names this template")]
    Template(TemplateError, &'static str),
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// The template works, and what comes of it does not.
    #[error("template {} gives no YAML: {reason}; {place} names this template", path.display())]
    Result { path: PathBuf, reason: String, place: &'static str },
    #[error("cannot read template {}, which {place} names", path.display())]
    Read { path: PathBuf, place: &'static str, source: std::io::Error },
}

/// A template that the user wants to have in place of what is built in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Chosen {
    pub(crate) path: PathBuf,
    /// Where it was named.
    place: &'static str,
}

impl Chosen {
    pub(crate) fn find(flag: &str, config: &ProxyConfig, env: &Env) -> Option<Self> {
        let told = [
            ("ISTIO_BOOTSTRAP", env.get("ISTIO_BOOTSTRAP").unwrap_or_default()),
            ("--templateFile", flag),
            ("proxyBootstrapTemplatePath", config.bootstrap_template.as_deref().unwrap_or_default()),
        ];
        let (place, path) = told.into_iter().find(|(_, path)| !path.is_empty())?;
        Some(Self { path: path.into(), place })
    }

    /// Envoy goes by the name of its file to tell YAML from JSON.
    pub(crate) fn is_yaml(&self) -> bool {
        let path = self.path.to_string_lossy();
        path.ends_with(".yaml") || path.ends_with(".yaml.tmpl")
    }

    pub(crate) fn render(
        &self,
        node: &Node,
        config: &ProxyConfig,
        options: &BootstrapOptions,
    ) -> Result<String, RenderError> {
        let Self { path, place } = self.clone();
        let text = std::fs::read_to_string(&path).map_err(|source| RenderError::Read {
            path: path.clone(),
            place,
            source,
        })?;
        let rendered = render(&text, &path, parameters(node, config, options)?)
            .map_err(|error| RenderError::Template(error, place))?;
        pilot_config::read_value(&rendered, "result").map_err(|issue| RenderError::Result {
            path,
            reason: issue.to_string(),
            place,
        })?;
        Ok(rendered)
    }
}

fn render(text: &str, path: &Path, parameters: Value) -> Result<String, TemplateError> {
    let functions = Functions::with_sprig().with("toJSON", |arguments| match arguments {
        [Data::Absent | Data::Nil] => Ok(Data::text("{}")),
        [value] => Ok(Data::from(value.to_json().to_string())),
        _ => Err(format!("wants 1 argument and got {}", arguments.len())),
    });
    let template = Template::parse(&path.to_string_lossy(), text, &functions)?;
    template.render(&Data::from(parameters), &functions, Limits::default())
}

/// What Istio hands to its template, by the same names. Where Istio hands over JSON as a text, so do we.
pub(super) fn parameters(
    node: &Node,
    config: &ProxyConfig,
    options: &BootstrapOptions,
) -> Result<Value, BootstrapError> {
    let mut all = Map::new();
    all.extend(about_node(node, config, options));
    all.extend(about_listening(node, config, options));
    all.extend(about_statistics(node, config, options)?);
    all.extend(about_services(node, config, options));
    // Istio leaves out what is empty, so that templates can ask whether it is there.
    all.retain(|_, value| !value.is_null() && value.as_str() != Some(""));
    Ok(Value::Object(all))
}

type Named<const N: usize> = [(String, Value); N];

fn named<const N: usize>(pairs: [(&str, Value); N]) -> Named<N> {
    pairs.map(|(name, value)| (name.to_owned(), value))
}

fn about_node(node: &Node, config: &ProxyConfig, options: &BootstrapOptions) -> Named<18> {
    let metadata = |name: &str| node.metadata.get(name).cloned().unwrap_or(Value::Null);
    let names = metadata("PILOT_SAN");
    let matchers = names.as_array().into_iter().flatten().map(|name| json!({ "exact": name }));
    let files = node.metadata.contains_key(clusters::FILE_SECRETS_METADATA);
    let sts = metadata("STS_PORT").as_str().and_then(|port| port.parse::<u16>().ok());
    named([
        ("nodeID", json!(node.id)),
        ("nodeType", json!(node.id.split('~').next())),
        ("cluster", json!(node.cluster)),
        ("region", json!(node.locality.region)),
        ("zone", json!(node.locality.zone)),
        ("sub_zone", json!(node.locality.sub_zone)),
        ("meta_json_str", json!(json!(node.metadata).to_string())),
        ("metadata", json!(with_field_names(&node.metadata))),
        ("config", Value::Object(exported(&config.said))),
        ("pilot_SAN", json!(matchers.collect::<Value>().to_string())),
        ("runtime_flags", json!(json!(runtime::flags(config, options)).to_string())),
        (
            "xds_type",
            json!(match options.protocol {
                XdsProtocol::Delta => "DELTA_GRPC",
                XdsProtocol::StateOfTheWorld => "GRPC",
            }),
        ),
        ("workload_identity_socket_file", metadata("WORKLOAD_IDENTITY_SOCKET_FILE")),
        ("custom_file_path", if files { json!(clusters::FILE_SECRETS_SOCKET) } else { Value::Null }),
        ("enable_self_discovery", if clusters::discovers_itself(node) { json!(true) } else { Value::Null }),
        ("load_stats_config_json_str", metadata(LOAD_STATS)),
        ("sts", sts.map_or(Value::Null, |_| json!(true))),
        ("sts_port", json!(sts)),
    ])
}

fn about_listening(node: &Node, config: &ProxyConfig, options: &BootstrapOptions) -> Named<17> {
    let hosts = Hosts::new(&node.addresses, options.stack);
    let port = |port: u16| if port == 0 { Value::Null } else { json!(port) };
    let only_local = config.metadata.get("METRICS_LOCALHOST_ACCESS_ONLY").is_some_and(|word| word == "true");
    let address = &config.discovery_address;
    named([
        ("localhost", json!(hosts.localhost)),
        ("wildcard", json!(hosts.wildcard)),
        ("additional_localhost", json!(hosts.also_localhost)),
        ("additional_wildcard", json!(hosts.also_wildcard)),
        ("dual_stack", if hosts.also_wildcard.is_some() { json!(true) } else { Value::Null }),
        ("dns_lookup_family", json!(hosts.lookup_family)),
        ("envoy_status_port", json!(options.status_port)),
        ("envoy_prometheus_port", json!(options.prometheus_port)),
        ("secure_metrics_port", port(options.secure_metrics_port)),
        ("secure_merged_metrics_port", port(options.secure_merged_metrics_port)),
        (
            "envoy_status_port_enable_proxy_protocol",
            if options.probes_with_proxy_protocol { json!(true) } else { Value::Null },
        ),
        ("metrics_localhost_access_only", json!(only_local)),
        ("global_downstream_max_connections", json!(runtime::connection_limit(config))),
        ("log_json", json!(options.log_format == LogFormat::Json)),
        ("outlier_log_path", json!(options.outlier_log_path)),
        ("discovery_address", json!(address)),
        ("discovery_host", json!(address.split(':').next())),
    ])
}

fn about_statistics(
    node: &Node,
    config: &ProxyConfig,
    options: &BootstrapOptions,
) -> Result<Named<9>, BootstrapError> {
    let stats::Inclusions { prefixes, suffixes, regexps } = stats::inclusions(node, config, options);
    let parts = stats::parts(node, config, options)?;
    let part = |name: &str| parts.get(name).cloned().unwrap_or(Value::Null);
    let buckets = parts["stats_config"].get("histogram_bucket_settings").cloned().unwrap_or(Value::Null);
    Ok(named([
        ("inclusionPrefix", json!(prefixes)),
        ("inclusionSuffix", json!(suffixes)),
        ("inclusionRegexps", json!(regexps)),
        ("extraStatTags", json!(stats::extra_tags(node, config))),
        ("histogram_buckets", buckets),
        ("stats_flush_interval", part("stats_flush_interval")),
        ("stats_eviction_interval", part("stats_eviction_interval")),
        ("envoy_metrics_stats_compression", json!(config.stats.compression)),
        ("metadata_discovery", json!(super::discovers_metadata(node, options).is_some())),
    ]))
}

fn about_services(node: &Node, config: &ProxyConfig, options: &BootstrapOptions) -> Map<String, Value> {
    let mut all = Map::new();
    let mut set = |name: &str, value: Value| all.insert(name.to_owned(), value);
    if let Some(address) = &config.statsd {
        set("statsd", json!(socket(address, options).to_string()));
    }
    if let Some(tracing) = &config.tracing {
        let (name, speaks) = match tracing.tracer {
            Tracer::Zipkin => ("zipkin", Speaks::Http1),
            Tracer::Lightstep { .. } => ("lightstep", Speaks::Http2),
            Tracer::Datadog => ("datadog", Speaks::Http1),
        };
        set(name, json!(socket(&tracing.address, options).to_string()));
        set("lightstepToken", json!(services::token_file(&config.config_path)));
        if let Some(tls) = &tracing.tls {
            set("tracing_tls", json!(transport_socket(tls, node, "tracer", speaks).to_string()));
        }
    }
    for (name, service) in
        [(services::METRICS, &config.metrics_service), (services::ACCESS_LOG, &config.access_log_service)]
    {
        let Some(Remote { address, tls, keepalive }) = service else { continue };
        set(&format!("{name}_address"), json!(socket(address, options).to_string()));
        if let Some(tls) = tls {
            let socket = transport_socket(tls, node, name, Speaks::Http2);
            set(&format!("{name}_tls"), json!(socket.to_string()));
        }
        if let Some(keepalive) = keepalive {
            let options = json!({ "tcp_keepalive": services::seconds(keepalive) });
            set(&format!("{name}_tcp_keepalive"), json!(options.to_string()));
        }
    }
    all
}

/// Settings as Go names their fields: `statusPort` is `StatusPort`. Keys of maps are the user's own.
fn exported(said: &Map<String, Value>) -> Map<String, Value> {
    const MAPS: [&str; 3] = ["proxyMetadata", "runtimeValues", "proxyHeaders"];
    let name = |key: &str| {
        let mut letters = key.chars();
        letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect::<String>()
    };
    let value = |key: &str, value: &Value| match value {
        Value::Object(fields) if !MAPS.contains(&key) => Value::Object(exported(fields)),
        other => other.clone(),
    };
    said.iter().map(|(key, told)| (name(key), value(key, told))).collect()
}

/// The node's metadata by the names on the wire, and the usual ones also as Go names their fields.
fn with_field_names(metadata: &Map<String, Value>) -> Map<String, Value> {
    const FIELDS: [(&str, &str); 12] = [
        ("NAME", "InstanceName"),
        ("NAMESPACE", "Namespace"),
        ("LABELS", "Labels"),
        ("ANNOTATIONS", "Annotations"),
        ("INSTANCE_IPS", "InstanceIPs"),
        ("SERVICE_ACCOUNT", "ServiceAccount"),
        ("WORKLOAD_NAME", "WorkloadName"),
        ("OWNER", "Owner"),
        ("CLUSTER_ID", "ClusterID"),
        ("NETWORK", "Network"),
        ("MESH_ID", "MeshID"),
        ("ISTIO_VERSION", "IstioVersion"),
    ];
    let mut named = metadata.clone();
    for (wire, field) in FIELDS {
        if let Some(value) = metadata.get(wire) {
            named.insert(field.to_owned(), value.clone());
        }
    }
    named
}

#[cfg(test)]
pub(super) fn rendered(
    text: &str,
    node: &Node,
    config: &ProxyConfig,
    options: &BootstrapOptions,
) -> Result<String, TemplateError> {
    render(text, Path::new("stock"), parameters(node, config, options).expect("annotations can be read"))
}
