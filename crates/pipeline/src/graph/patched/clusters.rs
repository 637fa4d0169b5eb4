use std::sync::Arc;

use pilot_base::Host;
use pilot_envoy::{ClusterTraits, Patches, patch_cluster};
use pilot_incr::{Graph, Table};
use pilot_mesh::Layer;

use super::Row;
use crate::graph::audience::Audiences;
use crate::graph::clusters::Clusters;
use crate::graph::plans::Plans;

type Asker = (ClusterTraits, Arc<Patches>);
type Key = (Layer, Host, Asker);

/// The clusters of each host that patches change.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) shared: Table<Key, Row>,
    pub(super) own: Table<Key, Row>,
}

impl Rows {
    pub(super) fn declare(
        graph: &mut Graph,
        plans: Plans,
        audiences: Audiences,
        Clusters { rows, .. }: Clusters,
    ) -> Self {
        let keys = graph.product("patched cluster keys", &plans.shared, &audiences.cluster_patches);
        let shared = graph.map("patched clusters", &keys, move |(layer, host, (traits, patches)), reader| {
            let mut row = Row::default();
            let clusters = reader.get(&rows.shared, &(layer.clone(), host.clone(), traits.clone()))?;
            for cluster in clusters {
                let outcome = patch_cluster(cluster, &[], patches, &mut row.faults);
                row.add(cluster.name(), outcome);
            }
            row.build()
        });
        let keys = graph.product("own patched cluster keys", &plans.own, &audiences.cluster_patches);
        let own =
            graph.map("own patched clusters", &keys, move |(layer, host, (traits, patches)), reader| {
                let mut row = Row::default();
                let clusters = reader.get(&rows.own, &(layer.clone(), host.clone(), traits.clone()))?;
                for cluster in clusters.iter().filter_map(|(_, cluster)| cluster.as_ref()) {
                    let outcome = patch_cluster(cluster, &[], patches, &mut row.faults);
                    row.add(cluster.name(), outcome);
                }
                row.build()
            });
        Self { shared, own }
    }

    pub(super) fn gather(self, graph: &mut Graph) -> Table<(Layer, Asker), pilot_xds::Layer> {
        graph.group("patched clusters by layer", |feeds| {
            for table in [&self.shared, &self.own] {
                feeds.from(table, |(layer, _, asker): &Key, row: &Row, out| {
                    for (name, cluster) in &row.changes {
                        out.emit((layer.clone(), asker.clone()), name.clone(), cluster.clone());
                    }
                });
            }
        })
    }
}
