//! What each host is to those who can see it: once for everyone, and again only where a namespace sees it differently.

use std::collections::BTreeSet;
use std::sync::Arc;

use pilot_base::{Host, Name, SharedMap};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{EgressKey, HostPlan, Layer, Outlook, RouteRule, egress_keys, imports};
use pilot_model::{EgressHost, Service};

use super::audience::Audiences;
use super::inputs::Inputs;
use super::registry::Registry;
use super::rules::{Rules, TrafficIndex};

/// Where a host has to be looked at.
#[derive(PartialEq)]
struct HostScope {
    /// Layers in which its plan may be its own.
    layers: BTreeSet<Layer>,
    /// Namespaces that are sent routes of their own though the plan is the same.
    names: BTreeSet<Layer>,
    destinations: BTreeSet<Host>,
}

/// What rows about hosts read.
#[derive(Clone, Copy)]
pub(super) struct Plans {
    pub(super) inputs: Inputs,
    pub(super) registry: Registry,
    /// For everyone, and for each Sidecar.
    pub(super) shared: Table<(Layer, Host), HostPlan>,
    /// For namespaces that see a host differently.
    pub(super) own: Table<(Layer, Host), HostPlan>,
    /// Hosts that a namespace is sent routes of its own for.
    pub(super) own_routes: Table<(Layer, Host), SharedMap<(), ()>>,
}

impl Plans {
    pub(super) fn declare(
        graph: &mut Graph,
        inputs: Inputs,
        registry: Registry,
        rules: Rules,
        audiences: Audiences,
    ) -> Self {
        let hosts = graph.tally("hosts", |feeds| {
            feeds.from(registry.hosts(), |host: &Host, _, out| out.emit(host.clone(), (), ()));
            feeds.from(rules.hosts(), |host: &Host, _, out| out.emit(host.clone(), (), ()));
        });
        let layers = audiences.layers;
        let sidecars = graph.map("sidecar imports", &layers, move |layer, reader| {
            let Layer::Sidecar { namespace, id } = layer else { return None };
            Some(imports(&reader.get(&inputs.sidecars, id)?.spec, namespace))
        });
        let egress: Table<EgressKey, SharedMap<Layer, ()>> =
            graph.tally("sidecars by egress host", |feeds| {
                feeds.from(&sidecars, |layer: &Layer, entries: &Vec<EgressHost>, out| {
                    let wanted = entries.iter().filter(|entry| !entry.exclude);
                    wanted.for_each(|e| out.emit((e.namespace.clone(), e.host.clone()), layer.clone(), ()));
                });
            });
        let any_sidecar = graph.tally("any sidecar", |feeds| {
            feeds.from(&sidecars, |_: &Layer, _, out| out.emit((), (), ()));
        });
        let scopes = graph.map("host scopes", &hosts, move |host, reader| {
            let mesh = reader.get(&inputs.mesh, &())?;
            let services = registry.services(reader, host);
            let outlook = outlook(mesh, &services, rules, reader, None);
            let demanded = |layer: &Layer| reader.get(&layers, layer).is_some();
            let namespaces = |names: BTreeSet<Name>| -> BTreeSet<Layer> {
                names.into_iter().map(Layer::Namespace).filter(|layer| demanded(layer)).collect()
            };
            let mut at = namespaces(outlook.special_namespaces(host));
            at.extend(Some(Layer::Base).filter(|layer| demanded(layer)));
            if reader.get(&any_sidecar, &()).is_some() {
                let owners = services.iter().map(|s| s.namespace.clone());
                let owners: BTreeSet<Name> =
                    owners.chain(rules.routes(reader, host).iter().map(|r| r.id.namespace.clone())).collect();
                let keys = owners.iter().flat_map(|owner| egress_keys(owner, host));
                let found = keys.filter_map(|key| reader.get(&egress, &key));
                at.extend(found.flatten().map(|(layer, ())| layer.clone()));
            }
            let names = namespaces(outlook.naming_namespaces(host));
            Some(HostScope { layers: at, names, destinations: outlook.possible_destinations(host) })
        });
        let candidates = |name: &'static str, graph: &mut Graph, wanted: fn(&Layer) -> bool| {
            graph.tally(name, |feeds| {
                feeds.from(&scopes, move |host: &Host, scope: &HostScope, out| {
                    let layers = scope.layers.iter().filter(|layer| wanted(layer));
                    layers.for_each(|layer| out.emit((layer.clone(), host.clone()), (), ()));
                });
            })
        };
        let by_name =
            candidates("named plan candidates", graph, |layer| !matches!(layer, Layer::Namespace(_)));
        let for_some = candidates("own plan candidates", graph, |layer| matches!(layer, Layer::Namespace(_)));
        let read = Reads { inputs, registry, rules, sidecars };
        let led_to = Self::declare_destinations(graph, read, by_name);
        let for_all = graph.tally("plan candidates", |feeds| {
            feeds.from(&by_name, |key: &(Layer, Host), _, out| out.emit(key.clone(), (), ()));
            feeds.from(&led_to, |key: &(Layer, Host), _, out| out.emit(key.clone(), (), ()));
        });
        let shared = graph.map("plans", &for_all, move |key, reader| {
            let (layer, host) = key;
            let named = reader.get(&by_name, key).and_then(|_| read.plan(layer, host, reader));
            named
                .or_else(|| reader.get(&led_to, key).and_then(|_| read.destination_plan(layer, host, reader)))
        });
        let own = graph.map("own plans", &for_some, move |(layer, host), reader| {
            let plan = read.plan(layer, host, reader)?;
            (Some(&plan) != reader.get(&shared, &(Layer::Base, host.clone()))).then_some(plan)
        });
        let own_routes = Self::declare_own_routes(graph, scopes, own, registry);
        Self { inputs, registry, shared, own, own_routes }
    }

    /// Hosts that a Sidecar need not name because the rules for those it names lead to them.
    fn declare_destinations(
        graph: &mut Graph,
        read: Reads,
        by_name: Table<(Layer, Host), SharedMap<(), ()>>,
    ) -> Table<(Layer, Host), SharedMap<Host, ()>> {
        let destinations = graph.map("sidecar destinations", &by_name, move |(layer, host), reader| {
            let found = read.destinations(layer, host, reader)?;
            (!found.is_empty()).then_some(found)
        });
        graph.tally("sidecar destinations by host", |feeds| {
            feeds.from(&destinations, |(layer, host): &(Layer, Host), found: &BTreeSet<Host>, out| {
                found.iter().for_each(|other| out.emit((layer.clone(), other.clone()), host.clone(), ()));
            });
        })
    }

    /// A namespace needs its own routes for a host where it names or sees it differently, or where it sees differently
    /// what the routes lead to or whom the host shares a name or an address with.
    fn declare_own_routes(
        graph: &mut Graph,
        scopes: Table<Host, HostScope>,
        own: Table<(Layer, Host), HostPlan>,
        registry: Registry,
    ) -> Table<(Layer, Host), SharedMap<(), ()>> {
        let differing = graph.group("namespaces that differ by host", |feeds| {
            feeds.from(&own, |(layer, host): &(Layer, Host), _, out| {
                out.emit(host.clone(), layer.clone(), ());
            });
        });
        let layers = graph.map("own route layers", &scopes, move |host, reader| {
            let scope = reader.get(&scopes, host)?;
            let services = registry.services(reader, host);
            let addresses =
                services.iter().flat_map(|s| s.cluster_addresses.values().flatten().chain(&s.address));
            let neighbours: BTreeSet<Host> = addresses.flat_map(|a| registry.hosts_at(reader, a)).collect();
            let mut out = scope.names.clone();
            let short = short_names(host).into_iter();
            for other in
                scope.destinations.iter().cloned().chain(neighbours).chain(short).chain([host.clone()])
            {
                let differs = reader.get(&differing, &other).into_iter().flatten();
                out.extend(differs.map(|(layer, ())| layer.clone()));
            }
            Some(out)
        });
        graph.tally("own routes", |feeds| {
            feeds.from(&layers, |host: &Host, layers: &BTreeSet<Layer>, out| {
                layers.iter().for_each(|layer| out.emit((layer.clone(), host.clone()), (), ()));
            });
        })
    }

    /// What a host is to proxies of a layer.
    pub(super) fn get<'a>(&self, layer: &Layer, host: &Host, reader: &Reader<'a>) -> Option<&'a HostPlan> {
        match layer {
            Layer::Base | Layer::Sidecar { .. } => reader.get(&self.shared, &(layer.clone(), host.clone())),
            Layer::Namespace(_) => reader
                .get(&self.own, &(layer.clone(), host.clone()))
                .or_else(|| reader.get(&self.shared, &(Layer::Base, host.clone()))),
        }
    }
}

/// The names under which another host could hide: shorter forms of a Kubernetes name, and its absolute form.
fn short_names(host: &Host) -> Vec<Host> {
    let mut out = vec![Host::new(&format!("{host}."))];
    if let Some((whole, _)) = host.as_str().split_once(".svc.") {
        out.push(Host::new(whole));
        out.push(Host::new(&format!("{whole}.svc")));
        out.extend(whole.split_once('.').map(|(name, _)| Host::new(name)));
    }
    out
}

#[derive(Clone, Copy)]
struct Reads {
    inputs: Inputs,
    registry: Registry,
    rules: Rules,
    sidecars: Table<Layer, Vec<EgressHost>>,
}

impl Reads {
    fn plan(&self, layer: &Layer, host: &Host, reader: &Reader<'_>) -> Option<HostPlan> {
        let mesh = reader.get(&self.inputs.mesh, &())?;
        let services = self.registry.services(reader, host);
        let imports = match layer {
            Layer::Sidecar { .. } => Some(reader.get(&self.sidecars, layer)?.as_slice()),
            Layer::Base | Layer::Namespace(_) => None,
        };
        outlook(mesh, &services, self.rules, reader, imports).plan(host, layer)
    }

    fn destination_plan(&self, layer: &Layer, host: &Host, reader: &Reader<'_>) -> Option<HostPlan> {
        let mesh = reader.get(&self.inputs.mesh, &())?;
        let services = self.registry.services(reader, host);
        outlook(mesh, &services, self.rules, reader, None).destination_plan(host, layer)
    }

    /// Only a Sidecar hides something that a rule could lead to.
    fn destinations(&self, layer: &Layer, host: &Host, reader: &Reader<'_>) -> Option<BTreeSet<Host>> {
        let Layer::Sidecar { .. } = layer else { return None };
        let mesh = reader.get(&self.inputs.mesh, &())?;
        Some(outlook(mesh, &[], self.rules, reader, None).destinations(host, layer))
    }
}

fn outlook<'r, 'a>(
    mesh: &'r pilot_model::MeshConfig,
    services: &'r [Arc<Service>],
    rules: Rules,
    reader: &'r Reader<'a>,
    imports: Option<&'r [EgressHost]>,
) -> Outlook<'r, TrafficIndex<'r, 'a>, impl Fn(&Host) -> Vec<Arc<RouteRule>> + use<'r, 'a>> {
    Outlook {
        mesh,
        services,
        rules: TrafficIndex { rules, reader },
        routes: move |host: &Host| rules.routes(reader, host),
        imports,
    }
}
