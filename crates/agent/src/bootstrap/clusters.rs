use std::net::IpAddr;

use serde_json::{Value, json};

use super::BootstrapError;
use super::hosts::{Hosts, socket};
use crate::proxy_config::ProxyConfig;

pub(super) const XDS: &str = "xds-grpc";
pub(super) const ADMIN: &str = "prometheus_stats";
pub(super) const AGENT: &str = "agent";
const SECRETS: &str = "sds-grpc";

/// Where secrets are served to the proxy: by this agent, or by another on the same node.
const SECRETS_SOCKET: &str = "./var/run/secrets/workload-spiffe-uds/socket";

/// Ports at which Istio's servers speak TLS.
const TLS_PORT: u16 = 15012;
/// More than a proxy can ever use: limits here would cut the proxy off from its server.
const NO_LIMIT: u32 = 100_000;

/// Where the server is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Discovery {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Discovery {
    pub(crate) fn parse(address: &str) -> Result<Self, BootstrapError> {
        let wrong = || BootstrapError::Address(address.to_owned());
        let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| wrong())?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        // A colon is part of an address only in brackets.
        if bare.is_empty() || (bare == host && host.contains(':')) {
            return Err(wrong());
        }
        if port == TLS_PORT {
            return Err(BootstrapError::Tls(address.to_owned(), host.to_owned()));
        }
        Ok(Self { host: bare.to_owned(), port })
    }
}

pub(super) fn all(hosts: &Hosts, config: &ProxyConfig, discovery: &Discovery) -> Vec<Value> {
    let mut clusters = vec![xds(hosts, discovery), secrets(), local(ADMIN, hosts, config.admin_port)];
    if config.status_port != 0 {
        clusters.push(local(AGENT, hosts, config.status_port));
    }
    clusters
}

fn local(name: &str, hosts: &Hosts, port: u16) -> Value {
    json!({
        "name": name,
        // The semicolon ends the name where statistics are taken apart.
        "alt_stat_name": format!("{name};"),
        "type": "STATIC",
        "connect_timeout": "0.250s",
        "lb_policy": "ROUND_ROBIN",
        "load_assignment": assignment(name, &hosts.localhost, port),
    })
}

fn xds(hosts: &Hosts, discovery: &Discovery) -> Value {
    let limits = |priority: &str| {
        json!({
            "priority": priority,
            "max_connections": NO_LIMIT,
            "max_pending_requests": NO_LIMIT,
            "max_requests": NO_LIMIT,
        })
    };
    let mut cluster = json!({
        "name": XDS,
        "alt_stat_name": format!("{XDS};"),
        "connect_timeout": "1s",
        "lb_policy": "ROUND_ROBIN",
        "load_assignment": assignment(XDS, &discovery.host, discovery.port),
        "circuit_breakers": { "thresholds": [limits("DEFAULT"), limits("HIGH")] },
        "upstream_connection_options": { "tcp_keepalive": { "keepalive_time": 300 } },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                // A new stream has a connection of its own, so that it can land on another server.
                "common_http_protocol_options": { "max_requests_per_connection": 1 },
                "explicit_http_config": { "http2_protocol_options": {
                    // A server that is gone without a word is noticed.
                    "connection_keepalive": { "interval": "30s", "timeout": "10s" },
                }},
            },
        },
    });
    let by_address = discovery.host.parse::<IpAddr>().is_ok();
    let fields = if by_address {
        json!({ "type": "STATIC" })
    } else {
        json!({
            "type": "STRICT_DNS",
            "dns_lookup_family": hosts.lookup_family,
            "respect_dns_ttl": true,
            "dns_refresh_rate": "30s",
        })
    };
    if let (Value::Object(cluster), Value::Object(fields)) = (&mut cluster, fields) {
        cluster.extend(fields);
    }
    cluster
}

fn secrets() -> Value {
    let endpoint = json!({ "endpoint": { "address": { "pipe": { "path": SECRETS_SOCKET } } } });
    json!({
        "name": SECRETS,
        "alt_stat_name": format!("{SECRETS};"),
        "type": "STATIC",
        "connect_timeout": "1s",
        "lb_policy": "ROUND_ROBIN",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": { "http2_protocol_options": {} },
            },
        },
        "load_assignment": { "cluster_name": SECRETS, "endpoints": [{ "lb_endpoints": [endpoint] }] },
    })
}

fn assignment(cluster: &str, address: &str, port: u16) -> Value {
    let endpoint = json!({ "endpoint": { "address": socket(address, port) } });
    json!({ "cluster_name": cluster, "endpoints": [{ "lb_endpoints": [endpoint] }] })
}
