use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_envoy::{Neighbours, RouteTable, RouteTraits, VirtualHost, route_table, virtual_hosts};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{HostPlan, Layer};
use pilot_model::EgressListener;
use pilot_xds::{ChildMap, Encoded, Summary};

use super::audience::Audiences;
use super::layered::{Family, Layered, Overlay};
use super::plans::Plans;

/// Whose routes.
type Asker = (Layer, Arc<RouteTraits>);

#[derive(Clone, Copy)]
pub(super) struct Routes {
    /// Entries of each host.
    pub(super) hosts: Layered<Arc<RouteTraits>, VirtualHost>,
    pub(super) by_port: Table<(Asker, RouteTable), Arc<Encoded>>,
    pub(super) tables: Table<Asker, pilot_xds::Layer>,
}

impl Routes {
    pub(super) fn declare(graph: &mut Graph, plans: Plans, audiences: Audiences) -> Self {
        let inputs = plans.inputs;
        let family = Family {
            names: ["virtual host keys", "virtual hosts", "own virtual host keys", "own virtual hosts"],
            shared: &plans.shared,
            own: &plans.own_routes,
        };
        let hosts = family.declare(graph, &audiences.route, move |(layer, host, traits), reader| {
            let plan = plans.get(layer, host, reader).filter(|plan| !plan.views.is_empty())?;
            let around = Around { plans, layer, reader };
            let whose = (layer.client(), plans.listeners(layer, reader));
            Some(virtual_hosts(plan, whose, traits, &around, inputs.settings(reader)?))
        });
        let claimed = graph.map("claimed route tables", &audiences.route, move |(layer, traits), reader| {
            let tables = claimed(plans.listeners(layer, reader), traits);
            (!tables.is_empty()).then_some(tables)
        });
        let children = Self::declare_children(graph, &hosts, claimed);
        let summaries = graph.map("route table sizes", &children, move |key, reader| {
            Some(Summary::of(reader.get(&children, key)?))
        });
        let by_port = graph.map("route tables", &children, move |key, reader| {
            let ((layer, traits), which) = key;
            let own = reader.get(&children, key)?;
            let none = ChildMap::new();
            let table = match layer {
                Layer::Base | Layer::Sidecar(_) => {
                    route_table(which, own, *reader.get(&summaries, key)?, &none, traits)
                }
                Layer::Namespace(_) => {
                    let below = ((Layer::Base, Arc::clone(traits)), which.clone());
                    let shared = reader.get(&children, &below).unwrap_or(&none);
                    let summary = reader.get(&summaries, &below).copied().unwrap_or_default();
                    route_table(which, shared, summary, own, traits)
                }
            };
            Some(Arc::new(table))
        });
        let tables = graph.group("route tables by layer", |feeds| {
            feeds.from(&by_port, |(asker, _): &(Asker, RouteTable), table: &Arc<Encoded>, out| {
                out.emit(asker.clone(), table.name().clone(), Some(Arc::clone(table)));
            });
            feeds.from(&hosts.shared, |(layer, _, traits), hosts: &Vec<VirtualHost>, out| {
                for own in hosts.iter().filter_map(|host| host.own.as_ref()) {
                    out.emit((layer.clone(), Arc::clone(traits)), own.name().clone(), Some(Arc::clone(own)));
                }
            });
            feeds.from(&hosts.own, |(layer, _, traits), hosts: &Overlay<VirtualHost>, out| {
                for (key, host) in hosts {
                    let table = host.as_ref().and_then(|host| host.own.clone());
                    out.emit((layer.clone(), Arc::clone(traits)), key.1.clone(), table);
                }
            });
        });
        Self { hosts, by_port, tables }
    }

    /// The entries of each table.
    fn declare_children(
        graph: &mut Graph,
        hosts: &Layered<Arc<RouteTraits>, VirtualHost>,
        claimed: Table<Asker, Vec<RouteTable>>,
    ) -> Table<(Asker, RouteTable), ChildMap> {
        graph.group("route table entries", |feeds| {
            feeds.from(&claimed, |asker: &Asker, tables: &Vec<RouteTable>, out| {
                tables.iter().for_each(|table| out.emit((asker.clone(), table.clone()), Name::empty(), None));
            });
            feeds.from(&hosts.shared, |(layer, _, traits), hosts: &Vec<VirtualHost>, out| {
                for host in hosts {
                    let table = ((layer.clone(), Arc::clone(traits)), host.table.clone());
                    out.emit(table, host.name.clone(), host.entry.clone());
                }
            });
            feeds.from(&hosts.own, |(layer, _, traits), hosts: &Overlay<VirtualHost>, out| {
                for ((which, name), host) in hosts {
                    let table = ((layer.clone(), Arc::clone(traits)), which.clone());
                    out.emit(table, name.clone(), host.as_ref().and_then(|host| host.entry.clone()));
                }
            });
        })
    }
}

/// Tables that listeners ask for though there may be nobody to put there: of the ports of a Sidecar's listeners, and of
/// a forward proxy.
fn claimed(listeners: &[EgressListener], traits: &RouteTraits) -> Vec<RouteTable> {
    let declared = listeners.iter().filter_map(|listener| Some((listener, listener.port.as_ref()?)));
    let of_listeners = declared.map(|(listener, port)| match port.number {
        0 => RouteTable::Named(listener.bind.clone()),
        number => RouteTable::Port(number),
    });
    of_listeners.chain(traits.http_proxy.then(RouteTable::forward_proxy)).collect()
}

/// The other hosts of a layer.
pub(super) struct Around<'r, 'a> {
    pub(super) plans: Plans,
    pub(super) layer: &'r Layer,
    pub(super) reader: &'r Reader<'a>,
}

impl Neighbours for Around<'_, '_> {
    fn plan(&self, host: &Host) -> Option<&HostPlan> {
        self.plans.get(self.layer, host, self.reader)
    }

    fn hosts_at(&self, address: &Name) -> Vec<Host> {
        self.plans.registry.hosts_at(self.reader, address)
    }

    fn covers(&self, pattern: &Host, port: u16) -> bool {
        self.plans.registry.covers(self.reader, pattern, port)
    }
}
