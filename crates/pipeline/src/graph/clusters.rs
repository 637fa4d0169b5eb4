use std::collections::BTreeSet;
use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_envoy::{
    ClusterTraits, FixedTraits, HostClusters, HostEndpoints, fixed_clusters, needs_endpoints,
    outbound_clusters,
};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{HostPlan, Layer, Place, spiffe};
use pilot_model::Endpoint;
use pilot_xds::Encoded;

use super::audience::Audiences;
use super::layered::{Family, Layered};
use super::plans::Plans;

#[derive(Clone, Copy)]
pub(super) struct Clusters {
    /// Those of each host.
    pub(super) rows: Layered<ClusterTraits, Arc<Encoded>>,
    /// Of hosts that are the same from everywhere.
    pub(super) outbound: Table<(Layer, ClusterTraits), pilot_xds::Layer>,
    /// Of hosts whose names are looked up, and whose near endpoints are preferred.
    pub(super) local: Table<(Layer, (ClusterTraits, Place)), pilot_xds::Layer>,
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
            compute(plans, layer, host, (traits, None), reader)
        });
        let by_place = |name: &'static str, graph: &mut Graph, table| {
            graph.tally(name, |feeds| {
                feeds.from(table, |key: &(Layer, Host), plan: &HostPlan, out| {
                    if is_local(plan) {
                        out.emit(key.clone(), (), ());
                    }
                });
            })
        };
        let shared_local = by_place("looked-up hosts by locality", graph, &plans.shared);
        let own_local = by_place("own looked-up hosts by locality", graph, &plans.own);
        let family = Family {
            names: ["local cluster keys", "local clusters", "own local cluster keys", "own local clusters"],
            shared: &shared_local,
            own: &own_local,
        };
        let local =
            family.declare(graph, &audiences.cluster_place, move |(layer, host, (traits, place)), reader| {
                compute(plans, layer, host, (traits, Some(place)), reader)
            });
        let fixed = graph.map("fixed clusters", &audiences.fixed, move |traits, reader| {
            let clusters = fixed_clusters(traits, inputs.settings(reader)?);
            Some(clusters.into_iter().map(|cluster| (cluster.name().clone(), Some(cluster))).collect())
        });
        Self {
            rows: clusters,
            outbound: clusters.gather(graph, "clusters by layer"),
            local: local.gather(graph, "local clusters by layer"),
            fixed,
        }
    }
}

/// Does it depend on where a proxy is what its clusters look like?
fn is_local(plan: &HostPlan) -> bool {
    plan.by_locality && plan.looks_up()
}

/// Who may answer for a host.
pub(super) fn accounts(plans: Plans, plan: &HostPlan, reader: &Reader<'_>) -> Vec<Name> {
    let key = plan.service().map(|service| (service.namespace.clone(), plan.host.clone()));
    let of_endpoints = key.iter().flat_map(|key| plans.registry.accounts(reader, key)).cloned();
    let told = plan.services.iter().flat_map(|service| service.subject_alt_names.iter().cloned());
    let domain = reader.get(&plans.inputs.mesh, &()).map(|mesh| &mesh.trust_domain);
    let named = plan.services.iter().flat_map(|service| {
        let spiffe = move |account: &Name| domain.map(|domain| spiffe(domain, &service.namespace, account));
        service.more_accounts.iter().filter_map(spiffe)
    });
    of_endpoints.chain(told).chain(named).collect::<BTreeSet<_>>().into_iter().collect()
}

fn compute(
    plans: Plans,
    layer: &Layer,
    host: &Host,
    (traits, place): (&ClusterTraits, Option<&Place>),
    reader: &Reader<'_>,
) -> Option<Vec<Arc<Encoded>>> {
    let settings = plans.inputs.settings(reader)?;
    let plan = plans.get(layer, host, reader).filter(|plan| is_local(plan) == place.is_some())?;
    let service = plan.service()?;
    let key = (service.namespace.clone(), host.clone());
    let all: Vec<&Endpoint> =
        if needs_endpoints(plan) { plans.registry.endpoints(reader, &key) } else { Vec::new() };
    let accounts = accounts(plans, plan, reader);
    let peers = plans.policies.peer_index(reader);
    let takes_mtls = |endpoint: &Endpoint| peers.takes_mtls(endpoint);
    // A name is looked up where it is called from, whatever network it is part of.
    let endpoints = HostEndpoints { all: &all, place, takes_mtls: &takes_mtls, gateways: None };
    let mtls = plans.policies.peers(reader, &service.namespace).mode;
    let host = HostClusters { plan, accounts: &accounts, endpoints, mtls };
    Some(outbound_clusters(host, traits, settings).into_vec())
}
