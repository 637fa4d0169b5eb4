//! What gRPC clients and servers are told that have no Envoy beside them. They ask for each thing by its name.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::Keyed;
use pilot_envoy::{
    GrpcTraits, RouteTraits, grpc_clusters, grpc_endpoints, grpc_inbound, grpc_listeners, grpc_routes,
    virtual_hosts,
};
use pilot_incr::{Graph, Table};
use pilot_mesh::Layer;
use pilot_model::MtlsMode;

use super::audience::{Audience, Audiences};
use super::clusters::accounts;
use super::layered::Family;
use super::plans::Plans;
use super::routes::Around;

/// Who asks.
pub(super) type Asker = (Layer, (Arc<GrpcTraits>, Arc<RouteTraits>));

/// A label that promises that all who call speak mutual TLS.
const TLS_MODE: &str = "security.istio.io/tlsMode";

#[derive(Clone, Copy)]
pub(super) struct Grpc {
    pub(super) clusters: Table<Asker, pilot_xds::Layer>,
    /// Of clusters that have none.
    pub(super) endpoints: Table<Asker, pilot_xds::Layer>,
    pub(super) listeners: Table<Asker, pilot_xds::Layer>,
    pub(super) routes: Table<Asker, pilot_xds::Layer>,
    /// For servers: their own ports.
    pub(super) inbound: Table<Keyed<Audience>, pilot_xds::Layer>,
}

impl Grpc {
    pub(super) fn declare(graph: &mut Graph, plans: Plans, audiences: Audiences) -> Self {
        let inputs = plans.inputs;
        let family = Family {
            names: ["grpc cluster keys", "grpc clusters", "own grpc cluster keys", "own grpc clusters"],
            shared: &plans.shared,
            own: &plans.own,
        };
        let clusters = family.declare(graph, &audiences.grpc, move |(layer, host, _), reader| {
            let plan = plans.get(layer, host, reader)?;
            Some(grpc_clusters(plan, &accounts(plans, plan, reader)))
        });
        let family = Family {
            names: ["grpc endpoint keys", "grpc endpoints", "own grpc endpoint keys", "own grpc endpoints"],
            ..family
        };
        let endpoints = family.declare(graph, &audiences.grpc, move |(layer, host, _), reader| {
            Some(grpc_endpoints(plans.get(layer, host, reader)?))
        });
        let family = Family {
            names: ["grpc listener keys", "grpc listeners", "own grpc listener keys", "own grpc listeners"],
            ..family
        };
        let listeners = family.declare(graph, &audiences.grpc, move |(layer, host, (traits, _)), reader| {
            Some(grpc_listeners(plans.get(layer, host, reader)?, traits, inputs.settings(reader)?))
        });
        let family = Family {
            names: ["grpc route keys", "grpc routes", "own grpc route keys", "own grpc routes"],
            shared: &plans.shared,
            own: &plans.own_routes,
        };
        let routes = family.declare(graph, &audiences.grpc, move |(layer, host, (_, traits)), reader| {
            let plan = plans.get(layer, host, reader)?;
            let around = Around { plans, layer, reader };
            let whose = (layer.client(), plans.listeners(layer, reader));
            let hosts = virtual_hosts(plan, whose, traits, &around, inputs.settings(reader)?);
            Some(grpc_routes(plan, &hosts))
        });
        let servers = graph.tally("grpc audiences", |feeds| {
            feeds.from(&audiences.all, |audience: &Keyed<Audience>, _, out| {
                if audience.grpc.is_some() {
                    out.emit(audience.clone(), (), ());
                }
            });
        });
        let inbound = graph.map("grpc inbound", &servers, move |audience, reader| {
            let mode = |port: u16| match audience.peers.at(port) {
                MtlsMode::Permissive if audience.grpc_is_mutual => MtlsMode::Strict,
                mode => mode,
            };
            let ports: BTreeMap<u16, MtlsMode> = audience
                .served()
                .iter()
                .map(|served| (served.target_port, mode(served.target_port)))
                .collect();
            let policies = audience.policies.authorization.iter();
            let policies: Vec<_> = policies
                .filter_map(|id| reader.get(&inputs.authorization_policies, id).map(|policy| &**policy))
                .collect();
            Some(grpc_inbound(&ports, &policies).into_iter().map(|e| (e.name().clone(), Some(e))).collect())
        });
        Self {
            clusters: clusters.gather(graph, "grpc clusters by layer"),
            endpoints: endpoints.gather(graph, "grpc endpoints by layer"),
            listeners: listeners.gather(graph, "grpc listeners by layer"),
            routes: routes.gather(graph, "grpc routes by layer"),
            inbound,
        }
    }
}

/// Do all who call the workload speak mutual TLS?
pub(super) fn is_mutual(labels: &pilot_base::Labels) -> bool {
    labels.get(TLS_MODE).is_some_and(|mode| mode.as_str() == "istio")
}
