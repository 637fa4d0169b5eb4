//! The application beside the proxy, as a cluster for each of its ports.

use std::collections::BTreeMap;

use pilot_base::Name;
use pilot_envoy_api::envoy::config::cluster::v3::cluster::{DiscoveryType, LbPolicy};
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::config::endpoint::v3 as endpoint;
use pilot_mesh::{ClusterName, Target, TrafficPlan, for_port, with_default};
use pilot_model::{ConnectionPool, InboundPolicy, Kind, ProxyType, TrafficPolicy};
use pilot_xds::EncodedList;

use super::{Draft, apply_connection_pool, encode, preserve_case};
use crate::convert::{bind_address, localhosts, passthrough_binds, seconds, socket_address, stat_prefix};
use crate::metadata::IstioMetadata;
use crate::settings::{FixedTraits, Settings};
use crate::stat_name::StatName;

/// The longest time Envoy can wait before it forgets an original destination.
const NEVER_CLEAN_UP: i64 = 9_223_372_035;

const LOCALHOSTS: [&str; 2] = ["127.0.0.1", "::1"];

/// One cluster for each port a workload serves. `rules` gives the rule for a service, whose limits hold on both sides.
pub fn inbound_clusters(
    targets: &[Target],
    traits: &FixedTraits,
    settings: Settings<'_>,
    rules: impl Fn(&Target) -> Option<TrafficPlan>,
) -> EncodedList {
    let mut by_port: BTreeMap<u16, Vec<&Target>> = BTreeMap::new();
    for target in targets {
        by_port.entry(target.target_port).or_default().push(target);
    }
    let each = by_port.into_iter().map(|(port, targets)| {
        let rule = rules(targets[0]);
        encode(inbound_cluster(port, &targets, rule.as_ref(), traits, settings))
    });
    each.collect()
}

fn inbound_cluster(
    port: u16,
    targets: &[&Target],
    rule: Option<&TrafficPlan>,
    traits: &FixedTraits,
    settings: Settings<'_>,
) -> Draft {
    // The first service claims the port: its protocol and its rules count.
    let primary = targets[0];
    let name = ClusterName::inbound(port);
    let localhost = localhosts(traits.ip_mode)[0];
    let endpoint = match (&primary.ingress, settings.mesh.inbound) {
        (Some(ingress), _) => ingress.endpoint.clone(),
        (None, InboundPolicy::Localhost) => Some((Name::new(localhost), port)),
        (None, InboundPolicy::Passthrough) => None,
    };
    let discovery = if endpoint.is_some() { DiscoveryType::Static } else { DiscoveryType::OriginalDst };
    let mut draft = Draft::new(&name, discovery);
    draft.set_protocol(primary.protocol, ProxyType::Sidecar, traits.preserve_case.then(preserve_case));
    let policy = rule.and_then(|rule| rule.rule.policy.as_ref()).map(|policy| for_port(policy, primary.port));
    let policy = with_default(policy, settings.mesh);
    let of_policy = policy.as_deref().and_then(|p: &TrafficPolicy| p.connection_pool.as_ref());
    let pool = primary.pool.as_ref().or(of_policy);
    let budget = policy.as_deref().and_then(|p| p.retry_budget.as_ref());
    apply_connection_pool(&mut draft, pool.unwrap_or(&ConnectionPool::default()), budget, settings);
    // Traffic to localhost is not redirected; elsewhere only this address is let through.
    let is_local = |(address, _): &(Name, u16)| LOCALHOSTS.contains(&address.as_str());
    if !endpoint.as_ref().is_some_and(is_local) {
        draft.cluster.upstream_bind_config = Some(core::BindConfig {
            source_address: Some(bind_address(passthrough_binds(traits.ip_mode)[0])),
            ..core::BindConfig::default()
        });
    }
    if let Some((address, port)) = &endpoint {
        draft.cluster.load_assignment = Some(local_endpoint(&name, address, *port));
    } else {
        draft.cluster.lb_policy = LbPolicy::ClusterProvided as i32;
        draft.cluster.cleanup_interval = Some(seconds(NEVER_CLEAN_UP));
    }
    let stats = StatName {
        service: Some(&primary.service),
        port: primary.port,
        port_name: primary.port_name(),
        target_port: Some(port),
        ..StatName::default()
    };
    if let Some(name) = stats.by(&settings.mesh.inbound_cluster_stat_name) {
        draft.cluster.alt_stat_name = stat_prefix(&name);
    }
    draft.cluster.metadata = metadata(targets, rule, settings);
    draft
}

pub(super) fn local_endpoint(name: &str, address: &str, port: u16) -> endpoint::ClusterLoadAssignment {
    use endpoint::lb_endpoint::HostIdentifier;
    let host =
        endpoint::Endpoint { address: Some(socket_address(address, port)), ..endpoint::Endpoint::default() };
    let lb_endpoint = endpoint::LbEndpoint {
        host_identifier: Some(HostIdentifier::Endpoint(host)),
        ..endpoint::LbEndpoint::default()
    };
    endpoint::ClusterLoadAssignment {
        cluster_name: name.to_owned(),
        endpoints: vec![endpoint::LocalityLbEndpoints {
            lb_endpoints: vec![lb_endpoint],
            ..endpoint::LocalityLbEndpoints::default()
        }],
        ..endpoint::ClusterLoadAssignment::default()
    }
}

fn metadata(
    targets: &[&Target],
    rule: Option<&TrafficPlan>,
    settings: Settings<'_>,
) -> Option<core::Metadata> {
    let primary = targets[0];
    let mut metadata = IstioMetadata::default();
    let known = settings.options.features.telemetry_label && !primary.service.mesh_external;
    if known {
        let mut hosts = std::collections::BTreeSet::new();
        let same_port = targets.iter().filter(|target| target.port == primary.port);
        metadata.services(same_port.filter(|t| hosts.insert(&t.service.host)).map(|t| &*t.service));
    }
    let id = rule.filter(|rule| rule.rule.policy.is_some()).and_then(|rule| rule.from.first());
    if let Some(id) = id.filter(|_| known) {
        metadata.config(Kind::DestinationRule, id);
    }
    metadata.build()
}
