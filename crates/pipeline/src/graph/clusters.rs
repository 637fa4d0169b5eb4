use std::sync::Arc;

use pilot_envoy::{ClusterTraits, FixedTraits, fixed_clusters, outbound_clusters};
use pilot_incr::{Graph, Table};
use pilot_mesh::Layer;
use pilot_xds::Encoded;

use super::audience::Audiences;
use super::layered::{Family, Layered};
use super::plans::Plans;

#[derive(Clone, Copy)]
pub(super) struct Clusters {
    /// Those of each host.
    pub(super) rows: Layered<ClusterTraits, Arc<Encoded>>,
    pub(super) outbound: Table<(Layer, ClusterTraits), pilot_xds::Layer>,
    /// Those that every proxy has.
    pub(super) fixed: Table<FixedTraits, pilot_xds::Layer>,
}

impl Clusters {
    pub(super) fn declare(graph: &mut Graph, plans: Plans, audiences: Audiences) -> Self {
        let inputs = plans.inputs;
        let family = Family {
            names: ["cluster keys", "clusters", "own cluster keys", "own clusters"],
            shared: &plans.shared,
            own: &plans.own,
        };
        let clusters = family.declare(graph, &audiences.cluster, move |(layer, host, traits), reader| {
            let settings = inputs.settings(reader)?;
            let plan = plans.get(layer, host, reader)?;
            let service = plan.service()?;
            let accounts = plans.registry.accounts(reader, &(service.namespace.clone(), host.clone()));
            Some(outbound_clusters(plan, accounts, traits, settings).into_vec())
        });
        let outbound = clusters.gather(graph, "clusters by layer");
        let fixed = graph.map("fixed clusters", &audiences.fixed, move |traits, reader| {
            let clusters = fixed_clusters(traits, inputs.settings(reader)?);
            Some(clusters.into_iter().map(|cluster| (cluster.name().clone(), Some(cluster))).collect())
        });
        Self { rows: clusters, outbound, fixed }
    }
}
