//! What each host is to those who can see it: once for everyone, and again only where a namespace sees it differently.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilot_base::{Host, Name, SharedMap};
use pilot_envoy::Settings;
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{
    EgressKey, HostPlan, Layer, LedTo, Outlook, Ports, RouteRule, applies_to_mesh, covering_keys,
    egress_keys, egress_listeners, imports_rule, rule_destinations,
};
use pilot_model::{ConfigId, EgressListener, Service, Sidecar};

use super::audience::Audiences;
use super::inputs::Inputs;
use super::registry::Registry;
use super::rules::{Rules, TrafficIndex, VirtualServices};
use super::security::Policies;

/// Where a host has to be looked at.
#[derive(PartialEq)]
struct HostScope {
    /// Layers in which its plan may be its own.
    layers: Box<[Layer]>,
    /// What makes routes differ though the plan is the same.
    requests: Reach,
    /// What makes listeners differ though the plan is the same.
    connections: Reach,
}

/// Where rules for a host lead, and which namespaces are treated in their own way there.
#[derive(PartialEq)]
struct Reach {
    layers: Box<[Layer]>,
    destinations: Box<[Host]>,
}

/// Where a rule leads the proxies of a Sidecar that lets it through, by egress listener.
type RuleScope = Vec<(Layer, usize, BTreeMap<Host, Ports>)>;
type Listeners = Arc<[EgressListener]>;
/// Hosts that a namespace is sent something of its own for.
type OwnHosts = Table<(Layer, Host), SharedMap<(), ()>>;

/// What rows about hosts read.
#[derive(Clone, Copy)]
pub(super) struct Plans {
    pub(super) inputs: Inputs,
    pub(super) registry: Registry,
    pub(super) policies: Policies,
    /// For everyone, and for each Sidecar.
    pub(super) shared: Table<(Layer, Host), HostPlan>,
    /// For namespaces that see a host differently.
    pub(super) own: Table<(Layer, Host), HostPlan>,
    /// Hosts that a namespace is sent routes of its own for.
    pub(super) own_routes: OwnHosts,
    /// Hosts that a namespace is sent listeners of its own for.
    pub(super) own_parts: OwnHosts,
    listeners: Table<Layer, Listeners>,
}

/// What Sidecars let through.
#[derive(Clone, Copy)]
struct Sidecars {
    listeners: Table<Layer, Listeners>,
    /// Sidecars by what their egress entries name.
    by_host: Table<EgressKey, SharedMap<Layer, ()>>,
    rules: Table<ConfigId, RuleScope>,
    any: Table<(), SharedMap<(), ()>>,
}

impl Plans {
    pub(super) fn declare(
        graph: &mut Graph,
        inputs: Inputs,
        registry: Registry,
        rules: Rules,
        (policies, audiences): (Policies, Audiences),
    ) -> Self {
        let hosts = graph.tally("hosts", |feeds| {
            feeds.from(registry.hosts(), |host: &Host, _, out| out.emit(host.clone(), (), ()));
            feeds.from(rules.hosts(), |host: &Host, _, out| out.emit(host.clone(), (), ()));
        });
        // Who is there is of no concern to hosts, only whether anybody is: or each proxy that comes would have every host
        // looked at again.
        let layers = graph.map("layers in use", &audiences.layers, |_, _| Some(()));
        let sidecars = Sidecars::declare(graph, inputs, rules, audiences);
        let scopes = graph.map("host scopes", &hosts, move |host, reader| {
            let settings = inputs.settings(reader)?;
            let services = registry.services(reader, host);
            let outlook = outlook(settings, &services, rules, reader, None);
            let demanded = |layer: &Layer| reader.get(&layers, layer).is_some();
            let namespaces = |names: BTreeSet<Name>| -> BTreeSet<Layer> {
                names.into_iter().map(Layer::Namespace).filter(|layer| demanded(layer)).collect()
            };
            let mut at = namespaces(outlook.special_namespaces(host));
            at.extend(Some(Layer::Base).filter(|layer| demanded(layer)));
            at.extend(sidecars.that_see(host, &services, rules, reader));
            Some(HostScope {
                layers: at.into_iter().collect(),
                requests: Reach {
                    layers: namespaces(outlook.naming_namespaces(host)).into_iter().collect(),
                    destinations: outlook.possible_destinations(host).into_iter().collect(),
                },
                connections: Reach {
                    layers: namespaces(outlook.connecting_namespaces(host)).into_iter().collect(),
                    destinations: outlook.possible_l4_destinations(host).into_iter().collect(),
                },
            })
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
        // Hosts that a Sidecar need not name because the rules that it lets through lead to them.
        let led_to = graph.group("sidecar destinations", |feeds| {
            feeds.from(&sidecars.rules, |id: &ConfigId, scope: &RuleScope, out| {
                for (layer, listener, destinations) in scope {
                    for (host, ports) in destinations {
                        let led = LedTo { listener: *listener, ports: ports.clone() };
                        out.emit((layer.clone(), host.clone()), (*listener, id.clone()), led);
                    }
                }
            });
        });
        let for_all = graph.tally("plan candidates", |feeds| {
            feeds.from(&by_name, |key: &(Layer, Host), _, out| out.emit(key.clone(), (), ()));
            feeds.from(&led_to, |key: &(Layer, Host), _, out| out.emit(key.clone(), (), ()));
        });
        let listeners = sidecars.listeners;
        let read = Reads { inputs, registry, rules, listeners };
        let shared = graph.map("plans", &for_all, move |key, reader| {
            let led: Vec<LedTo> =
                reader.get(&led_to, key).into_iter().flatten().map(|(_, led)| led.clone()).collect();
            read.plan(&key.0, &key.1, &led, reader)
        });
        let own = graph.map("own plans", &for_some, move |(layer, host), reader| {
            let plan = read.plan(layer, host, &[], reader)?;
            (Some(&plan) != reader.get(&shared, &(Layer::Base, host.clone()))).then_some(plan)
        });
        let (own_routes, own_parts) = Self::declare_own(graph, scopes, own, registry);
        Self { inputs, registry, policies, shared, own, own_routes, own_parts, listeners }
    }

    /// A namespace needs its own routes for a host where it names or sees it differently, or where it sees differently
    /// what the routes lead to or whom the host shares a name or an address with. And so with listeners, which have no
    /// names.
    fn declare_own(
        graph: &mut Graph,
        scopes: Table<Host, HostScope>,
        own: Table<(Layer, Host), HostPlan>,
        registry: Registry,
    ) -> (OwnHosts, OwnHosts) {
        let differing = graph.group("namespaces that differ by host", |feeds| {
            feeds.from(&own, |(layer, host): &(Layer, Host), _, out| {
                out.emit(host.clone(), layer.clone(), ());
            });
        });
        let differ = move |hosts: &mut dyn Iterator<Item = Host>, reader: &Reader<'_>| -> BTreeSet<Layer> {
            let layers = hosts.flat_map(|host| reader.get(&differing, &host).into_iter().flatten());
            layers.map(|(layer, ())| layer.clone()).collect()
        };
        let routes = graph.map("own route layers", &scopes, move |host, reader| {
            let reach = &reader.get(&scopes, host)?.requests;
            let services = registry.services(reader, host);
            let addresses =
                services.iter().flat_map(|s| s.cluster_addresses.values().flatten().chain(&s.address));
            let neighbours: BTreeSet<Host> = addresses.flat_map(|a| registry.hosts_at(reader, a)).collect();
            let near = neighbours.into_iter().chain(short_names(host)).chain([host.clone()]);
            let mut out = differ(&mut reach.destinations.iter().cloned().chain(near), reader);
            out.extend(reach.layers.iter().cloned());
            Some(out.into_iter().collect())
        });
        let parts = graph.map("own listener layers", &scopes, move |host, reader| {
            let reach = &reader.get(&scopes, host)?.connections;
            let mut out = differ(&mut reach.destinations.iter().cloned().chain([host.clone()]), reader);
            out.extend(reach.layers.iter().cloned());
            Some(out.into_iter().collect())
        });
        let by_layer = |name: &'static str, graph: &mut Graph, layers: Table<Host, Box<[Layer]>>| {
            graph.tally(name, |feeds| {
                feeds.from(&layers, |host: &Host, layers, out| {
                    layers.iter().for_each(|layer| out.emit((layer.clone(), host.clone()), (), ()));
                });
            })
        };
        (by_layer("own routes", graph, routes), by_layer("own listeners by host", graph, parts))
    }

    /// The egress listeners that proxies of a layer have.
    pub(super) fn listeners<'a>(&self, layer: &Layer, reader: &Reader<'a>) -> &'a [EgressListener] {
        match layer {
            Layer::Base | Layer::Namespace(_) => &*ONE_FOR_EVERYTHING,
            Layer::Sidecar(_) => reader.get(&self.listeners, layer).map(|l| &**l).unwrap_or_default(),
        }
    }

    /// What a host is to proxies of a layer.
    pub(super) fn get<'a>(&self, layer: &Layer, host: &Host, reader: &Reader<'a>) -> Option<&'a HostPlan> {
        match layer {
            Layer::Base | Layer::Sidecar(_) => reader.get(&self.shared, &(layer.clone(), host.clone())),
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

/// What proxies have that no Sidecar speaks of.
static ONE_FOR_EVERYTHING: std::sync::LazyLock<[EgressListener; 1]> =
    std::sync::LazyLock::new(|| [EgressListener::default()]);

impl Sidecars {
    fn declare(graph: &mut Graph, inputs: Inputs, rules: Rules, audiences: Audiences) -> Self {
        let listeners = graph.map("sidecar listeners", &audiences.layers, move |layer, reader| {
            let Layer::Sidecar(scope) = layer else { return None };
            let everything = Sidecar::default();
            let sidecar = match &scope.id {
                Some(id) => &reader.get(&inputs.sidecars, id)?.spec,
                None => &everything,
            };
            Some(Listeners::from(egress_listeners(sidecar, &scope.namespace)))
        });
        let by_host = graph.tally("sidecars by egress host", |feeds| {
            feeds.from(&listeners, |layer: &Layer, listeners: &Listeners, out| {
                let entries = listeners.iter().flat_map(|listener| &listener.hosts);
                for entry in entries.filter(|entry| !entry.exclude) {
                    out.emit((entry.namespace.clone(), entry.host.clone()), layer.clone(), ());
                }
            });
        });
        let by_pattern = graph.tally("sidecars by covering pattern", |feeds| {
            feeds.from(&listeners, |layer: &Layer, listeners: &Listeners, out| {
                let entries = listeners.iter().flat_map(|listener| &listener.hosts);
                for entry in entries.filter(|entry| !entry.exclude) {
                    covering_keys(entry).for_each(|key| out.emit(key, layer.clone(), ()));
                }
            });
        });
        let any = graph.tally("any sidecar", |feeds| {
            feeds.from(&listeners, |_: &Layer, _, out| out.emit((), (), ()));
        });
        let scopes = graph.map("rules that sidecars let through", &rules.resolved, move |id, reader| {
            reader.get(&any, &())?;
            let rule = reader.get(&rules.resolved, id).filter(|rule| applies_to_mesh(rule))?;
            let mesh = reader.get(&inputs.mesh, &())?;
            let export = rule.spec.export_to.or(&mesh.virtual_service_export_to);
            let mut layers: BTreeSet<&Layer> = BTreeSet::new();
            for host in &rule.spec.hosts {
                let named = egress_keys(&id.namespace, host).filter_map(|key| reader.get(&by_host, &key));
                layers.extend(named.flatten().map(|(layer, ())| layer));
                let keys = [id.namespace.clone(), Name::new("*")].map(|namespace| (namespace, host.clone()));
                let covered = keys.into_iter().filter_map(|key| reader.get(&by_pattern, &key));
                layers.extend(covered.flatten().map(|(layer, ())| layer));
            }
            let mut out = RuleScope::new();
            for layer in layers {
                let client = layer.client()?;
                let visible = export.visible_in(&id.namespace, client);
                let listeners = reader.get(&listeners, layer).filter(|_| visible).into_iter();
                let numbered = listeners.flat_map(|listeners| listeners.iter().enumerate());
                for (at, _) in numbered.filter(|(_, listener)| imports_rule(listener, rule)) {
                    out.push((layer.clone(), at, rule_destinations(rule, client)));
                }
            }
            (!out.is_empty()).then_some(out)
        });
        Self { listeners, by_host, rules: scopes, any }
    }

    /// Layers of Sidecars that let a host through, or a rule that speaks of it.
    fn that_see(
        &self,
        host: &Host,
        services: &[Arc<Service>],
        rules: Rules,
        reader: &Reader<'_>,
    ) -> BTreeSet<Layer> {
        if reader.get(&self.any, &()).is_none() {
            return BTreeSet::new();
        }
        let owners: BTreeSet<&Name> = services.iter().map(|service| &service.namespace).collect();
        let keys = owners.into_iter().flat_map(|owner| egress_keys(owner, host));
        let by_service = keys.filter_map(|key| reader.get(&self.by_host, &key)).flatten();
        let spoken: Vec<Arc<RouteRule>> = rules.routes(reader, host);
        let by_rule = spoken.iter().filter_map(|rule| reader.get(&self.rules, &rule.id)).flatten();
        let by_rule = by_rule.map(|(layer, ..)| layer.clone());
        by_service.map(|(layer, ())| layer.clone()).chain(by_rule).collect()
    }
}

#[derive(Clone, Copy)]
struct Reads {
    inputs: Inputs,
    registry: Registry,
    rules: Rules,
    listeners: Table<Layer, Listeners>,
}

impl Reads {
    fn plan(&self, layer: &Layer, host: &Host, led_to: &[LedTo], reader: &Reader<'_>) -> Option<HostPlan> {
        let settings = self.inputs.settings(reader)?;
        let services = self.registry.services(reader, host);
        let listeners = match layer {
            Layer::Sidecar(_) => Some(&**reader.get(&self.listeners, layer)?),
            Layer::Base | Layer::Namespace(_) => None,
        };
        outlook(settings, &services, self.rules, reader, listeners).plan(host, layer, led_to)
    }
}

fn outlook<'r, 'a>(
    settings: Settings<'r>,
    services: &'r [Arc<Service>],
    rules: Rules,
    reader: &'r Reader<'a>,
    listeners: Option<&'r [EgressListener]>,
) -> Outlook<'r, TrafficIndex<'r, 'a>, VirtualServices<'r, 'a>> {
    Outlook {
        mesh: settings.mesh,
        features: &settings.options.features,
        services,
        rules: TrafficIndex { rules, reader },
        routes: VirtualServices { rules, reader },
        listeners,
    }
}
