//! Protocols for which Envoy has filters of its own.

use pilot_envoy_api::envoy::config::listener::v3 as api;
use pilot_envoy_api::envoy::extensions::filters::network::mongo_proxy::v3::MongoProxy;
use pilot_envoy_api::envoy::extensions::filters::network::mysql_proxy::v3::MySqlProxy;
use pilot_envoy_api::envoy::extensions::filters::network::redis_proxy::v3::{RedisProxy, redis_proxy};
use pilot_envoy_api::to_any;
use pilot_model::Protocol;

use super::merge::L4Serve;
use crate::convert::seconds;
use crate::network_filter::filter;
use crate::settings::Settings;

/// How long Redis may take to answer a command, in seconds.
const REDIS_TIMEOUT: i64 = 5;

/// The filters that hand a connection on, with one that looks into it where that is switched on.
pub(crate) fn protocol_filters(serve: &L4Serve, settings: Settings<'_>) -> Vec<api::Filter> {
    let features = &settings.options.features;
    let stat_prefix = serve.proxy.stat_prefix.clone();
    let looking = match serve.protocol {
        Protocol::Mongo if features.mongo_filter => {
            let config = MongoProxy { stat_prefix, ..MongoProxy::default() };
            filter("envoy.filters.network.mongo_proxy", to_any(&config))
        }
        Protocol::MySql if features.mysql_filter => {
            let config = MySqlProxy { stat_prefix, ..MySqlProxy::default() };
            filter("envoy.filters.network.mysql_proxy", to_any(&config))
        }
        // It hands commands on itself.
        Protocol::Redis if features.redis_filter => return vec![redis(serve, stat_prefix)],
        _ => return vec![serve.proxy.build(settings)],
    };
    vec![looking, serve.proxy.build(settings)]
}

fn redis(serve: &L4Serve, stat_prefix: String) -> api::Filter {
    use redis_proxy::{ConnPoolSettings, PrefixRoutes, prefix_routes::Route};
    let route = Route { cluster: serve.cluster.to_string(), ..Route::default() };
    let config = RedisProxy {
        stat_prefix,
        latency_in_micros: true,
        settings: Some(ConnPoolSettings {
            op_timeout: Some(seconds(REDIS_TIMEOUT)),
            ..ConnPoolSettings::default()
        }),
        prefix_routes: Some(PrefixRoutes { catch_all_route: Some(route), ..PrefixRoutes::default() }),
        ..RedisProxy::default()
    };
    filter("envoy.filters.network.redis_proxy", to_any(&config))
}
