use pilot_base::Host;
use pilot_envoy::{EndpointTraits, HostEndpoints, assignments};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{Layer, Place};
use pilot_model::Endpoint;

use super::audience::Audiences;
use super::layered::Family;
use super::plans::Plans;

#[derive(Clone, Copy)]
pub(super) struct Endpoints {
    /// Of hosts that are the same from everywhere.
    pub(super) plain: Table<(Layer, EndpointTraits), pilot_xds::Layer>,
    /// Of hosts whose near endpoints are preferred.
    pub(super) local: Table<(Layer, (EndpointTraits, Place)), pilot_xds::Layer>,
}

impl Endpoints {
    pub(super) fn declare(graph: &mut Graph, plans: Plans, audiences: Audiences) -> Self {
        let family = Family {
            names: ["endpoint keys", "endpoint groups", "own endpoint keys", "own endpoint groups"],
            shared: &plans.shared,
            own: &plans.own,
        };
        let plain = family.declare(graph, &audiences.endpoint, move |(layer, host, traits), reader| {
            compute(plans, layer, host, (traits, None), reader)
        });
        let by_place = |name: &'static str, graph: &mut Graph, table| {
            graph.tally(name, |feeds| {
                feeds.from(table, |key: &(Layer, Host), plan: &pilot_mesh::HostPlan, out| {
                    if plan.by_locality {
                        out.emit(key.clone(), (), ());
                    }
                });
            })
        };
        let shared_local = by_place("hosts by locality", graph, &plans.shared);
        let own_local = by_place("own hosts by locality", graph, &plans.own);
        let family = Family {
            names: [
                "local endpoint keys",
                "local endpoint groups",
                "own local endpoint keys",
                "own local endpoint groups",
            ],
            shared: &shared_local,
            own: &own_local,
        };
        let local = family.declare(graph, &audiences.place, move |(layer, host, (traits, place)), reader| {
            compute(plans, layer, host, (traits, Some(place)), reader)
        });
        Self {
            plain: plain.gather(graph, "endpoint groups by layer"),
            local: local.gather(graph, "local endpoint groups by layer"),
        }
    }
}

fn compute(
    plans: Plans,
    layer: &Layer,
    host: &Host,
    (traits, place): (&EndpointTraits, Option<&Place>),
    reader: &Reader<'_>,
) -> Option<Vec<std::sync::Arc<pilot_xds::Encoded>>> {
    let settings = plans.inputs.settings(reader)?;
    let plan = plans.get(layer, host, reader).filter(|plan| plan.by_locality == place.is_some())?;
    let service = plan.service()?;
    let endpoints = plans.registry.endpoints(reader, &(service.namespace.clone(), host.clone()));
    let peers = plans.policies.peer_index(reader);
    let gateways = plans.registry.networks.gateways(reader);
    let takes_mtls = |endpoint: &Endpoint| peers.takes_mtls(endpoint);
    let endpoints = HostEndpoints { all: &endpoints, place, takes_mtls: &takes_mtls, gateways };
    Some(assignments(plan, endpoints, traits, settings).into_vec())
}
