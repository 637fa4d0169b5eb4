use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_envoy::{
    Faults, Outcome, Patches, RouteSide, RouteTable, RouteTraits, TablePatches, VirtualHost,
    patch_route_configuration,
};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::Layer;
use pilot_xds::{ChildMap, Chunk, Encoded};

use crate::graph::audience::Audiences;
use crate::graph::plans::Plans;
use crate::graph::routes::Routes;

type Asker = (Layer, Arc<RouteTraits>);
type Key = (Layer, Host, (Arc<RouteTraits>, Arc<Patches>));

/// The entries of a host that patches change.
#[derive(Clone, PartialEq, Default)]
pub(super) struct HostRow {
    /// In the tables of ports.
    entries: Vec<((RouteTable, Name), Option<Chunk>)>,
    /// In a table of its own.
    tables: super::Changes,
    pub(super) faults: Faults,
}

#[derive(Clone, PartialEq)]
pub(super) struct TableRow {
    table: Option<Arc<Encoded>>,
    pub(super) faults: Faults,
}

#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) shared: Table<Key, HostRow>,
    pub(super) own: Table<Key, HostRow>,
    pub(super) tables: Table<(Asker, RouteTable, Arc<Patches>), TableRow>,
}

impl Rows {
    pub(super) fn declare(graph: &mut Graph, plans: Plans, audiences: Audiences, routes: Routes) -> Self {
        let hosts = routes.hosts;
        let keys = graph.product("patched virtual host keys", &plans.shared, &audiences.host_patches);
        let shared =
            graph.map("patched virtual hosts", &keys, move |(layer, host, (traits, patches)), reader| {
                let hosts = reader.get(&hosts.shared, &(layer.clone(), host.clone(), Arc::clone(traits)))?;
                HostRow::of(hosts.iter(), patches)
            });
        let keys = graph.product("own patched virtual host keys", &plans.own_routes, &audiences.host_patches);
        let own =
            graph.map("own patched virtual hosts", &keys, move |(layer, host, (traits, patches)), reader| {
                let hosts = reader.get(&hosts.own, &(layer.clone(), host.clone(), Arc::clone(traits)))?;
                HostRow::of(hosts.iter().filter_map(|(_, host)| host.as_ref()), patches)
            });
        let changes = graph.group("patched route table entries", |feeds| {
            for table in [&shared, &own] {
                feeds.from(table, |(layer, _, (traits, patches)): &Key, row: &HostRow, out| {
                    for ((which, name), entry) in &row.entries {
                        let table = ((layer.clone(), Arc::clone(traits)), which.clone(), Arc::clone(patches));
                        out.emit(table, name.clone(), entry.clone());
                    }
                });
            }
        });
        let plain = routes.by_port;
        let keys = graph.product("patched route table keys", &plain, &audiences.route_patches);
        let tables = graph.map("patched route tables", &keys, move |key, reader| {
            let (asker, which, patches) = key;
            let before = reader.get(&plain, &(asker.clone(), which.clone()))?;
            let scope = TablePatches::new(before.name(), patches)?;
            let changes = changes_of(key, before, changes, reader);
            let mut faults = Faults::default();
            let table = scope.table(before, &changes, &mut faults);
            (table.is_some() || !faults.is_empty()).then_some(TableRow { table, faults })
        });
        Self { shared, own, tables }
    }

    pub(super) fn gather(self, graph: &mut Graph) -> Table<(Asker, Arc<Patches>), pilot_xds::Layer> {
        graph.group("patched route tables by layer", |feeds| {
            feeds.from(
                &self.tables,
                |(asker, _, patches): &(Asker, RouteTable, Arc<Patches>), row: &TableRow, out| {
                    if let Some(table) = &row.table {
                        let table = (table.name().clone(), Some(Arc::clone(table)));
                        out.emit((asker.clone(), Arc::clone(patches)), table.0, table.1);
                    }
                },
            );
            for table in [&self.shared, &self.own] {
                feeds.from(table, |(layer, _, (traits, patches)): &Key, row: &HostRow, out| {
                    for (name, table) in &row.tables {
                        let asker = (layer.clone(), Arc::clone(traits));
                        out.emit((asker, Arc::clone(patches)), name.clone(), table.clone());
                    }
                });
            }
        })
    }
}

/// The changed entries of a table. Where a namespace sees a host differently, what became of the common one is no matter.
fn changes_of(
    (asker, which, patches): &(Asker, RouteTable, Arc<Patches>),
    before: &Encoded,
    changes: Table<(Asker, RouteTable, Arc<Patches>), ChildMap>,
    reader: &Reader<'_>,
) -> ChildMap {
    let own = reader.get(&changes, &(asker.clone(), which.clone(), Arc::clone(patches)));
    let (layer, traits) = asker;
    match layer {
        Layer::Base | Layer::Sidecar(_) => own.cloned().unwrap_or_default(),
        Layer::Namespace(_) => {
            let below = ((Layer::Base, Arc::clone(traits)), which.clone(), Arc::clone(patches));
            let mut out = reader.get(&changes, &below).cloned().unwrap_or_default();
            for (name, _) in before.children().over() {
                out.remove(name);
            }
            for (name, entry) in own.into_iter().flatten() {
                out.insert(name.clone(), entry.clone());
            }
            out
        }
    }
}

impl HostRow {
    fn of<'a>(hosts: impl Iterator<Item = &'a VirtualHost>, patches: &Patches) -> Option<Self> {
        let mut row = Self::default();
        for host in hosts {
            let scope = TablePatches::new(&host.table.name(), patches);
            if let Some(entry) = scope.and_then(|scope| scope.entry(host.entry.as_ref()?, &mut row.faults)) {
                row.entries.push(((host.table.clone(), host.name.clone()), entry));
            }
            let Some(table) = &host.own else { continue };
            if let Outcome::Changed(table) =
                patch_route_configuration(table, patches, RouteSide::Outbound, &mut row.faults)
            {
                row.tables.push((table.name().clone(), Some(table)));
            }
        }
        (row != Self::default()).then_some(row)
    }
}
