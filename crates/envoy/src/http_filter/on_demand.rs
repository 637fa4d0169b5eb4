use pilot_envoy_api::envoy::extensions::filters::http::on_demand::v3::{OnDemand, OnDemandCds};
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use pilot_envoy_api::to_any;

use super::http_filter;
use crate::convert::{ads_source, seconds};

/// How long a request waits for a cluster that was asked for. Envoy's own default, written down because a route to what is
/// not there is only then answered with an error.
const PATIENCE: i64 = 5;

/// Holds requests to clusters that the proxy does not have until it was given them.
pub(super) fn filter() -> HttpFilter {
    let odcds = OnDemandCds {
        source: Some(ads_source()),
        timeout: Some(seconds(PATIENCE)),
        ..OnDemandCds::default()
    };
    http_filter("envoy.filters.http.on_demand", to_any(&OnDemand { odcds: Some(odcds) }))
}
