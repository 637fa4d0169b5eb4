//! What Envoy is started with: one file per part.

mod clusters;
mod hosts;
mod listeners;
mod runtime;
mod stats;
#[cfg(test)]
mod tests;
mod write;

use serde_json::{Map, Value, json};

use crate::node::Node;
use crate::proxy_config::ProxyConfig;
pub(crate) use clusters::Discovery;
use hosts::Hosts;
pub(crate) use write::write;

#[derive(Debug, thiserror::Error)]
pub(crate) enum BootstrapError {
    /// The address of the server is not a host and a port.
    #[error("discoveryAddress \"{0}\" is not host:port")]
    Address(String),
    /// The server speaks TLS there, which this agent cannot yet.
    #[error(
        "discoveryAddress \"{0}\" is the TLS port of the server, and this agent does not speak TLS yet; use the plaintext port for now, as in PROXY_CONFIG='discoveryAddress: {1}:15010'"
    )]
    Tls(String, String),
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
    let discovery = Discovery::parse(&config.discovery_address)?;
    let mut bootstrap = Map::new();
    let mut set = |field: &str, value: Value| bootstrap.insert(field.to_owned(), value);
    set("application_log_config", application_log(options.log_format));
    set("node", about(node));
    set("layered_runtime", runtime::layers(&config.runtime_values));
    set("bootstrap_extensions", extensions());
    set("admin", admin(&hosts, config.admin_port));
    set("dynamic_resources", dynamic_resources(options.protocol));
    set(
        "static_resources",
        json!({
            "clusters": clusters::all(&hosts, config, &discovery),
            "listeners": listeners::all(&hosts, config, options),
        }),
    );
    set("overload_manager", runtime::overload_manager(config));
    set("deferred_stat_options", json!({ "enable_deferred_creation_stats": true }));
    if !options.outlier_log_path.is_empty() {
        set(
            "cluster_manager",
            json!({
                "outlier_detection": { "event_log_path": options.outlier_log_path },
                "enable_deferred_cluster_creation": true,
            }),
        );
    }
    bootstrap.extend(stats::parts(node, config, options)?);
    Ok(Value::Object(bootstrap))
}

fn about(node: &Node) -> Value {
    let parts = [
        ("region", &node.locality.region),
        ("zone", &node.locality.zone),
        ("sub_zone", &node.locality.sub_zone),
    ];
    let locality: Map<String, Value> = parts
        .into_iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|(key, text)| (key.to_owned(), json!(text)))
        .collect();
    json!({ "id": node.id, "cluster": node.cluster, "locality": locality, "metadata": node.metadata })
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

/// Listeners that exist only inside of Envoy need this; servers send such listeners.
fn extensions() -> Value {
    json!([{
        "name": "envoy.bootstrap.internal_listener",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener",
            "buffer_size_kb": 64,
        },
    }])
}
