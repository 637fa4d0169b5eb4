use std::sync::Arc;

use pilot_base::Keyed;
use pilot_envoy::{
    Guard, PolicyTraits, SecurityFilters, Settings, http_proxy_listener, inbound_clusters, inbound_listeners,
};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{Layer, Target, ingress_targets, pool_for};
use pilot_model::{ConfigId, Interception};

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
) -> Table<Keyed<Audience>, Inbound> {
    let inputs = plans.inputs;
    graph.map("inbound", &audiences.all, move |audience, reader| {
        let settings = inputs.settings(reader)?;
        if !audience.is_sidecar() {
            return Some(Inbound::default());
        }
        let targets = targets(audience, plans, settings, reader);
        let rules = |target: &Target| {
            plans
                .get(&audience.scope, &target.service.host, reader)
                .and_then(|plan| plan.served_traffic().cloned())
        };
        let clusters = inbound_clusters(&targets, &audience.fixed, settings, rules);
        let guard = Guard { peers: &audience.peers, filters: reader.get(&filters, &audience.policies)? };
        let inbound = settings.with_chain(&audience.inbound_chain);
        let traits = &audience.listener;
        let mut listeners = inbound_listeners(&targets, traits, &audience.inbound_http, guard, inbound);
        if audience.http_proxy_port != 0 {
            let port = audience.http_proxy_port;
            listeners.push(http_proxy_listener(port, traits, &audience.http, settings));
        }
        let layer = |encoded: &mut dyn Iterator<Item = Arc<pilot_xds::Encoded>>| {
            encoded.map(|e| (e.name().clone(), Some(e))).collect()
        };
        Some(Inbound {
            clusters: layer(&mut clusters.into_iter()),
            listeners: layer(&mut listeners.into_iter()),
        })
    })
}

/// The ports that the workload serves: what its Sidecar says, or else those of services.
fn targets(audience: &Audience, plans: Plans, settings: Settings<'_>, reader: &Reader<'_>) -> Vec<Target> {
    let redirected = audience.listener.interception != Interception::None;
    let sidecar = match &audience.scope {
        Layer::Sidecar(scope) => scope.id.as_ref().and_then(|id| {
            let sidecar = reader.get(&plans.inputs.sidecars, id)?;
            Some((&sidecar.spec, ConfigId::new(scope.namespace.clone(), id.name.clone())))
        }),
        Layer::Base | Layer::Namespace(_) => None,
    };
    let mut services = plans.registry.targets(reader, audience.served());
    let Some((sidecar, id)) = sidecar else { return if redirected { services } else { Vec::new() } };
    services.iter_mut().for_each(|target| target.pool = pool_for(sidecar, target.target_port));
    if sidecar.ingress.is_empty() {
        return if redirected { services } else { Vec::new() };
    }
    let declared = ingress_targets(sidecar, &id, &audience.addresses, &services);
    if !settings.options.features.merge_ingress {
        return declared;
    }
    services.retain(|target| sidecar.ingress.iter().all(|listener| listener.port != target.target_port));
    services.extend(declared);
    services
}
