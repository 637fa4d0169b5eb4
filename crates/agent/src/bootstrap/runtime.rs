use serde_json::{Map, Value, json};

use super::BootstrapOptions;
use crate::proxy_config::ProxyConfig;

const CONNECTION_LIMIT_METADATA: &str = "ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS";
const CONNECTION_LIMIT_RUNTIME: &str = "overload.global_downstream_max_connections";

/// The switches that Istio's proxies run with, changed by the user's. An empty value takes a switch away.
pub(super) fn flags(config: &ProxyConfig, options: &BootstrapOptions) -> Map<String, Value> {
    let mut flags = Map::new();
    for (name, value) in [
        ("re2.max_program_size.error_level", json!("32768")),
        (
            "envoy.deprecated_features:envoy.config.listener.v3.Listener.hidden_envoy_deprecated_use_original_dst",
            json!(true),
        ),
        ("envoy.reloadable_features.http_reject_path_with_fragment", json!(false)),
        ("envoy.reloadable_features.fixed_heap_use_allocated", json!(true)),
        ("envoy.reloadable_features.coalesce_lb_rebuilds_on_batch_update", json!(false)),
    ] {
        flags.insert(name.to_owned(), value);
    }
    if options.fips {
        flags.insert("envoy.reloadable_features.google_grpc_disable_tls_13".to_owned(), json!(true));
    }
    if options.keeps_fragments {
        let name = "envoy.reloadable_features.http_strip_fragment_from_path_unsafe_if_disabled";
        flags.insert(name.to_owned(), json!("false"));
    }
    for (name, text) in &config.runtime_values {
        match text.as_str() {
            "" => {
                flags.remove(name);
            }
            // The settings hold texts, and Envoy wants real booleans.
            "true" | "false" => {
                flags.insert(name.clone(), json!(text == "true"));
            }
            _ => {
                flags.insert(name.clone(), json!(text));
            }
        }
    }
    flags
}

pub(super) fn layers(config: &ProxyConfig, options: &BootstrapOptions) -> Value {
    json!({ "layers": [
        { "name": "global config", "static_layer": flags(config, options) },
        { "name": "admin", "admin_layer": {} },
    ]})
}

/// Connections from others that Envoy takes at most.
pub(super) fn connection_limit(config: &ProxyConfig) -> i32 {
    let told =
        [config.metadata.get(CONNECTION_LIMIT_METADATA), config.runtime_values.get(CONNECTION_LIMIT_RUNTIME)];
    told.into_iter().flatten().find_map(|text| text.parse().ok()).unwrap_or(i32::MAX)
}

pub(super) fn overload_manager(config: &ProxyConfig) -> Value {
    let limit = connection_limit(config);
    json!({ "resource_monitors": [{
        "name": "envoy.resource_monitors.global_downstream_max_connections",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
            "max_active_downstream_connections": limit,
        },
    }]})
}
