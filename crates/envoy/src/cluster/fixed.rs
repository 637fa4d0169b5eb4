//! The clusters that every proxy has.

use std::sync::Arc;

use pilot_base::Name;
use pilot_envoy_api::envoy::config::cluster::v3::cluster::{DiscoveryType, LbPolicy};
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_model::{CertificateFiles, ConnectionPool, IpMode, ProxyType, Registry, TlsMode};
use pilot_xds::{Encoded, EncodedList};

use super::inbound::local_endpoint;
use super::lookup::dynamic_cluster;
use super::{Draft, apply_connection_pool, encode, preserve_case, tls};
use crate::convert::{bind_address, duration, passthrough_binds, seconds, stat_prefix};
use crate::dynamic_forward_proxy::{ANY_CLUSTER, any_names};
use crate::network_filter::metadata_exchange_upstream;
use crate::settings::{FixedTraits, SecretServer, Settings};
use crate::tls_context::EXTERNAL_SECRETS;

/// Where the agent's container and its neighbours share a socket.
const SECRETS_SOCKET: &str = "unix://./var/run/secrets/credential-uds/socket";

/// Where traffic to hosts that nobody knows is dropped or let through, and where unknown inbound traffic goes.
pub fn fixed_clusters(traits: &FixedTraits, settings: Settings<'_>) -> EncodedList {
    let mut clusters: Vec<Arc<Encoded>> = vec![encode(black_hole(settings))];
    // Nothing reaches a gateway that was on its way elsewhere.
    if traits.kind != ProxyType::Router {
        clusters.push(encode(passthrough(traits, settings)));
        clusters.push(encode(inbound_passthrough(traits, settings)));
    }
    if traits.credentials == SecretServer::Beside {
        clusters.push(encode(external_secrets(settings)));
    }
    clusters.into_iter().chain(by_name(traits, settings).map(encode)).collect()
}

/// The program beside the proxy that has the secrets which are asked for as `sds://`.
fn external_secrets(settings: Settings<'_>) -> Draft {
    let mut draft = Draft::new(&Name::new(EXTERNAL_SECRETS), DiscoveryType::Static);
    draft.cluster.common_lb_config = None;
    draft.cluster.connect_timeout = Some(duration(settings.mesh.connect_timeout));
    draft.cluster.load_assignment = Some(local_endpoint(EXTERNAL_SECRETS, SECRETS_SOCKET, 0));
    draft.set_http2();
    draft
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
    pass_on(&mut draft, traits);
    let pool = settings.mesh.default_traffic_policy.connection_pool.clone().unwrap_or_default();
    apply_connection_pool(&mut draft, &pool, None, settings);
    if settings.options.features.metadata_exchange {
        draft.cluster.filters.push(metadata_exchange_upstream());
    }
    draft
}

/// Hosts that nobody declared, found by their names, where the mesh wants that.
fn by_name(traits: &FixedTraits, settings: Settings<'_>) -> Option<Draft> {
    let names = any_names(traits.dynamic.as_ref()?, traits.ip_mode, settings)?;
    let mut draft = dynamic_cluster(&Name::new(ANY_CLUSTER), names);
    draft.cluster.connect_timeout = Some(duration(settings.mesh.connect_timeout));
    pass_on(&mut draft, traits);
    apply_connection_pool(&mut draft, &ConnectionPool::default(), None, settings);
    match settings.mesh.outbound_tls.as_ref().filter(|tls| tls.mode != TlsMode::Disable) {
        Some(rule) => {
            let upstream = tls::Upstream {
                external: true,
                registry: Registry::Kubernetes,
                accounts: &[],
                sni: &Name::empty(),
                kind: traits.kind,
                certs: &CertificateFiles::default(),
                credentials: SecretServer::Usual,
                mutual: false,
                is_selective: false,
            };
            tls::apply(&mut draft, Some(rule), &upstream, settings);
        }
        None => draft.allow_unchecked_hosts(),
    }
    if settings.options.features.metadata_exchange {
        draft.cluster.filters.push(metadata_exchange_upstream());
    }
    Some(draft)
}

/// Requests are sent on in the protocol in which they came.
fn pass_on(draft: &mut Draft, traits: &FixedTraits) {
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
