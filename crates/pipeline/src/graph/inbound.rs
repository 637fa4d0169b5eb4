use std::sync::Arc;

use pilot_envoy::{Guard, PolicyTraits, SecurityFilters, inbound_clusters, virtual_inbound};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{Target, order_targets, ports};
use pilot_model::{Interception, ProxyType};

use super::audience::{Audience, Audiences};
use super::plans::Plans;

/// What a workload is sent for its own ports.
#[derive(Clone, PartialEq, Default)]
pub(super) struct Inbound {
    pub(super) clusters: pilot_xds::Layer,
    pub(super) listeners: pilot_xds::Layer,
}

pub(super) fn declare(
    graph: &mut Graph,
    plans: Plans,
    audiences: Audiences,
    filters: Table<Arc<PolicyTraits>, Arc<SecurityFilters>>,
) -> Table<Arc<Audience>, Inbound> {
    let inputs = plans.inputs;
    graph.map("inbound", &audiences.all, move |audience, reader| {
        let settings = inputs.settings(reader)?;
        if audience.kind != ProxyType::Sidecar {
            return Some(Inbound::default());
        }
        let targets = targets(audience, plans, reader);
        let rules = |target: &Target| {
            plans.get(&audience.scope, &target.service.host, reader).and_then(|plan| plan.traffic.clone())
        };
        let redirected = audience.listener.interception != Interception::None;
        let clusters = if redirected { &targets[..] } else { &[] };
        let clusters = inbound_clusters(clusters, &audience.fixed, settings, rules);
        let guard = Guard { peers: &audience.peers, filters: reader.get(&filters, &audience.policies)? };
        let inbound = settings.with_chain(&audience.inbound_chain);
        let listener = virtual_inbound(&targets, &audience.listener, &audience.inbound_http, guard, inbound);
        let layer = |encoded: &mut dyn Iterator<Item = Arc<pilot_xds::Encoded>>| {
            encoded.map(|e| (e.name().clone(), Some(e))).collect()
        };
        Some(Inbound {
            clusters: layer(&mut clusters.into_iter()),
            listeners: layer(&mut listener.into_iter()),
        })
    })
}

/// The ports of services that the workload serves, in the order in which they claim its ports.
fn targets(audience: &Audience, plans: Plans, reader: &Reader<'_>) -> Vec<Target> {
    let mut out = Vec::new();
    for served in audience.served() {
        let services = plans.registry.services(reader, &served.host);
        let mut own: Vec<_> = services.into_iter().filter(|s| s.namespace == served.namespace).collect();
        own.sort_by_key(|service| service.registry);
        for (service, port) in ports(&own).into_iter().filter(|(_, port)| port.name == served.port_name) {
            out.push(Target {
                service: Arc::clone(service),
                port: port.number,
                protocol: port.protocol,
                target_port: served.target_port,
            });
        }
    }
    order_targets(&mut out);
    out
}
