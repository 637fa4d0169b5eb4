use std::path::Path;

use serde_json::{Value, json};

use super::hosts::{Hosts, socket};
use super::{BootstrapOptions, services};
use crate::node::Node;
use crate::proxy_config::ProxyConfig;
use crate::relay;

pub(super) const XDS: &str = "xds-grpc";
pub(super) const ADMIN: &str = "prometheus_stats";
pub(super) const AGENT: &str = "agent";
pub(super) const SECRETS: &str = "sds-grpc";
/// The proxies that serve the same as this one.
pub(super) const OWN: &str = "local_cluster";
const FILE_SECRETS: &str = "sds-files-grpc";

/// Where secrets are served to the proxy: by this agent, or by another on the same node.
const SECRETS_DIRECTORY: &str = "./var/run/secrets/workload-spiffe-uds";
pub(super) const FILE_SECRETS_SOCKET: &str = "./var/run/secrets/credential-uds/files-socket";
/// Metadata that says that somebody serves secrets out of files.
pub(super) const FILE_SECRETS_METADATA: &str = "file-credential";

/// More than a proxy can ever use: limits here would cut the proxy off from its server.
const NO_LIMIT: u32 = 100_000;

pub(super) fn all(
    node: &Node,
    config: &ProxyConfig,
    options: &BootstrapOptions,
    hosts: &Hosts,
) -> Vec<Value> {
    let mut clusters = vec![local(ADMIN, hosts, config.admin_port)];
    if config.status_port != 0 {
        clusters.push(local(AGENT, hosts, config.status_port));
    }
    let file = node.metadata.get("WORKLOAD_IDENTITY_SOCKET_FILE").and_then(Value::as_str);
    clusters.push(secrets(SECRETS, &format!("{SECRETS_DIRECTORY}/{}", file.unwrap_or("socket"))));
    if node.metadata.contains_key(FILE_SECRETS_METADATA) {
        clusters.push(secrets(FILE_SECRETS, FILE_SECRETS_SOCKET));
    }
    clusters.push(xds(&relay::socket_path(&config.config_path)));
    clusters.extend(services::clusters(node, config, options, hosts));
    if discovers_itself(node) {
        clusters.push(own());
    }
    clusters
}

/// Does the proxy want to know its own siblings, to prefer those in its zone?
pub(super) fn discovers_itself(node: &Node) -> bool {
    node.metadata.get("ENABLE_SELF_DISCOVERY").is_some_and(|value| value == "true")
}

fn local(name: &str, hosts: &Hosts, port: u16) -> Value {
    json!({
        "name": name,
        // The semicolon ends the name where statistics are taken apart.
        "alt_stat_name": format!("{name};"),
        "type": "STATIC",
        "connect_timeout": "0.250s",
        "lb_policy": "ROUND_ROBIN",
        "load_assignment": assignment(name, &socket(&hosts.localhost, port)),
    })
}

/// The agent stands between Envoy and the control plane.
fn xds(socket: &Path) -> Value {
    let limits = |priority: &str| {
        json!({
            "priority": priority,
            "max_connections": NO_LIMIT,
            "max_pending_requests": NO_LIMIT,
            "max_requests": NO_LIMIT,
        })
    };
    let cluster = json!({
        "name": XDS,
        "alt_stat_name": format!("{XDS};"),
        "type": "STATIC",
        "connect_timeout": "1s",
        "lb_policy": "ROUND_ROBIN",
        "circuit_breakers": { "thresholds": [limits("DEFAULT"), limits("HIGH")] },
        "upstream_connection_options": { "tcp_keepalive": { "keepalive_time": 300 } },
        "load_assignment": assignment(XDS, &pipe(&socket.to_string_lossy())),
        // A new stream has a connection of its own, so that it can land on another server.
        "max_requests_per_connection": 1,
    });
    with(cluster, http2())
}

fn secrets(name: &str, path: &str) -> Value {
    let cluster = json!({
        "name": name,
        "alt_stat_name": format!("{name};"),
        "type": "STATIC",
        "connect_timeout": "1s",
        "lb_policy": "ROUND_ROBIN",
        "load_assignment": assignment(name, &pipe(path)),
    });
    with(cluster, http2())
}

fn own() -> Value {
    json!({
        "name": OWN,
        "alt_stat_name": format!("{OWN};"),
        "type": "EDS",
        "connect_timeout": "1s",
        "load_balancing_policy": { "policies": [{ "typed_extension_config": {
            "name": "envoy.load_balancing_policies.least_request",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest",
                "locality_lb_config": { "zone_aware_lb_config": { "min_cluster_size": "1" } },
            },
        }}]},
        "eds_cluster_config": {
            "eds_config": { "ads": {}, "resource_api_version": "V3" },
            "service_name": OWN,
        },
    })
}

pub(super) fn http2() -> Value {
    let fields = json!({ "explicit_http_config": { "http2_protocol_options": {} } });
    json!({ "typed_extension_protocol_options": protocol(fields) })
}

fn protocol(fields: Value) -> Value {
    let kind = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let options = with(json!({ "@type": kind }), fields);
    json!({ "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options })
}

/// An object with the fields of another.
pub(super) fn with(mut object: Value, fields: Value) -> Value {
    if let (Value::Object(object), Value::Object(fields)) = (&mut object, fields) {
        object.extend(fields);
    }
    object
}

fn pipe(path: &str) -> Value {
    json!({ "pipe": { "path": path } })
}

fn assignment(cluster: &str, address: &Value) -> Value {
    let endpoint = json!({ "endpoint": { "address": address } });
    json!({ "cluster_name": cluster, "endpoints": [{ "lb_endpoints": [endpoint] }] })
}
