//! The clusters that every proxy has.

use std::sync::Arc;

use pilot_base::Name;
use pilot_envoy_api::envoy::config::cluster::v3::cluster::{DiscoveryType, LbPolicy};
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_model::{IpMode, ProxyType};
use pilot_xds::{Encoded, EncodedList};

use super::{Draft, apply_connection_pool, encode, preserve_case};
use crate::convert::{bind_address, duration, passthrough_binds, seconds, stat_prefix};
use crate::network_filter::metadata_exchange_upstream;
use crate::settings::{FixedTraits, Settings};

/// Where traffic to hosts that nobody knows is dropped or let through, and where unknown inbound traffic goes.
pub fn fixed_clusters(traits: &FixedTraits, settings: Settings<'_>) -> EncodedList {
    if traits.kind == ProxyType::Router {
        // Nothing reaches a gateway that was on its way elsewhere.
        return std::iter::once(encode(black_hole(settings))).collect();
    }
    let clusters: [Arc<Encoded>; 3] = [
        encode(black_hole(settings)),
        encode(passthrough(traits, settings)),
        encode(inbound_passthrough(traits, settings)),
    ];
    clusters.into_iter().collect()
}

fn black_hole(settings: Settings<'_>) -> Draft {
    let mut draft = Draft::new(&Name::new("BlackHoleCluster"), DiscoveryType::Static);
    draft.cluster.common_lb_config = None;
    draft.cluster.connect_timeout = Some(duration(settings.mesh.connect_timeout));
    draft
}

fn passthrough(traits: &FixedTraits, settings: Settings<'_>) -> Draft {
    let mut draft = Draft::new(&Name::new("PassthroughCluster"), DiscoveryType::OriginalDst);
    draft.cluster.common_lb_config = None;
    draft.cluster.lb_policy = LbPolicy::ClusterProvided as i32;
    if traits.preserve_case {
        use pilot_envoy_api::envoy::extensions::upstreams::http::v3::http_protocol_options::UpstreamProtocolOptions;
        draft.use_downstream_protocol();
        if let Some(UpstreamProtocolOptions::UseDownstreamProtocolConfig(config)) =
            &mut draft.http_mut().upstream_protocol_options
        {
            config.http_protocol_options = Some(preserve_case());
        }
    } else {
        draft.use_downstream_protocol();
    }
    draft.http_mut().common_http_protocol_options = Some(core::HttpProtocolOptions {
        idle_timeout: Some(seconds(300)),
        ..core::HttpProtocolOptions::default()
    });
    let pool = settings.mesh.default_traffic_policy.connection_pool.clone().unwrap_or_default();
    apply_connection_pool(&mut draft, &pool, None, settings);
    if settings.options.features.metadata_exchange {
        draft.cluster.filters.push(metadata_exchange_upstream());
    }
    draft
}

fn inbound_passthrough(traits: &FixedTraits, settings: Settings<'_>) -> Draft {
    let mut draft = passthrough(traits, settings);
    draft.cluster.name = "InboundPassthroughCluster".to_owned();
    // Its statistics have always stood under the other's name.
    draft.cluster.alt_stat_name = stat_prefix("PassthroughCluster");
    draft.cluster.filters.clear();
    let binds = passthrough_binds(traits.ip_mode);
    let extra = match traits.ip_mode {
        IpMode::Dual => &binds[1..],
        IpMode::V4 | IpMode::V6 => &[],
    };
    draft.cluster.upstream_bind_config = Some(core::BindConfig {
        source_address: Some(bind_address(binds[0])),
        extra_source_addresses: extra
            .iter()
            .map(|address| core::ExtraSourceAddress {
                address: Some(bind_address(address)),
                ..core::ExtraSourceAddress::default()
            })
            .collect(),
        ..core::BindConfig::default()
    });
    draft
}
