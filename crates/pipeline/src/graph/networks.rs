//! Gateways between networks: who they are, and which of their names have to be looked up.

use std::sync::Arc;

use pilot_base::{Issue, Labels, Name, ObjectRef, SharedMap};
use pilot_incr::{Emit, Graph, Reader, Table};
use pilot_mesh::{NetworkGateway, NetworkGateways, ServiceGateways, declared_gateways, service_gateways};
use pilot_model::{ConfigId, HostAddresses, Kind, MeshNetworks, Node, NodePorts, Service};

use super::inputs::Inputs;
use super::namespaces;

/// Nodes that are reached from outside, by their clusters: the labels and the address of each.
type OuterNodes = Table<Name, SharedMap<ConfigId, (Labels, Name)>>;

#[derive(Clone, Copy)]
pub(super) struct Networks {
    /// How other networks are reached.
    gateways: Table<(), NetworkGateways>,
    any_gateway: Table<(), ()>,
    /// Names that somebody has to look up.
    pub(super) wanted: Table<Name, SharedMap<ObjectRef, ()>>,
    pub(super) issues: Table<ObjectRef, Vec<Issue>>,
}

/// What somebody says of a gateway that may not come to be.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Doubt {
    /// A name, and where it is said.
    Name(String, Name),
    /// What is wrong, and with what.
    Problem(&'static str, String),
}

impl Networks {
    pub(super) fn declare(graph: &mut Graph, inputs: Inputs) -> Self {
        let nodes = graph.group("nodes with outer addresses", |feeds| {
            feeds.from(&inputs.nodes, |id: &ConfigId, node: &Node, out| {
                if let Some(address) = &node.outer_address {
                    out.emit(id.cluster.clone(), id.clone(), (node.labels.clone(), address.clone()));
                }
            });
        });
        // One of the same name in each cluster is the rule.
        let by_service = graph.map("network gateways by service", &inputs.services, move |id, reader| {
            of_service(id, inputs, nodes, reader)
        });
        let declared = graph.map("declared network gateways", &inputs.networks, move |&(), reader| {
            let all = declared_gateways(reader.get(&inputs.networks, &())?);
            (!all.is_empty()).then_some(ServiceGateways { gateways: all, problem: None })
        });
        let all = graph.tally("network gateways", |feeds| {
            let emit = |found: &ServiceGateways, out: &mut Emit<(), NetworkGateway, ()>| {
                found.gateways.iter().for_each(|(_, gateway)| out.emit((), gateway.clone(), ()));
            };
            feeds.from(&by_service, move |_, found: &ServiceGateways, out| emit(found, out));
            feeds.from(&declared, move |(), found: &ServiceGateways, out| emit(found, out));
        });
        let doubts = graph.tally("doubts about network gateways", |feeds| {
            feeds.from(&by_service, |id: &ConfigId, found: &ServiceGateways, out| {
                doubts(found).for_each(|doubt| out.emit(id.object(Kind::Service), doubt, ()));
            });
            feeds.from(&declared, |(), found: &ServiceGateways, out| {
                doubts(found).for_each(|doubt| out.emit(mesh_networks(), doubt, ()));
            });
        });
        let asked = graph.tally("names of network gateways", |feeds| {
            feeds.from(&doubts, |object: &ObjectRef, doubts: &SharedMap<Doubt, ()>, out| {
                for (doubt, ()) in doubts {
                    if let Doubt::Name(_, name) = doubt {
                        out.emit(name.clone(), object.clone(), ());
                    }
                }
            });
        });
        let wanted = graph.map("wanted names", &asked, move |name, reader| {
            let features = &reader.get(&inputs.options, &())?.features;
            reader.get(&asked, name).filter(|_| features.resolve_gateways).cloned()
        });
        let gateways = graph.map("resolved network gateways", &all, move |&(), reader| {
            let all = reader.get(&all, &())?.iter();
            NetworkGateways::new(all.flat_map(|(gateway, ())| resolved(gateway, inputs, reader)))
        });
        let any_gateway = graph.map("any network gateway", &gateways, |&(), _| Some(()));
        let issues = graph.map("network gateway issues", &doubts, move |object, reader| {
            let doubts = reader.get(&doubts, object)?.iter();
            let issues: Vec<Issue> =
                doubts.filter_map(|(doubt, ())| issue(object, doubt, inputs, reader)).collect();
            (!issues.is_empty()).then_some(issues)
        });
        Self { gateways, any_gateway, wanted, issues }
    }

    /// How other networks are reached; nothing, if all are reached directly.
    pub(super) fn gateways<'a>(&self, reader: &Reader<'a>) -> Option<&'a NetworkGateways> {
        reader.get(&self.gateways, &())
    }

    /// Is there a network that is reached over a gateway? Most who ask do not mind which.
    pub(super) fn has_gateways(&self, reader: &Reader<'_>) -> bool {
        reader.get(&self.any_gateway, &()).is_some()
    }
}

fn mesh_networks() -> ObjectRef {
    ObjectRef::new("MeshNetworks", Name::empty(), Name::empty())
}

fn of_service(
    id: &ConfigId,
    inputs: Inputs,
    nodes: OuterNodes,
    reader: &Reader<'_>,
) -> Option<ServiceGateways> {
    let counts = namespaces::is_discovered(reader, inputs, id);
    let service: &Arc<Service> = reader.get(&inputs.services, id).filter(|_| counts)?;
    let none = MeshNetworks::default();
    let networks = reader.get(&inputs.networks, &()).unwrap_or(&none);
    let cluster = namespaces::cluster_of(reader, inputs, id)?;
    let on_nodes = |ports: &NodePorts| {
        let all = reader.get(&nodes, &id.cluster).into_iter().flatten();
        let selected = all.filter(|(_, (labels, _))| ports.nodes.subset_of(labels));
        selected.map(|(_, (_, address))| address.clone()).collect()
    };
    let found = service_gateways(service, networks, cluster, on_nodes);
    (found != ServiceGateways::default()).then_some(found)
}

fn doubts(found: &ServiceGateways) -> impl Iterator<Item = Doubt> {
    let names =
        found.gateways.iter().filter_map(|(path, gateway)| Some((path.clone(), gateway.name()?.clone())));
    let problem = found.problem.iter().map(|(path, why)| Doubt::Problem(path, why.clone()));
    names.map(|(path, name)| Doubt::Name(path, name)).chain(problem)
}

/// A gateway at every address of its name, as far as that was looked up.
fn resolved(gateway: &NetworkGateway, inputs: Inputs, reader: &Reader<'_>) -> Vec<NetworkGateway> {
    let Some(name) = gateway.name() else { return vec![gateway.clone()] };
    let found = reader.get(&inputs.host_addresses, name);
    found.into_iter().flat_map(|found| &found.addresses).map(|address| gateway.at(*address)).collect()
}

fn issue(object: &ObjectRef, doubt: &Doubt, inputs: Inputs, reader: &Reader<'_>) -> Option<Issue> {
    let (path, name) = match doubt {
        Doubt::Problem(path, why) => return Some(Issue::warning(object.clone(), *path, why.clone())),
        Doubt::Name(path, name) => (path, name),
    };
    let resolves = reader.get(&inputs.options, &()).is_some_and(|options| options.features.resolve_gateways);
    if !resolves {
        let message = format!("{name} is not looked up: RESOLVE_HOSTNAME_GATEWAYS is off");
        return Some(Issue::warning(object.clone(), path.clone(), message));
    }
    let found: &HostAddresses = reader.get(&inputs.host_addresses, name)?;
    let meanwhile = match found.addresses[..] {
        [] => "nobody reaches the network over it meanwhile",
        _ => "its last addresses are still used",
    };
    let why = found.failure.as_ref()?;
    let message = format!("{name} was not found: {why}; {meanwhile}, and it is looked up again");
    Some(Issue::warning(object.clone(), path.clone(), message))
}
