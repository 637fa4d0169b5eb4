use std::sync::Arc;

use pilot_incr::{Graph, Table};
use pilot_model::ProxyType;
use pilot_xds::{Layer as Resources, Manifest, TypeUrl};

use super::audience::{Audience, Audiences};
use super::clusters::Clusters;
use super::endpoints::Endpoints;
use super::gateways::Gateways;
use super::inbound::Inbound;
use super::listeners::Listeners;
use super::routes::Routes;

/// Everything an audience is sent, by type.
#[derive(Clone, PartialEq, Default)]
pub struct Sent {
    pub by_type: [Manifest; TypeUrl::ALL.len()],
}

#[derive(Clone, Copy)]
pub(super) struct Parts {
    pub(super) clusters: Clusters,
    pub(super) endpoints: Endpoints,
    pub(super) listeners: Listeners,
    pub(super) routes: Routes,
    pub(super) inbound: Table<Arc<Audience>, Inbound>,
    pub(super) gateways: Gateways,
}

/// Stacks the layers of each type, the most general at the bottom.
pub(super) fn declare(graph: &mut Graph, audiences: Audiences, parts: Parts) -> Table<Arc<Audience>, Sent> {
    let Parts { clusters, endpoints, listeners, routes, inbound, gateways } = parts;
    graph.map("manifests", &audiences.all, move |audience, reader| {
        let own = reader.get(&inbound, audience).cloned().unwrap_or_default();
        let mut stacks: [Vec<Resources>; TypeUrl::ALL.len()] = Default::default();
        let mut push = |kind: TypeUrl, layer: Option<&Resources>| {
            stacks[kind.index()].push(layer.cloned().unwrap_or_default());
        };
        for layer in audience.scope.stack() {
            push(
                TypeUrl::Cluster,
                reader.get(&clusters.outbound, &(layer.clone(), audience.cluster.clone())),
            );
            push(
                TypeUrl::Endpoint,
                reader.get(&endpoints.plain, &(layer.clone(), audience.endpoint.clone())),
            );
            let place = (audience.endpoint.clone(), audience.locality.clone());
            push(TypeUrl::Endpoint, reader.get(&endpoints.local, &(layer.clone(), place)));
            if audience.kind != ProxyType::Sidecar {
                continue;
            }
            let asker = (layer.clone(), Arc::clone(&audience.listener));
            push(TypeUrl::Listener, reader.get(&listeners.l4, &asker));
            push(TypeUrl::Listener, reader.get(&listeners.http, &(asker, Arc::clone(&audience.http))));
            push(TypeUrl::Route, reader.get(&routes.tables, &(layer, Arc::clone(&audience.route))));
        }
        push(TypeUrl::Cluster, reader.get(&clusters.fixed, &audience.fixed));
        push(TypeUrl::Cluster, Some(&own.clusters));
        if audience.kind == ProxyType::Sidecar {
            push(TypeUrl::Listener, reader.get(&listeners.virtual_outbound, &audience.listener));
            push(TypeUrl::Listener, Some(&own.listeners));
        }
        if let Some(asker) = audience.gateway_listener() {
            push(TypeUrl::Listener, reader.get(&gateways.listeners, &asker));
        }
        if let Some(asker) = audience.gateway_route() {
            push(TypeUrl::Route, reader.get(&gateways.routes, &asker));
        }
        Some(Sent { by_type: stacks.map(Manifest::new) })
    })
}
