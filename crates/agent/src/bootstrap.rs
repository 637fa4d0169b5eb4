//! What Envoy is started with: one file per part.

mod clusters;
#[cfg(test)]
mod goldens;
mod hosts;
mod listeners;
mod runtime;
mod services;
mod stats;
mod template;
#[cfg(test)]
mod tests;
mod tls;
mod write;

use serde_json::{Map, Value, json};

use crate::node::Node;
use crate::proxy_config::ProxyConfig;
use hosts::Hosts;
pub(crate) use services::token_file;
pub(crate) use template::Chosen;
pub(crate) use write::{WriteError, file, write_text};

/// Metadata that has Envoy's settings for reports of load, as JSON.
const LOAD_STATS: &str = "LOAD_STATS_CONFIG_JSON";

#[derive(Debug, thiserror::Error)]
pub(crate) enum BootstrapError {
    /// What Envoy is told about reports of load is not JSON.
    #[error("ISTIO_META_{LOAD_STATS}: \"{0}\" is not JSON")]
    LoadStats(String),
    /// An annotation about statistics cannot be read.
    #[error("annotation {name}: \"{value}\" is not {expected}")]
    Annotation { name: &'static str, value: String, expected: &'static str },
}

/// What the bootstrap depends on beside the node and its settings.
#[derive(Clone, Debug)]
pub(crate) struct BootstrapOptions {
    pub(crate) protocol: XdsProtocol,
    pub(crate) log_format: LogFormat,
    pub(crate) stack: Stack,
    pub(crate) outlier_log_path: String,
    /// 0: Envoy does not listen.
    pub(crate) status_port: u16,
    pub(crate) prometheus_port: u16,
    /// Statistics with mutual TLS: Envoy's own, and those merged with the workload's. 0: none.
    pub(crate) secure_metrics_port: u16,
    pub(crate) secure_merged_metrics_port: u16,
    /// The machine that the pod runs on.
    pub(crate) host_ip: Option<String>,
    /// Must ciphers and versions be those of FIPS 140-2?
    pub(crate) fips: bool,
    /// Are paths with a fragment cut instead of refused?
    pub(crate) keeps_fragments: bool,
    /// May probes come with the PROXY protocol?
    pub(crate) probes_with_proxy_protocol: bool,
    /// Are open connections counted when Envoy is to end?
    pub(crate) counts_connections: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum XdsProtocol {
    Delta,
    StateOfTheWorld,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// Does a machine with addresses of both families listen on both?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stack {
    Single,
    Dual,
}

pub(crate) fn build(
    node: &Node,
    config: &ProxyConfig,
    options: &BootstrapOptions,
) -> Result<Value, BootstrapError> {
    let hosts = Hosts::new(&node.addresses, options.stack);
    let mut bootstrap = Map::new();
    let mut set = |field: &str, value: Value| bootstrap.insert(field.to_owned(), value);
    set("application_log_config", application_log(options.log_format));
    set("node", about(node));
    set("layered_runtime", runtime::layers(config, options));
    set("bootstrap_extensions", extensions(discovers_metadata(node, options)));
    set("admin", admin(&hosts, config.admin_port));
    set("dynamic_resources", dynamic_resources(options.protocol));
    set(
        "static_resources",
        json!({
            "clusters": clusters::all(node, config, options, &hosts),
            "listeners": listeners::all(&hosts, config, options),
        }),
    );
    set("overload_manager", runtime::overload_manager(config));
    set("deferred_stat_options", json!({ "enable_deferred_creation_stats": true }));
    if let Some(tracing) = services::tracing(node, config) {
        set("tracing", tracing);
    }
    let sinks = services::sinks(config, options);
    if !sinks.is_empty() {
        set("stats_sinks", json!(sinks));
    }
    if let Some(manager) = cluster_manager(node, options)? {
        set("cluster_manager", manager);
    }
    bootstrap.extend(stats::parts(node, config, options)?);
    Ok(Value::Object(bootstrap))
}

fn about(node: &Node) -> Value {
    json!({ "id": node.id, "cluster": node.cluster, "locality": locality(node), "metadata": node.metadata })
}

/// Only what is known.
pub(crate) fn locality(node: &Node) -> Value {
    let parts = [
        ("region", &node.locality.region),
        ("zone", &node.locality.zone),
        ("sub_zone", &node.locality.sub_zone),
    ];
    let known = parts.into_iter().filter(|(_, text)| !text.is_empty());
    Value::Object(known.map(|(key, text)| (key.to_owned(), json!(text))).collect())
}

/// Envoy's lines look like the agent's, since both go to the same place.
fn application_log(format: LogFormat) -> Value {
    let time = "%Y-%m-%dT%T.%fZ";
    let format = match format {
        LogFormat::Text => json!({ "text_format": format!("{time}\t%l\tenvoy %n %g:%#\t%v\tthread=%t") }),
        LogFormat::Json => json!({ "json_format": {
            "time": time, "level": "%l", "scope": "envoy %n", "msg": "%j", "caller": "%g:%#", "thread": "%t",
        }}),
    };
    json!({ "log_format": format })
}

fn admin(hosts: &Hosts, port: u16) -> Value {
    json!({
        "access_log": [{
            "name": "envoy.access_loggers.file",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
                "path": "/dev/null",
            },
        }],
        "profile_path": "/var/lib/istio/data/envoy.prof",
        "address": hosts::socket(&hosts.localhost, port),
    })
}

fn dynamic_resources(protocol: XdsProtocol) -> Value {
    // Envoy waits for its first configuration for as long as it takes: without one it is of no use.
    let over_ads = json!({ "ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3" });
    let api_type = match protocol {
        XdsProtocol::Delta => "DELTA_GRPC",
        XdsProtocol::StateOfTheWorld => "GRPC",
    };
    json!({
        "lds_config": over_ads,
        "cds_config": over_ads,
        "ads_config": {
            "api_type": api_type,
            "transport_api_version": "V3",
            "set_node_on_first_message_only": true,
            "grpc_services": [{ "envoy_grpc": { "cluster_name": clusters::XDS } }],
        },
    })
}

/// Is Envoy told over xDS who its peers are? The old protocol cannot.
fn discovers_metadata(node: &Node, options: &BootstrapOptions) -> Option<&'static str> {
    let wanted = node.metadata.get("METADATA_DISCOVERY").is_some_and(|word| word == "true");
    (wanted && options.protocol == XdsProtocol::Delta).then_some("metadata_discovery")
}

/// Listeners that exist only inside of Envoy need one of these; servers send such listeners. The other one is in Istio's own
/// Envoy only.
fn extensions(metadata_discovery: Option<&str>) -> Value {
    let extension = |name: &str, message: &str, value: Value| {
        json!({
            "name": name,
            "typed_config": {
                "@type": "type.googleapis.com/udpa.type.v1.TypedStruct",
                "type_url": format!("type.googleapis.com/{message}"),
                "value": value,
            },
        })
    };
    let discovery = metadata_discovery.map(|name| {
        extension(name, "istio.workload.BootstrapExtension", json!({ "config_source": { "ads": {} } }))
    });
    let internal = extension(
        "envoy.bootstrap.internal_listener",
        "envoy.extensions.bootstrap.internal_listener.v3.InternalListener",
        json!({ "buffer_size_kb": 64 }),
    );
    discovery.into_iter().chain([internal]).collect()
}

fn cluster_manager(node: &Node, options: &BootstrapOptions) -> Result<Option<Value>, BootstrapError> {
    let mut manager = Map::new();
    if clusters::discovers_itself(node) {
        manager.insert("local_cluster_name".to_owned(), json!(clusters::OWN));
    }
    if !options.outlier_log_path.is_empty() {
        manager.insert("outlier_detection".to_owned(), json!({ "event_log_path": options.outlier_log_path }));
    }
    if let Some(text) = node.metadata.get(LOAD_STATS).and_then(Value::as_str) {
        let load = serde_json::from_str(text).map_err(|_| BootstrapError::LoadStats(text.to_owned()))?;
        manager.insert("load_stats_config".to_owned(), load);
    }
    if manager.is_empty() {
        return Ok(None);
    }
    manager.insert("enable_deferred_cluster_creation".to_owned(), json!(true));
    Ok(Some(Value::Object(manager)))
}
