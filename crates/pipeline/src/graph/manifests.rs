use std::sync::Arc;

use pilot_base::{Keyed, Name};
use pilot_envoy::{
    ClusterTraits, GrpcTraits, NameTraits, PatchSet, unserved_clusters, unserved_endpoints,
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
use super::secrets::Secrets;

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
    pub(super) inbound: Table<Keyed<Audience>, Inbound>,
    pub(super) gateways: Gateways,
    pub(super) grpc: Grpc,
    pub(super) names: Table<(Layer, NameTraits), Resources>,
    /// The code of each namespace's extensions.
    pub(super) extensions: Table<Name, Resources>,
    pub(super) secrets: Secrets,
}

/// Stacks the layers of each type, the most general at the bottom. Each type by itself: what is told to everybody all the
/// time, such as endpoints, costs an audience a glance at what did not change.
pub(super) fn declare(
    graph: &mut Graph,
    audiences: Audiences,
    parts: Parts,
    patched: Patched,
) -> Table<Keyed<Audience>, Sent> {
    let endpoints = parts.endpoints;
    let endpoints = graph.stack("endpoint manifests", &audiences.endpoint_view, move |view, reader| {
        let (scope, (traits, place)) = view;
        let mut stack = Stack::default();
        for layer in scope.stack() {
            stack.push(reader.get(&endpoints.plain, &(layer.clone(), traits.clone())));
            stack.push(reader.get(&endpoints.local, &(layer, (traits.clone(), place.clone()))));
        }
        Some(stack.manifest().with_unserved(unserved_endpoints()))
    });
    let mut of_each = |name, stack: fn(&From<'_, '_>) -> Manifest| {
        graph.stack(name, &audiences.all, move |audience, reader| {
            audience.grpc.is_none().then(|| stack(&From { audience, parts, patched, reader }))
        })
    };
    let clusters = of_each("cluster manifests", clusters);
    let listeners = of_each("listener manifests", listeners);
    let routes = of_each("route manifests", routes);
    graph.stack("manifests", &audiences.all, move |audience, reader| {
        if let Some(traits) = &audience.grpc {
            return Some(for_grpc(audience, traits, parts, reader));
        }
        let from = From { audience, parts, patched, reader };
        let mut sent = Sent::default();
        for (kind, manifest) in [
            (TypeUrl::Cluster, reader.get(&clusters, audience)?.clone()),
            (TypeUrl::Endpoint, reader.get(&endpoints, &audience.endpoint_view())?.clone()),
            (TypeUrl::Listener, reader.get(&listeners, audience)?.clone()),
            (TypeUrl::Route, reader.get(&routes, audience)?.clone()),
            (TypeUrl::NameTable, names(&from)),
            (TypeUrl::ExtensionConfig, extensions(&from)),
            (TypeUrl::Secret, parts.secrets.manifest(&audience.secrets, reader)),
        ] {
            sent.by_type[kind.index()] = manifest;
        }
        Some(sent)
    })
}

/// Where the layers for an audience come from.
struct From<'r, 'a> {
    audience: &'r Keyed<Audience>,
    parts: Parts,
    patched: Patched,
    reader: &'r Reader<'a>,
}

impl<'r> From<'r, '_> {
    /// What EnvoyFilters change of what goes out.
    fn outbound(&self) -> Option<&'r PatchSet> {
        self.audience.patches.as_deref().map(|patches| &patches.outbound)
    }

    fn inbound(&self) -> Inbound {
        self.reader.get(&self.parts.inbound, self.audience).cloned().unwrap_or_default()
    }
}

/// Layers from the bottom up; those that are not there are empty, so that each stands at the same place for everybody.
#[derive(Default)]
struct Stack(Vec<Resources>);

impl Stack {
    fn push(&mut self, layer: Option<&Resources>) {
        self.0.push(layer.cloned().unwrap_or_default());
    }

    fn manifest(self) -> Manifest {
        Manifest::new(self.0)
    }
}

fn clusters(from: &From<'_, '_>) -> Manifest {
    let From { audience, parts, patched, reader } = *from;
    let clusters = parts.clusters;
    let mut stack = Stack::default();
    for layer in audience.scope.stack() {
        stack.push(reader.get(&clusters.outbound, &(layer.clone(), audience.cluster.clone())));
        if let Some(patches) = from.outbound().and_then(|patches| patches.clusters.as_ref()) {
            let asker = (audience.cluster.clone(), Arc::clone(patches));
            stack.push(reader.get(&patched.clusters, &(layer.clone(), asker)));
        }
        let place = (audience.cluster.clone(), audience.place.clone());
        stack.push(reader.get(&clusters.local, &(layer, place)));
    }
    stack.push(reader.get(&clusters.fixed, &audience.fixed));
    let inbound = from.inbound();
    stack.push(Some(&inbound.clusters));
    let mut manifest = stack.manifest();
    if let Some(own) = reader.get(&patched.own, audience) {
        add(&mut manifest, &own.clusters, &own.added_clusters);
    }
    if audience.on_demand { keep_back(manifest, from, &inbound) } else { manifest }
}

/// Clusters are there by name, but for those that a proxy is sent before it asks for any.
fn keep_back(manifest: Manifest, from: &From<'_, '_>, inbound: &Inbound) -> Manifest {
    let From { audience, parts, reader, .. } = *from;
    let mut early = Stack::default();
    for layer in audience.scope.stack() {
        early.push(reader.get(&parts.early, &(layer.clone(), audience.cluster.clone())));
        let place = (audience.cluster.clone(), audience.place.clone());
        early.push(reader.get(&parts.clusters.local, &(layer, place)));
    }
    early.push(reader.get(&parts.clusters.fixed, &audience.fixed));
    early.push(Some(&inbound.clusters));
    manifest.with_at_once(early.0).with_unserved(unserved_clusters())
}

fn listeners(from: &From<'_, '_>) -> Manifest {
    let From { audience, parts, patched, reader } = *from;
    let mut stack = Stack::default();
    if audience.is_sidecar() {
        for layer in audience.scope.stack() {
            outbound_listeners(from, layer, &mut stack);
        }
        stack.push(reader.get(&parts.listeners.virtual_outbound, &audience.redirect()));
        stack.push(Some(&from.inbound().listeners));
        let hidden: Resources = audience.hidden.iter().map(|name| (name.clone(), None)).collect();
        stack.push(Some(&hidden));
    }
    if let Some(asker) = audience.gateway_listener() {
        stack.push(reader.get(&parts.gateways.listeners, &asker));
    }
    let mut manifest = stack.manifest();
    if let Some(own) = reader.get(&patched.own, audience) {
        add(&mut manifest, &own.listeners, &own.added_listeners);
    }
    manifest
}

fn outbound_listeners(from: &From<'_, '_>, layer: Layer, stack: &mut Stack) {
    let From { audience, parts: Parts { listeners, .. }, patched, reader } = *from;
    let asker = (layer, Arc::clone(&audience.listener));
    stack.push(reader.get(&listeners.l4, &asker));
    let http = Arc::clone(&audience.http);
    stack.push(reader.get(&listeners.http, &(asker.clone(), Arc::clone(&http))));
    if let Some(patches) = from.outbound().and_then(|patches| patches.listeners.as_ref()) {
        let l4 = (asker.clone(), Arc::clone(patches));
        stack.push(reader.get(&patched.l4_listeners, &l4));
        let http = (asker, (http, Arc::clone(patches)));
        stack.push(reader.get(&patched.http_listeners, &http));
    }
}

fn routes(from: &From<'_, '_>) -> Manifest {
    let From { audience, parts, patched, reader } = *from;
    let mut stack = Stack::default();
    if audience.is_sidecar() {
        for layer in audience.scope.stack() {
            let asker = (layer, Arc::clone(&audience.route));
            stack.push(reader.get(&parts.routes.tables, &asker));
            if let Some(patches) = from.outbound().and_then(|patches| patches.routes.as_ref()) {
                stack.push(reader.get(&patched.routes, &(asker, Arc::clone(patches))));
            }
        }
    }
    if let Some(asker) = audience.gateway_route() {
        stack.push(reader.get(&parts.gateways.routes, &asker));
    }
    let mut manifest = stack.manifest();
    if let Some(own) = reader.get(&patched.own, audience) {
        add(&mut manifest, &own.routes, &[]);
    }
    manifest.with_unserved(routes_for_others(audience))
}

fn names(from: &From<'_, '_>) -> Manifest {
    let audience = from.audience;
    let mut stack = Stack::default();
    if let Some(traits) = &audience.names {
        stack.push(from.reader.get(&from.parts.names, &(audience.scope.clone(), traits.clone())));
    }
    stack.manifest()
}

fn extensions(from: &From<'_, '_>) -> Manifest {
    let mut stack = Stack::default();
    for namespace in &from.audience.extension_namespaces {
        stack.push(from.reader.get(&from.parts.extensions, namespace));
    }
    let mut manifest = stack.manifest();
    if let Some(own) = from.reader.get(&from.patched.own, from.audience) {
        add(&mut manifest, &Resources::default(), &own.added_extensions);
    }
    manifest
}

fn routes_for_others(audience: &Audience) -> Unserved {
    if audience.is_sidecar() { unserved_routes(&audience.route) } else { unserved_gateway_routes() }
}

/// Everything that a gRPC library may ask for.
fn for_grpc(audience: &Keyed<Audience>, traits: &Arc<GrpcTraits>, parts: Parts, reader: &Reader<'_>) -> Sent {
    let Parts { endpoints, grpc, .. } = parts;
    let mut stacks: [Stack; TypeUrl::ALL.len()] = Default::default();
    let mut push = |kind: TypeUrl, layer: Option<&Resources>| stacks[kind.index()].push(layer);
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
    let mut by_type = stacks.map(Stack::manifest);
    let endpoints = &mut by_type[TypeUrl::Endpoint.index()];
    *endpoints = std::mem::take(endpoints).with_unserved(unserved_endpoints());
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
