//! The names that proxies answer DNS queries for, as one resource for each of them.

use pilot_envoy::{NameEntry, NameTraits, name_entries, name_table};
use pilot_incr::{Graph, Table};
use pilot_mesh::Layer;

use super::audience::Audiences;
use super::layered::{Family, Item, merged};
use super::plans::Plans;

impl Item for NameEntry {
    type Key = pilot_base::Name;
    fn key(&self) -> Self::Key {
        self.host.clone()
    }
}

pub(super) fn declare(
    graph: &mut Graph,
    plans: Plans,
    audiences: Audiences,
) -> Table<(Layer, NameTraits), pilot_xds::Layer> {
    let family = Family {
        names: ["name keys", "names", "own name keys", "own names"],
        shared: &plans.shared,
        own: &plans.own,
    };
    let names = family.declare(graph, &audiences.names_in_layer, move |(layer, host, traits), reader| {
        let plan = plans.get(layer, host, reader)?;
        let service = plan.service()?;
        let key = (service.namespace.clone(), host.clone());
        Some(name_entries(plan, traits, || plans.registry.endpoints(reader, &key)))
    });
    let by_layer = names.collect(graph, "names by layer");
    // Whoever asks is told everything at once, so that is put together for each scope.
    graph.map("name tables", &audiences.names, move |(scope, traits), reader| {
        let stack = scope.stack();
        let mut layers = stack.iter().map(|layer| reader.get(&by_layer, &(layer.clone(), traits.clone())));
        let (base, own) = (layers.next().flatten(), layers.next().flatten());
        let table = name_table(merged(base, own).map(|(_, entry)| entry));
        Some([(table.name().clone(), Some(table))].into_iter().collect())
    })
}
