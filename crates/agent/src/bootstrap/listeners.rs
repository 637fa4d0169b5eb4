use serde_json::{Value, json};

use super::hosts::{Hosts, socket};
use super::{BootstrapOptions, clusters};
use crate::proxy_config::ProxyConfig;

/// The forms in which Prometheus takes statistics.
const METRIC_FORMS: [&str; 4] = [
    "text/plain",
    "application/vnd.google.protobuf",
    "application/openmetrics-text",
    "application/openmetrics-protobuf",
];

/// One path of a static listener and the cluster that answers it.
struct Door<'a> {
    stat_prefix: &'a str,
    path: &'a str,
    cluster: &'a str,
    port: u16,
    filters: Vec<Value>,
}

pub(super) fn all(hosts: &Hosts, config: &ProxyConfig, options: &BootstrapOptions) -> Vec<Value> {
    let mut listeners = Vec::new();
    if options.prometheus_port != 0 {
        let door = Door {
            stat_prefix: "stats",
            path: "/stats/prometheus",
            cluster: clusters::ADMIN,
            port: options.prometheus_port,
            filters: if config.stats.compression { compressors() } else { Vec::new() },
        };
        let only_local =
            config.metadata.get("METRICS_LOCALHOST_ACCESS_ONLY").is_some_and(|word| word == "true");
        let (address, also) = if only_local {
            (&hosts.localhost, &hosts.also_localhost)
        } else {
            (&hosts.wildcard, &hosts.also_wildcard)
        };
        listeners.push(door.listener(address, also.as_deref()));
    }
    // Without the agent's status server there is nobody to ask.
    if options.status_port != 0 && config.status_port != 0 {
        let door = Door {
            stat_prefix: "agent",
            path: "/healthz/ready",
            cluster: clusters::AGENT,
            port: options.status_port,
            filters: Vec::new(),
        };
        listeners.push(door.listener(&hosts.wildcard, hosts.also_wildcard.as_deref()));
    }
    listeners
}

impl Door<'_> {
    fn listener(self, address: &str, also: Option<&str>) -> Value {
        let Self { port, .. } = self;
        let additional: Vec<Value> =
            also.iter().map(|address| json!({ "address": socket(address, port) })).collect();
        json!({
            "name": format!("{address}_{port}"),
            "address": socket(address, port),
            "additional_addresses": additional,
            // A proxy with too many connections must still be able to tell so.
            "ignore_global_conn_limit": true,
            "bypass_overload_manager": true,
            "filter_chains": [{ "filters": [self.connection_manager()] }],
        })
    }

    fn connection_manager(self) -> Value {
        let route = json!({ "match": { "prefix": self.path }, "route": { "cluster": self.cluster } });
        let mut filters = self.filters;
        filters.push(json!({
            "name": "envoy.filters.http.router",
            "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" },
        }));
        json!({
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                "codec_type": "AUTO",
                "stat_prefix": self.stat_prefix,
                "route_config": {
                    "virtual_hosts": [{ "name": "backend", "domains": ["*"], "routes": [route] }],
                },
                "http_filters": filters,
            },
        })
    }
}

fn compressors() -> Vec<Value> {
    [("brotli", "Brotli"), ("zstd", "Zstd"), ("gzip", "Gzip")]
        .into_iter()
        .map(|(name, message)| {
            json!({
                "name": format!("envoy.filters.http.compressor.{name}"),
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.compressor.v3.Compressor",
                    "compressor_library": {
                        "name": format!("stats_{name}"),
                        "typed_config": { "@type": format!(
                            "type.googleapis.com/envoy.extensions.compression.{name}.compressor.v3.{message}"
                        )},
                    },
                    "response_direction_config": { "common_config": { "content_type": METRIC_FORMS } },
                },
            })
        })
        .collect()
}
