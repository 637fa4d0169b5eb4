//! Which clusters a proxy is sent at once that asks for the others when a request needs them.
//!
//! Only what sends requests on can wait for a cluster. Whatever else names one (connections, copies of requests, providers
//! of policies and telemetry) must find it there, so every host that anything but a route leads to is sent at once, to
//! everybody: a few clusters too many cost less than one too few.

use std::sync::Arc;

use pilot_base::{Host, Name, SharedMap};
use pilot_envoy::ClusterTraits;
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{ClusterName, HostPlan, Layer, RouteRule, key_host, l4_destinations, mirror_destinations};
use pilot_model::{Config, MeshConfig, RequestAuthentication, Sidecar};
use pilot_xds::Encoded;

use super::audience::Audiences;
use super::clusters::Clusters;
use super::inputs::Inputs;
use super::layered::Family;
use super::plans::Plans;
use super::rules::Rules;

/// Hosts that something else than a route of requests leads to.
type Named = Table<Host, SharedMap<(), ()>>;

/// Clusters that are sent at once, by layer.
pub(super) fn declare(
    graph: &mut Graph,
    plans: Plans,
    rules: Rules,
    (clusters, audiences): (Clusters, Audiences),
) -> Table<(Layer, ClusterTraits), pilot_xds::Layer> {
    let named = declare_named(graph, plans.inputs, rules);
    let family = Family {
        names: ["early cluster keys", "early clusters", "own early cluster keys", "own early clusters"],
        shared: &plans.shared,
        own: &plans.own,
    };
    let early = family.declare(graph, &audiences.on_demand, move |(layer, host, traits), reader| {
        let plan = plans.get(layer, host, reader)?;
        let all = clusters.rows.all(layer, host, traits, reader);
        let is_named = reader.get(&named, host).is_some() || connects(layer, plans.inputs, reader);
        Some(all.into_iter().filter(|cluster| is_named || !can_wait(plan, cluster)).collect())
    });
    early.gather(graph, "early clusters by layer")
}

/// Does a Sidecar have its proxies connect to hosts over a port of its own, whatever the hosts say about theirs?
fn connects(layer: &Layer, inputs: Inputs, reader: &Reader<'_>) -> bool {
    let Layer::Sidecar(scope) = layer else { return false };
    let Some(id) = &scope.id else { return false };
    let Some(sidecar) = reader.get(&inputs.sidecars, id) else { return false };
    let mut ports = sidecar.spec.egress.iter().filter_map(|listener| listener.port.as_ref());
    ports.any(|port| !port.protocol.is_http())
}

/// Is a cluster called with requests only, as far as its own host says?
fn can_wait(plan: &HostPlan, cluster: &Arc<Encoded>) -> bool {
    let Some(port) = ClusterName::port(cluster.name()) else { return false };
    let views = plan.views.iter().flat_map(|view| &view.services);
    let mut ports = plan.services.iter().chain(views).filter_map(|service| service.port(port));
    ports.all(|port| port.protocol.is_http())
}

fn declare_named(graph: &mut Graph, inputs: Inputs, rules: Rules) -> Named {
    graph.tally("hosts named beside routes", |feeds| {
        feeds.from(&rules.resolved, |_, rule: &Arc<RouteRule>, out| {
            let destinations = l4_destinations(&rule.spec).chain(mirror_destinations(&rule.spec));
            destinations.for_each(|to| out.emit(to.host.clone(), (), ()));
        });
        feeds.from(&inputs.sidecars, |_, sidecar: &Config<Sidecar>, out| {
            let policy = sidecar.spec.outbound_traffic_policy.as_ref();
            let proxy = policy.and_then(|policy| policy.egress_proxy.as_ref());
            proxy.into_iter().for_each(|to| out.emit(to.host.clone(), (), ()));
        });
        feeds.from(&inputs.mesh, |(), mesh: &MeshConfig, out| {
            let proxy = mesh.outbound.egress_proxy.iter().map(|to| &to.host);
            let providers = mesh.extension_providers.iter().flat_map(|provider| provider.services());
            let hosts = proxy.chain(providers.map(|service| &service.host));
            hosts.for_each(|host| out.emit(host.clone(), (), ()));
        });
        feeds.from(&inputs.request_authentications, |_, config: &Arc<Config<RequestAuthentication>>, out| {
            let hosts = config.spec.rules.iter().filter_map(key_host);
            hosts.for_each(|host| out.emit(host, (), ()));
        });
    })
}

/// What a namespace says about its proxies; else what holds for all.
pub(super) fn is_wanted(inputs: Inputs, namespace: &Name, reader: &Reader<'_>) -> bool {
    let said = super::namespaces::on_demand(reader, inputs, namespace);
    let options = reader.get(&inputs.options, &());
    said.unwrap_or_else(|| options.is_some_and(|options| options.features.on_demand_clusters))
}
