use std::sync::Arc;

use pilot_base::Name;
use pilot_envoy::{
    ClusterTraits, GrpcTraits, NameTraits, ProxyPatches, unserved_clusters, unserved_endpoints,
    unserved_gateway_routes, unserved_routes,
};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::Layer;
use pilot_xds::{Encoded, Layer as Resources, Manifest, TypeUrl, Unserved};

use super::audience::{Audience, Audiences};
use super::clusters::Clusters;
use super::endpoints::Endpoints;
use super::gateways::Gateways;
use super::grpc::Grpc;
use super::inbound::Inbound;
use super::listeners::Listeners;
use super::patched::Patched;
use super::routes::Routes;

/// Everything an audience is sent, by type.
#[derive(Clone, PartialEq, Default)]
pub struct Sent {
    pub by_type: [Manifest; TypeUrl::ALL.len()],
}

#[derive(Clone, Copy)]
pub(super) struct Parts {
    pub(super) clusters: Clusters,
    /// Clusters that are sent at once to those who ask for the others.
    pub(super) early: Table<(Layer, ClusterTraits), Resources>,
    pub(super) endpoints: Endpoints,
    pub(super) listeners: Listeners,
    pub(super) routes: Routes,
    pub(super) inbound: Table<Arc<Audience>, Inbound>,
    pub(super) gateways: Gateways,
    pub(super) grpc: Grpc,
    pub(super) names: Table<(Layer, NameTraits), Resources>,
    /// The code of each namespace's extensions.
    pub(super) extensions: Table<Name, Resources>,
}

/// Stacks the layers of each type, the most general at the bottom.
pub(super) fn declare(
    graph: &mut Graph,
    audiences: Audiences,
    parts: Parts,
    patched: Patched,
) -> Table<Arc<Audience>, Sent> {
    let Parts { clusters, endpoints, listeners, routes, inbound, gateways, names, extensions, .. } = parts;
    graph.map("manifests", &audiences.all, move |audience, reader| {
        if let Some(traits) = &audience.grpc {
            return Some(for_grpc(audience, traits, parts, reader));
        }
        let own = reader.get(&inbound, audience).cloned().unwrap_or_default();
        let none = ProxyPatches::default();
        let outbound = &audience.patches.as_deref().unwrap_or(&none).outbound;
        let mut stacks: [Vec<Resources>; TypeUrl::ALL.len()] = Default::default();
        let mut push = |kind: TypeUrl, layer: Option<&Resources>| {
            stacks[kind.index()].push(layer.cloned().unwrap_or_default());
        };
        for layer in audience.scope.stack() {
            push(
                TypeUrl::Cluster,
                reader.get(&clusters.outbound, &(layer.clone(), audience.cluster.clone())),
            );
            if let Some(patches) = &outbound.clusters {
                let asker = (audience.cluster.clone(), Arc::clone(patches));
                push(TypeUrl::Cluster, reader.get(&patched.clusters, &(layer.clone(), asker)));
            }
            push(
                TypeUrl::Endpoint,
                reader.get(&endpoints.plain, &(layer.clone(), audience.endpoint.clone())),
            );
            let place = (audience.cluster.clone(), audience.place.clone());
            push(TypeUrl::Cluster, reader.get(&clusters.local, &(layer.clone(), place)));
            let place = (audience.endpoint.clone(), audience.place.clone());
            push(TypeUrl::Endpoint, reader.get(&endpoints.local, &(layer.clone(), place)));
            if !audience.is_sidecar() {
                continue;
            }
            let asker = (layer.clone(), Arc::clone(&audience.listener));
            push(TypeUrl::Listener, reader.get(&listeners.l4, &asker));
            let http = Arc::clone(&audience.http);
            push(TypeUrl::Listener, reader.get(&listeners.http, &(asker.clone(), Arc::clone(&http))));
            if let Some(patches) = &outbound.listeners {
                let l4 = (asker.clone(), Arc::clone(patches));
                push(TypeUrl::Listener, reader.get(&patched.l4_listeners, &l4));
                let http = (asker, (http, Arc::clone(patches)));
                push(TypeUrl::Listener, reader.get(&patched.http_listeners, &http));
            }
            let asker = (layer, Arc::clone(&audience.route));
            push(TypeUrl::Route, reader.get(&routes.tables, &asker));
            if let Some(patches) = &outbound.routes {
                push(TypeUrl::Route, reader.get(&patched.routes, &(asker, Arc::clone(patches))));
            }
        }
        if let Some(traits) = &audience.names {
            push(TypeUrl::NameTable, reader.get(&names, &(audience.scope.clone(), traits.clone())));
        }
        for namespace in &audience.extension_namespaces {
            push(TypeUrl::ExtensionConfig, reader.get(&extensions, namespace));
        }
        push(TypeUrl::Cluster, reader.get(&clusters.fixed, &audience.fixed));
        push(TypeUrl::Cluster, Some(&own.clusters));
        if audience.is_sidecar() {
            push(TypeUrl::Listener, reader.get(&listeners.virtual_outbound, &audience.redirect()));
            push(TypeUrl::Listener, Some(&own.listeners));
            let hidden: Resources = audience.hidden.iter().map(|name| (name.clone(), None)).collect();
            push(TypeUrl::Listener, Some(&hidden));
        }
        if let Some(asker) = audience.gateway_listener() {
            push(TypeUrl::Listener, reader.get(&gateways.listeners, &asker));
        }
        if let Some(asker) = audience.gateway_route() {
            push(TypeUrl::Route, reader.get(&gateways.routes, &asker));
        }
        let mut by_type = stacks.map(Manifest::new);
        if let Some(own) = reader.get(&patched.own, audience) {
            add(&mut by_type[TypeUrl::Cluster.index()], &own.clusters, &own.added_clusters);
            add(&mut by_type[TypeUrl::Listener.index()], &own.listeners, &own.added_listeners);
            add(&mut by_type[TypeUrl::Route.index()], &own.routes, &[]);
            add(&mut by_type[TypeUrl::ExtensionConfig.index()], &Resources::default(), &own.added_extensions);
        }
        answer_unserved(&mut by_type, TypeUrl::Route, routes_for_others(audience));
        answer_unserved(&mut by_type, TypeUrl::Endpoint, unserved_endpoints());
        keep_back(&mut by_type, audience, &own.clusters, (parts, reader));
        Some(Sent { by_type })
    })
}

/// Clusters are there by name, but for those that a proxy is sent before it asks for any.
fn keep_back(
    by_type: &mut [Manifest],
    audience: &Audience,
    own: &Resources,
    (parts, reader): (Parts, &Reader<'_>),
) {
    if !audience.on_demand {
        return;
    }
    let mut out = Vec::new();
    let mut push = |layer: Option<&Resources>| out.push(layer.cloned().unwrap_or_default());
    for layer in audience.scope.stack() {
        push(reader.get(&parts.early, &(layer.clone(), audience.cluster.clone())));
        let place = (audience.cluster.clone(), audience.place.clone());
        push(reader.get(&parts.clusters.local, &(layer, place)));
    }
    push(reader.get(&parts.clusters.fixed, &audience.fixed));
    push(Some(own));
    let all = &mut by_type[TypeUrl::Cluster.index()];
    *all = std::mem::take(all).with_at_once(out);
    answer_unserved(by_type, TypeUrl::Cluster, unserved_clusters());
}

fn routes_for_others(audience: &Audience) -> Unserved {
    if audience.is_sidecar() { unserved_routes(&audience.route) } else { unserved_gateway_routes() }
}

fn answer_unserved(by_type: &mut [Manifest], kind: TypeUrl, unserved: Unserved) {
    let manifest = &mut by_type[kind.index()];
    *manifest = std::mem::take(manifest).with_unserved(unserved);
}

/// Everything that a gRPC library may ask for.
fn for_grpc(audience: &Arc<Audience>, traits: &Arc<GrpcTraits>, parts: Parts, reader: &Reader<'_>) -> Sent {
    let Parts { endpoints, grpc, .. } = parts;
    let mut stacks: [Vec<Resources>; TypeUrl::ALL.len()] = Default::default();
    let mut push = |kind: TypeUrl, layer: Option<&Resources>| {
        stacks[kind.index()].push(layer.cloned().unwrap_or_default());
    };
    for layer in audience.scope.stack() {
        let asker = (layer.clone(), (Arc::clone(traits), Arc::clone(&audience.route)));
        push(TypeUrl::Cluster, reader.get(&grpc.clusters, &asker));
        push(TypeUrl::Listener, reader.get(&grpc.listeners, &asker));
        push(TypeUrl::Route, reader.get(&grpc.routes, &asker));
        push(TypeUrl::Endpoint, reader.get(&grpc.endpoints, &asker));
        push(TypeUrl::Endpoint, reader.get(&endpoints.plain, &(layer.clone(), audience.endpoint.clone())));
        let place = (audience.endpoint.clone(), audience.place.clone());
        push(TypeUrl::Endpoint, reader.get(&endpoints.local, &(layer, place)));
    }
    push(TypeUrl::Listener, reader.get(&grpc.inbound, audience));
    let mut by_type = stacks.map(Manifest::new);
    answer_unserved(&mut by_type, TypeUrl::Endpoint, unserved_endpoints());
    Sent { by_type }
}

/// Puts what is changed over what is there, and what is added beside it. A name that is taken is not added.
fn add(manifest: &mut Manifest, changes: &Resources, added: &[Arc<Encoded>]) {
    if !changes.is_empty() {
        manifest.push(changes.clone());
    }
    let mut layer = Resources::default();
    for encoded in added {
        if !manifest.contains(encoded.name()) && layer.get(encoded.name()).is_none() {
            layer.insert(encoded.name().clone(), Some(Arc::clone(encoded)));
        }
    }
    if !layer.is_empty() {
        manifest.push(layer);
    }
}
