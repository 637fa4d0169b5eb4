use std::sync::Arc;

use pilot_envoy::{HttpTraits, ListenerTraits, Patches, Place, patch_listener};
use pilot_incr::{Graph, Table};
use pilot_mesh::Layer;
use pilot_xds::Encoded;

use super::Row;
use crate::graph::audience::Audiences;
use crate::graph::listeners::Listeners;

type Asker = (Layer, Arc<ListenerTraits>);
type HttpPatches = (Arc<HttpTraits>, Arc<Patches>);

/// The listener at each place, if patches change it.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) l4: Table<(Asker, Place, Arc<Patches>), Row>,
    pub(super) own_l4: Table<(Asker, Place, Arc<Patches>), Row>,
    pub(super) http: Table<(Asker, Place, HttpPatches), Row>,
}

impl Rows {
    pub(super) fn declare(graph: &mut Graph, audiences: Audiences, listeners: Listeners) -> Self {
        let [shared, own] = listeners.l4_bytes;
        let keys = graph.product("patched l4 listener keys", &shared, &audiences.listener_patches);
        let l4 = graph.map("patched l4 listeners", &keys, move |(asker, place, patches), reader| {
            row(reader.get(&shared, &(asker.clone(), place.clone()))?.as_ref()?, patches)
        });
        let keys = graph.product("own patched l4 listener keys", &own, &audiences.listener_patches);
        let own_l4 = graph.map("own patched l4 listeners", &keys, move |(asker, place, patches), reader| {
            row(reader.get(&own, &(asker.clone(), place.clone()))?.as_ref()?, patches)
        });
        let places = listeners.http_places;
        let keys = graph.product("patched http listener keys", &places, &audiences.http_patches);
        let http =
            graph.map("patched http listeners", &keys, move |(asker, place, (http, patches)), reader| {
                row(
                    reader.get(&listeners.http_bytes, &(asker.clone(), place.clone(), Arc::clone(http)))?,
                    patches,
                )
            });
        Self { l4, own_l4, http }
    }

    pub(super) fn gather_l4(self, graph: &mut Graph) -> Table<(Asker, Arc<Patches>), pilot_xds::Layer> {
        graph.group("patched l4 listeners by layer", |feeds| {
            for table in [&self.l4, &self.own_l4] {
                feeds.from(table, |(asker, _, patches): &(Asker, Place, Arc<Patches>), row: &Row, out| {
                    for (name, listener) in &row.changes {
                        out.emit((asker.clone(), Arc::clone(patches)), name.clone(), listener.clone());
                    }
                });
            }
        })
    }

    pub(super) fn gather_http(self, graph: &mut Graph) -> Table<(Asker, HttpPatches), pilot_xds::Layer> {
        graph.group("patched http listeners by layer", |feeds| {
            feeds.from(&self.http, |(asker, _, patches): &(Asker, Place, HttpPatches), row: &Row, out| {
                for (name, listener) in &row.changes {
                    out.emit((asker.clone(), patches.clone()), name.clone(), listener.clone());
                }
            });
        })
    }
}

fn row(listener: &Arc<Encoded>, patches: &Patches) -> Option<Row> {
    let mut row = Row::default();
    let outcome = patch_listener(listener, Some(patches), None, &mut row.faults);
    row.add(listener.name(), outcome);
    row.build()
}
