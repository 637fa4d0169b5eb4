//! What only few resources of a proxy are: those that every proxy has, those for its own ports, and those that patches
//! bring.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::{Host, Keyed, Name};
use pilot_envoy::{
    Faults, Outcome, ProxyPatches, RouteSide, added_clusters, added_extensions, added_listeners,
    patch_cluster, patch_listener, patch_route_configuration,
};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::ClusterName;
use pilot_xds::{Encoded, Layer as Resources};

use crate::graph::audience::{Audience, Audiences};
use crate::graph::manifests::Parts;

#[derive(Clone, PartialEq, Default)]
pub(in crate::graph) struct Own {
    pub(in crate::graph) clusters: Resources,
    pub(in crate::graph) listeners: Resources,
    /// Of gateways, whose tables are their own.
    pub(in crate::graph) routes: Resources,
    /// What patches bring. One whose name is taken does not count.
    pub(in crate::graph) added_clusters: Vec<Arc<Encoded>>,
    pub(in crate::graph) added_listeners: Vec<Arc<Encoded>>,
    pub(in crate::graph) added_extensions: Vec<Arc<Encoded>>,
    pub(super) faults: Faults,
}

pub(super) fn declare(graph: &mut Graph, audiences: Audiences, parts: Parts) -> Table<Keyed<Audience>, Own> {
    let patched = graph.tally("patched audiences", |feeds| {
        feeds.from(&audiences.all, |audience: &Keyed<Audience>, _, out| {
            if audience.patches.is_some() {
                out.emit(audience.clone(), (), ());
            }
        });
    });
    graph.map("own patched resources", &patched, move |audience, reader| {
        let patches = audience.patches.as_ref()?;
        let build = Build { audience, patches, parts, reader };
        let mut own = Own::default();
        build.clusters(&mut own);
        build.listeners(&mut own);
        build.gateway_routes(&mut own);
        if let Some(extensions) = &patches.extensions {
            own.added_extensions = added_extensions(extensions, &mut own.faults);
        }
        Some(own)
    })
}

struct Build<'r, 'a> {
    audience: &'r Keyed<Audience>,
    patches: &'r ProxyPatches,
    parts: Parts,
    reader: &'r Reader<'a>,
}

impl Build<'_, '_> {
    fn clusters(&self, own: &mut Own) {
        let (outbound, inbound) = (&self.patches.outbound.clusters, &self.patches.inbound.clusters);
        for patches in [outbound, inbound].into_iter().flatten() {
            own.added_clusters.extend(added_clusters(patches, &mut own.faults));
        }
        let fixed = self.reader.get(&self.parts.clusters.fixed, &self.audience.fixed);
        let served = self.reader.get(&self.parts.inbound, self.audience).map(|own| &own.clusters);
        let place = (self.audience.cluster.clone(), self.audience.place.clone());
        let local = self.audience.scope.stack().into_iter();
        let local =
            local.filter_map(|layer| self.reader.get(&self.parts.clusters.local, &(layer, place.clone())));
        let hosts = self.hosts_by_cluster();
        for (name, cluster) in local.chain(fixed).chain(served).flatten() {
            let is_inbound = name.starts_with("inbound|") || name.as_str() == "InboundPassthroughCluster";
            let patches = if is_inbound { inbound } else { outbound };
            if let (Some(cluster), Some(patches)) = (cluster, patches) {
                let hosts = hosts.get(name).map(Vec::as_slice).unwrap_or_default();
                put(&mut own.clusters, name, patch_cluster(cluster, hosts, patches, &mut own.faults));
            }
        }
    }

    /// Services by the inbound cluster that stands for the workload's part in them.
    fn hosts_by_cluster(&self) -> BTreeMap<Name, Vec<Host>> {
        let mut out: BTreeMap<Name, Vec<Host>> = BTreeMap::new();
        for served in self.audience.served() {
            out.entry(ClusterName::inbound(served.target_port)).or_default().push(served.host.clone());
        }
        out
    }

    fn listeners(&self, own: &mut Own) {
        let (outbound, inbound) = (&self.patches.outbound, &self.patches.inbound);
        for patches in [&inbound.listeners, &outbound.listeners].into_iter().flatten() {
            own.added_listeners.extend(added_listeners(patches, &mut own.faults));
        }
        let is_sidecar = self.audience.is_sidecar();
        let redirecting = self.reader.get(&self.parts.listeners.virtual_outbound, &self.audience.redirect());
        let redirecting = redirecting.filter(|_| is_sidecar);
        let served = self.reader.get(&self.parts.inbound, self.audience).map(|own| &own.listeners);
        let gateway = self.audience.gateway_listener();
        let gateway = gateway.and_then(|asker| self.reader.get(&self.parts.gateways.listeners, &asker));
        let sides = [
            (gateway, outbound.listeners.as_deref(), None),
            (redirecting, outbound.listeners.as_deref(), None),
            (served, inbound.listeners.as_deref(), inbound.routes.as_deref()),
        ];
        for (listeners, patches, routes) in sides {
            let listeners = listeners.filter(|_| patches.is_some() || routes.is_some());
            for (name, listener) in listeners.into_iter().flatten() {
                if let Some(listener) = listener {
                    put(&mut own.listeners, name, patch_listener(listener, patches, routes, &mut own.faults));
                }
            }
        }
    }

    fn gateway_routes(&self, own: &mut Own) {
        let asker = self.audience.gateway_route();
        let (Some(patches), Some(asker)) = (&self.patches.outbound.routes, asker) else { return };
        let callers = |port: u32| -> Vec<u32> {
            let ports = asker.1.ports.iter().filter(|(_, to)| u32::from(**to) == port);
            ports.map(|(from, _)| u32::from(*from)).collect()
        };
        let tables = self.reader.get(&self.parts.gateways.routes, &asker);
        for (name, table) in tables.into_iter().flatten() {
            if let Some(table) = table {
                let side = RouteSide::Gateway(&callers);
                let outcome = patch_route_configuration(table, patches, side, &mut own.faults);
                put(&mut own.routes, name, outcome);
            }
        }
    }
}

fn put(layer: &mut Resources, name: &Name, outcome: Outcome) {
    match outcome {
        Outcome::Same => None,
        Outcome::Changed(encoded) => layer.insert(name.clone(), Some(encoded)),
        Outcome::Removed => layer.insert(name.clone(), None),
    };
}
