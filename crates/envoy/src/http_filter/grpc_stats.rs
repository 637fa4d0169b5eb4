use pilot_envoy_api::envoy::extensions::filters::http::grpc_stats::v3::{FilterConfig, filter_config};
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use pilot_envoy_api::to_any;

/// Counts gRPC messages, not by method: methods are named by clients and there is no end to them.
pub(super) fn filter() -> HttpFilter {
    let config = FilterConfig {
        emit_filter_state: true,
        per_method_stat_specifier: Some(filter_config::PerMethodStatSpecifier::StatsForAllMethods(false)),
        ..FilterConfig::default()
    };
    super::http_filter("envoy.filters.http.grpc_stats", to_any(&config))
}
