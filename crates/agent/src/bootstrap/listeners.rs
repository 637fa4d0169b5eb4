use serde_json::{Value, json};

use super::hosts::{Hosts, socket};
use super::tls::secret;
use super::{BootstrapOptions, clusters};
use crate::proxy_config::ProxyConfig;

/// The forms in which Prometheus takes statistics.
const METRIC_FORMS: [&str; 4] = [
    "text/plain",
    "application/vnd.google.protobuf",
    "application/openmetrics-text",
    "application/openmetrics-protobuf",
];

/// Paths of a static listener and the cluster that answers them.
struct Door<'a> {
    stat_prefix: &'a str,
    paths: &'a [&'a str],
    cluster: &'a str,
    port: u16,
    filters: Vec<Value>,
    guard: Guard,
}

/// Who is let in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Guard {
    Anyone,
    /// Also those who say in front of what they say for whom they speak.
    ProxyProtocol,
    /// Those with a certificate of the mesh.
    MutualTls,
}

pub(super) fn all(hosts: &Hosts, config: &ProxyConfig, options: &BootstrapOptions) -> Vec<Value> {
    let mut listeners = Vec::new();
    if options.prometheus_port != 0 {
        let door = Door {
            stat_prefix: "stats",
            paths: &["/stats/prometheus"],
            cluster: clusters::ADMIN,
            port: options.prometheus_port,
            filters: if config.stats.compression { compressors() } else { Vec::new() },
            guard: Guard::Anyone,
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
    listeners.extend(secure(options).map(|door| door.listener(&hosts.wildcard, None)));
    // Without the agent's status server there is nobody to ask.
    if options.status_port != 0 && config.status_port != 0 {
        let door = Door {
            stat_prefix: "agent",
            paths: &["/healthz/ready"],
            cluster: clusters::AGENT,
            port: options.status_port,
            filters: Vec::new(),
            guard: if options.probes_with_proxy_protocol { Guard::ProxyProtocol } else { Guard::Anyone },
        };
        listeners.push(door.listener(&hosts.wildcard, hosts.also_wildcard.as_deref()));
    }
    listeners
}

/// Statistics for those who show a certificate: Envoy's, and what the agent merges.
fn secure<'a>(options: &BootstrapOptions) -> impl Iterator<Item = Door<'a>> {
    let own = Door {
        stat_prefix: "secure_stats",
        paths: &["/stats/prometheus"],
        cluster: clusters::ADMIN,
        port: options.secure_metrics_port,
        filters: Vec::new(),
        guard: Guard::MutualTls,
    };
    let merged = Door {
        stat_prefix: "secure_merged_stats",
        paths: &["/stats/prometheus", "/metrics"],
        cluster: clusters::AGENT,
        port: options.secure_merged_metrics_port,
        filters: Vec::new(),
        guard: Guard::MutualTls,
    };
    [own, merged].into_iter().filter(|door| door.port != 0)
}

impl Door<'_> {
    fn listener(self, address: &str, also: Option<&str>) -> Value {
        let Self { port, guard, .. } = self;
        let mut chain = json!({ "filters": [self.connection_manager()] });
        let mut listener = json!({
            "name": format!("{address}_{port}"),
            "address": socket(address, port),
            // A proxy with too many connections must still be able to tell so.
            "ignore_global_conn_limit": true,
            "bypass_overload_manager": true,
        });
        if let Some(also) = also {
            listener["additional_addresses"] = json!([{ "address": socket(also, port) }]);
        }
        match guard {
            Guard::Anyone => (),
            Guard::ProxyProtocol => listener["listener_filters"] = json!([proxy_protocol()]),
            Guard::MutualTls => {
                listener["listener_filters"] = json!([tls_inspector()]);
                chain["filter_chain_match"] = json!({ "transport_protocol": "tls" });
                chain["transport_socket"] = mutual_tls();
            }
        }
        listener["filter_chains"] = json!([chain]);
        listener
    }

    fn connection_manager(self) -> Value {
        let route =
            |path: &&str| json!({ "match": { "prefix": path }, "route": { "cluster": self.cluster } });
        let routes: Vec<Value> = self.paths.iter().map(route).collect();
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
                    "virtual_hosts": [{ "name": "backend", "domains": ["*"], "routes": routes }],
                },
                "http_filters": filters,
            },
        })
    }
}

fn tls_inspector() -> Value {
    json!({
        "name": "envoy.filters.listener.tls_inspector",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
        },
    })
}

fn proxy_protocol() -> Value {
    json!({
        "name": "envoy.listener.proxy_protocol",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol",
            "allow_requests_without_proxy_protocol": true,
        },
    })
}

fn mutual_tls() -> Value {
    json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "require_client_certificate": true,
            "common_tls_context": {
                "tls_certificate_sds_secret_configs": [secret("default")],
                "combined_validation_context": {
                    "default_validation_context": {},
                    "validation_context_sds_secret_config": secret("ROOTCA"),
                },
            },
        },
    })
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
