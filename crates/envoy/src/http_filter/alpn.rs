use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use pilot_envoy_api::istio::envoy::config::filter::http::alpn::v2alpha1::{FilterConfig, filter_config};
use pilot_envoy_api::to_any;

/// Tells the sidecar at the other end which protocol it will hear, so that it need not find out.
pub(super) fn filter() -> HttpFilter {
    use filter_config::{AlpnOverride, Protocol};
    let to = |protocol: Protocol, names: [&str; 3]| AlpnOverride {
        upstream_protocol: protocol as i32,
        alpn_override: names.map(str::to_owned).to_vec(),
    };
    let config = FilterConfig {
        alpn_override: vec![
            to(Protocol::Http10, ["istio-http/1.0", "istio", "http/1.0"]),
            to(Protocol::Http11, ["istio-http/1.1", "istio", "http/1.1"]),
            to(Protocol::Http2, ["istio-h2", "istio", "h2"]),
        ],
    };
    super::http_filter("istio.alpn", to_any(&config))
}
