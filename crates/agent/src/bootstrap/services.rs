//! Services that Envoy itself calls: for traces, statistics and access logs.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::BootstrapOptions;
use super::clusters::{http2, with};
use super::hosts::Hosts;
use super::tls::{Speaks, transport_socket};
use crate::node::Node;
use crate::proxy_config::{HostPort, Keepalive, ProxyConfig, Remote, Tracer, Tracing};

pub(super) const METRICS: &str = "envoy_metrics_service";
pub(super) const ACCESS_LOG: &str = "envoy_accesslog_service";
const HOST_IP: &str = "$(HOST_IP)";

/// Where the token for Lightstep is written, since Envoy reads it from a file.
pub(crate) fn token_file(directory: &Path) -> PathBuf {
    directory.join("lightstep_access_token.txt")
}

pub(super) fn clusters(
    node: &Node,
    config: &ProxyConfig,
    options: &BootstrapOptions,
    hosts: &Hosts,
) -> Vec<Value> {
    let tracer = config.tracing.iter().map(|tracing| tracer(tracing, node, options, hosts));
    let services = [(METRICS, &config.metrics_service), (ACCESS_LOG, &config.access_log_service)];
    let services = services.into_iter().filter_map(|(name, service)| {
        let Remote { address, tls, keepalive } = service.as_ref()?;
        let mut cluster = with(by_name(name, address, options, hosts), http2());
        if let Some(tls) = tls {
            cluster["transport_socket"] = transport_socket(tls, node, name, Speaks::Http2);
        }
        if let Some(keepalive) = keepalive {
            cluster["upstream_connection_options"] = json!({ "tcp_keepalive": seconds(keepalive) });
        }
        Some(cluster)
    });
    tracer.chain(services).collect()
}

fn tracer(tracing: &Tracing, node: &Node, options: &BootstrapOptions, hosts: &Hosts) -> Value {
    let (name, speaks) = match tracing.tracer {
        Tracer::Zipkin => ("zipkin", Speaks::Http1),
        Tracer::Lightstep { .. } => ("lightstep", Speaks::Http2),
        Tracer::Datadog => ("datadog_agent", Speaks::Http1),
    };
    let mut cluster = by_name(name, &tracing.address, options, hosts);
    if speaks == Speaks::Http2 {
        cluster = with(cluster, http2());
    }
    if tracing.tracer == Tracer::Zipkin {
        cluster["dns_refresh_rate"] = json!("30s");
    }
    if let Some(tls) = &tracing.tls {
        cluster["transport_socket"] = transport_socket(tls, node, "tracer", speaks);
    }
    cluster
}

fn by_name(name: &str, address: &HostPort, options: &BootstrapOptions, hosts: &Hosts) -> Value {
    let endpoint = json!({ "endpoint": { "address": { "socket_address": socket(address, options) } } });
    json!({
        "name": name,
        "alt_stat_name": format!("{name};"),
        "type": "STRICT_DNS",
        "respect_dns_ttl": true,
        "dns_lookup_family": hosts.lookup_family,
        "connect_timeout": "1s",
        "lb_policy": "ROUND_ROBIN",
        "load_assignment": { "cluster_name": name, "endpoints": [{ "lb_endpoints": [endpoint] }] },
    })
}

/// Settings of a whole mesh can name the machine that each pod runs on.
pub(super) fn socket(address: &HostPort, options: &BootstrapOptions) -> Value {
    let HostPort { host, port } = address;
    let host = options.host_ip.as_deref().filter(|_| host == HOST_IP).unwrap_or(host);
    json!({ "address": host, "port_value": port })
}

pub(super) fn seconds(keepalive: &Keepalive) -> Map<String, Value> {
    let Keepalive { probes, time, interval } = *keepalive;
    let fields = [
        ("keepalive_probes", probes.map(u64::from)),
        ("keepalive_time", time),
        ("keepalive_interval", interval),
    ];
    fields.into_iter().filter_map(|(field, value)| Some((field.to_owned(), json!(value?)))).collect()
}

/// What the tracer is told.
pub(super) fn tracing(node: &Node, config: &ProxyConfig) -> Option<Value> {
    let (name, message, fields) = match config.tracing.as_ref()?.tracer {
        Tracer::Zipkin => (
            "zipkin",
            "ZipkinConfig",
            json!({
                "collector_cluster": "zipkin",
                "collector_endpoint": "/api/v2/spans",
                "collector_endpoint_version": "HTTP_JSON",
                "trace_id_128bit": true,
                "shared_span_context": false,
            }),
        ),
        Tracer::Lightstep { .. } => (
            "lightstep",
            "LightstepConfig",
            json!({
                "collector_cluster": "lightstep",
                "access_token_file": token_file(&config.config_path),
            }),
        ),
        Tracer::Datadog => (
            "datadog",
            "DatadogConfig",
            json!({ "collector_cluster": "datadog_agent", "service_name": node.cluster }),
        ),
    };
    let kind = json!({ "@type": format!("type.googleapis.com/envoy.config.trace.v3.{message}") });
    Some(json!({ "http": { "name": format!("envoy.tracers.{name}"), "typed_config": with(kind, fields) } }))
}

/// Where statistics are sent.
pub(super) fn sinks(config: &ProxyConfig, options: &BootstrapOptions) -> Vec<Value> {
    let sink = |name: &str, message: &str, fields: Value| {
        let kind = json!({ "@type": format!("type.googleapis.com/envoy.config.metrics.v3.{message}") });
        json!({ "name": format!("envoy.stat_sinks.{name}"), "typed_config": with(kind, fields) })
    };
    let metrics = config.metrics_service.iter().map(|_| {
        let service = json!({ "envoy_grpc": { "cluster_name": METRICS } });
        sink(
            "metrics_service",
            "MetricsServiceConfig",
            json!({ "transport_api_version": "V3", "grpc_service": service }),
        )
    });
    let statsd = config.statsd.iter().map(|address| {
        sink("statsd", "StatsdSink", json!({ "address": { "socket_address": socket(address, options) } }))
    });
    metrics.chain(statsd).collect()
}
