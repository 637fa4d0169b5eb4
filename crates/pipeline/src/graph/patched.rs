//! What EnvoyFilters change, as layers over what would be sent without them.
//!
//! Only what is changed stands in these layers, so proxies with different EnvoyFilters share all the rest, and a mesh
//! without any has no rows here.

mod clusters;
mod listeners;
mod own;
mod routes;

use std::sync::Arc;

use pilot_base::{Keyed, Name, SharedMap};
use pilot_envoy::{ClusterTraits, Fault, Faults, HttpTraits, ListenerTraits, Outcome, Patches, RouteTraits};
use pilot_incr::{Graph, Table};
use pilot_mesh::Layer;
use pilot_model::ConfigId;
use pilot_xds::Encoded;

use super::audience::{Audience, Audiences};
use super::manifests::Parts;
use super::plans::Plans;

pub(super) use own::Own;

/// What is put over something: `None` hides it.
type Changes = Vec<(Name, Option<Arc<Encoded>>)>;

/// What patches do to some resources.
#[derive(Clone, PartialEq, Default)]
pub(super) struct Row {
    changes: Changes,
    faults: Faults,
}

impl Row {
    fn add(&mut self, name: &Name, outcome: Outcome) {
        match outcome {
            Outcome::Same => (),
            Outcome::Changed(encoded) => self.changes.push((name.clone(), Some(encoded))),
            Outcome::Removed => self.changes.push((name.clone(), None)),
        }
    }

    fn build(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Patched {
    pub(super) clusters: Table<(Layer, (ClusterTraits, Arc<Patches>)), pilot_xds::Layer>,
    pub(super) l4_listeners: Table<((Layer, Arc<ListenerTraits>), Arc<Patches>), pilot_xds::Layer>,
    pub(super) http_listeners:
        Table<((Layer, Arc<ListenerTraits>), (Arc<HttpTraits>, Arc<Patches>)), pilot_xds::Layer>,
    pub(super) routes: Table<((Layer, Arc<RouteTraits>), Arc<Patches>), pilot_xds::Layer>,
    pub(super) own: Table<Keyed<Audience>, Own>,
    /// Patches that could not be applied to something.
    pub(super) faults: Table<ConfigId, SharedMap<Fault, ()>>,
}

impl Patched {
    pub(super) fn declare(graph: &mut Graph, plans: Plans, audiences: Audiences, parts: Parts) -> Self {
        let clusters = clusters::Rows::declare(graph, plans, audiences, parts.clusters);
        let listeners = listeners::Rows::declare(graph, audiences, parts.listeners);
        let routes = routes::Rows::declare(graph, plans, audiences, parts.routes);
        let own = own::declare(graph, audiences, parts);
        let faults = graph.tally("patch faults", |feeds| {
            macro_rules! faults_of {
                ($($table:expr),*) => {
                    $(feeds.from(&$table, |_, row, out| {
                        row.faults.iter().for_each(|fault| out.emit(fault.filter.clone(), fault.clone(), ()));
                    });)*
                };
            }
            faults_of!(clusters.shared, clusters.own, listeners.l4, listeners.own_l4, listeners.http);
            faults_of!(routes.shared, routes.own, routes.tables, own);
        });
        Self {
            clusters: clusters.gather(graph),
            l4_listeners: listeners.gather_l4(graph),
            http_listeners: listeners.gather_http(graph),
            routes: routes.gather(graph),
            own,
            faults,
        }
    }
}
