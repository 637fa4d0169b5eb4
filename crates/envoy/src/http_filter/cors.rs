//! Which other sites may call from a browser.

use pilot_base::Name;
use pilot_envoy_api::envoy::config::core::v3::RuntimeFractionalPercent;
use pilot_envoy_api::envoy::extensions::filters::http::cors::v3::CorsPolicy;
use pilot_envoy_api::to_any;
use pilot_model::{Cors, Percent};
use prost_types::Any;

use crate::convert::{fractional_percent, string_matcher};

/// What a route asks of the filter.
pub(crate) fn per_route(cors: &Cors) -> Any {
    let always = RuntimeFractionalPercent {
        default_value: Some(fractional_percent(Percent::Whole(100))),
        ..RuntimeFractionalPercent::default()
    };
    let policy = CorsPolicy {
        allow_origin_string_match: cors.allow_origins.iter().map(string_matcher).collect(),
        allow_methods: joined(&cors.allow_methods),
        allow_headers: joined(&cors.allow_headers),
        expose_headers: joined(&cors.expose_headers),
        max_age: cors.max_age.map(|age| age.as_secs().to_string()).unwrap_or_default(),
        allow_credentials: cors.allow_credentials,
        filter_enabled: Some(always),
        forward_not_matching_preflights: Some(!cors.ignore_unmatched_preflights),
        ..CorsPolicy::default()
    };
    to_any(&policy)
}

fn joined(names: &[Name]) -> String {
    names.iter().map(Name::as_str).collect::<Vec<_>>().join(",")
}
