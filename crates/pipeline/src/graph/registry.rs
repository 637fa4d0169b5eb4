//! Services and their endpoints, whatever registry they come from.

use std::net::IpAddr;
use std::sync::Arc;

use pilot_base::{Host, Name, SharedMap};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{EntryPlan, EntrySurroundings, expand_entry, kube_endpoints, service_labels, spiffe};
use pilot_model::{Address, ConfigId, Created, Endpoint, Kind, Service};

use super::inputs::Inputs;
use super::seats::Seats;
use super::workloads::Workloads;

/// Which object says something.
type Origin = (Kind, ConfigId);
/// The order of services with one host: the oldest first; and which of the services that an object stands for.
type ServiceKey = (Created, Name, Name, Origin, usize);
/// A host in the namespace whose endpoints count for it.
pub(super) type HostKey = (Name, Host);

/// What an address serves: a port of a host, and where.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Served {
    pub(super) namespace: Name,
    pub(super) host: Host,
    pub(super) port_name: Name,
    pub(super) target_port: u16,
}

#[derive(Clone, Copy)]
pub(super) struct Registry {
    services: Table<Host, SharedMap<ServiceKey, Arc<Service>>>,
    endpoints: Table<HostKey, SharedMap<(Created, Origin), Arc<[Endpoint]>>>,
    accounts: Table<HostKey, Vec<Name>>,
    addresses: Table<Name, SharedMap<Host, ()>>,
    covered: Table<(Host, u16), SharedMap<(), ()>>,
    served: Table<IpAddr, SharedMap<Served, ()>>,
    /// Labels of clients that services compare with those of their endpoints.
    compared: Table<(), SharedMap<Name, ()>>,
    pub(super) seats: Seats,
}

/// The endpoints of one slice.
#[derive(PartialEq)]
struct SlicePlan {
    key: HostKey,
    endpoints: Arc<[Endpoint]>,
}

impl Registry {
    pub(super) fn declare(graph: &mut Graph, inputs: Inputs) -> Self {
        let entries = entry_plans(graph, inputs);
        let seats = Seats::declare(graph, inputs, &entries);
        let slices =
            graph.map("slice plans", &inputs.slices, move |id, reader| slice_plan(id, inputs, reader));
        let services = graph.group("services by host", |feeds| {
            feeds.from(&inputs.services, |id, service, out| {
                let key = service_key(service, (Kind::Service, id.clone()), 0);
                out.emit(service.host.clone(), key, Arc::clone(service));
            });
            feeds.from(&entries, |id, plan: &EntryPlan, out| {
                for (i, service) in plan.services.iter().enumerate() {
                    let key = service_key(service, (Kind::ServiceEntry, id.clone()), i);
                    out.emit(service.host.clone(), key, Arc::clone(service));
                }
            });
        });
        let endpoints = graph.group("endpoints by host", |feeds| {
            feeds.from(&slices, |id, plan: &SlicePlan, out| {
                let origin = (Created::default(), (Kind::EndpointSlice, id.clone()));
                out.emit(plan.key.clone(), origin, Arc::clone(&plan.endpoints));
            });
            feeds.from(&entries, |id, plan: &EntryPlan, out| {
                let created = plan.services.first().map(|service| service.created).unwrap_or_default();
                for (host, endpoints) in &plan.endpoints {
                    let key = (id.namespace.clone(), host.clone());
                    out.emit(key, (created, (Kind::ServiceEntry, id.clone())), Arc::clone(endpoints));
                }
            });
        });
        let account_names = graph.tally("service accounts by host", |feeds| {
            feeds.from(&slices, |_, plan: &SlicePlan, out| {
                accounts_of(&plan.endpoints).for_each(|account| out.emit(plan.key.clone(), account, ()));
            });
            feeds.from(&entries, |id, plan: &EntryPlan, out| {
                for (host, endpoints) in &plan.endpoints {
                    let key = (id.namespace.clone(), host.clone());
                    accounts_of(endpoints).for_each(|account| out.emit(key.clone(), account, ()));
                }
            });
        });
        let accounts = graph.map("identities by host", &account_names, move |key, reader| {
            let domain = &reader.get(&inputs.mesh, &())?.trust_domain;
            let names = reader.get(&account_names, key)?.iter();
            Some(names.map(|((namespace, account), ())| spiffe(domain, namespace, account)).collect())
        });
        let served = graph.tally("served by address", |feeds| {
            feeds.from(&slices, |_, plan: &SlicePlan, out| {
                served(&plan.key, &plan.endpoints).for_each(|(ip, served)| out.emit(ip, served, ()));
            });
            feeds.from(&entries, |id, plan: &EntryPlan, out| {
                for (host, endpoints) in &plan.endpoints {
                    let key = (id.namespace.clone(), host.clone());
                    served(&key, endpoints).for_each(|(ip, served)| out.emit(ip, served, ()));
                }
            });
        });
        let addresses = graph.tally("hosts by address", |feeds| {
            feeds.from(&services, |host, services, out| {
                for (_, service) in services {
                    let all = service.cluster_addresses.values().flatten().chain(&service.address);
                    let all = all.chain(&service.auto_addresses);
                    all.for_each(|address| out.emit(address.clone(), host.clone(), ()));
                }
            });
        });
        let covered = graph.tally("covered patterns", |feeds| {
            feeds.from(&services, |host, services, out| {
                let ports =
                    services.iter().flat_map(|(_, service)| service.ports.iter().map(|port| port.number));
                for port in ports {
                    host.covering_patterns().for_each(|pattern| out.emit((pattern, port), (), ()));
                }
            });
        });
        let compared = compared_labels(graph, &services);
        Self { services, endpoints, accounts, addresses, covered, served, compared, seats }
    }

    /// Hosts that have a service, as keys.
    pub(super) fn hosts(&self) -> &Table<Host, SharedMap<ServiceKey, Arc<Service>>> {
        &self.services
    }

    /// All services with a host, the oldest first.
    pub(super) fn services(&self, reader: &Reader<'_>, host: &Host) -> Vec<Arc<Service>> {
        let services = reader.get(&self.services, host);
        services.into_iter().flatten().map(|(_, service)| Arc::clone(service)).collect()
    }

    pub(super) fn endpoints<'a>(&self, reader: &Reader<'a>, key: &HostKey) -> Vec<&'a Endpoint> {
        let shards = reader.get(&self.endpoints, key).into_iter().flatten();
        shards.flat_map(|(_, endpoints)| endpoints.iter()).collect()
    }

    pub(super) fn accounts<'a>(&self, reader: &Reader<'a>, key: &HostKey) -> &'a [Name] {
        reader.get(&self.accounts, key).map(Vec::as_slice).unwrap_or_default()
    }

    pub(super) fn compared<'a>(&self, reader: &Reader<'a>) -> impl Iterator<Item = &'a Name> + use<'a> {
        reader.get(&self.compared, &()).into_iter().flatten().map(|(label, ())| label)
    }

    pub(super) fn hosts_at(&self, reader: &Reader<'_>, address: &Name) -> Vec<Host> {
        reader.get(&self.addresses, address).into_iter().flatten().map(|(host, ())| host.clone()).collect()
    }

    pub(super) fn covers(&self, reader: &Reader<'_>, pattern: &Host, port: u16) -> bool {
        reader.get(&self.covered, &(pattern.clone(), port)).is_some()
    }

    pub(super) fn served_at<'a>(&self, reader: &Reader<'a>, ip: IpAddr) -> impl Iterator<Item = &'a Served> {
        reader.get(&self.served, &ip).into_iter().flatten().map(|(served, ())| served)
    }
}

fn entry_plans(graph: &mut Graph, inputs: Inputs) -> Table<ConfigId, EntryPlan> {
    let workloads = Workloads::declare(graph, inputs);
    graph.map("entry plans", &inputs.service_entries, move |id, reader| {
        let options = reader.get(&inputs.options, &())?;
        let entry = reader.get(&inputs.service_entries, id)?;
        let namespace = ConfigId::new(Name::empty(), id.namespace.clone());
        let around = EntrySurroundings {
            cluster: &options.cluster,
            namespace: reader.get(&inputs.namespaces, &namespace).map(|namespace| &namespace.annotations),
            allocated: options.features.ip_autoallocate,
            workloads: workloads.selected_by(reader, entry),
        };
        Some(expand_entry(entry, &around))
    })
}

fn compared_labels(
    graph: &mut Graph,
    services: &Table<Host, SharedMap<ServiceKey, Arc<Service>>>,
) -> Table<(), SharedMap<Name, ()>> {
    graph.tally("labels that services compare", |feeds| {
        feeds.from(services, |_, services: &SharedMap<ServiceKey, Arc<Service>>, out| {
            let labels = services.iter().flat_map(|(_, service)| service_labels(service));
            labels.for_each(|label| out.emit((), label, ()));
        });
    })
}

fn service_key(service: &Service, origin: Origin, at: usize) -> ServiceKey {
    let (created, name, namespace) = service.order();
    (created, name, namespace, origin, at)
}

fn slice_plan(id: &ConfigId, inputs: Inputs, reader: &Reader<'_>) -> Option<SlicePlan> {
    let slice = reader.get(&inputs.slices, id)?;
    let options = reader.get(&inputs.options, &())?;
    let namespace = &id.namespace;
    let pod = |name: &Name| reader.get(&inputs.pods, &ConfigId::new(namespace.clone(), name.clone()));
    let node = |name: &Name| reader.get(&inputs.nodes, &ConfigId::new(Name::empty(), name.clone()));
    let endpoints = kube_endpoints(slice, namespace, &options.cluster, pod, node);
    let host = Host::new(&format!("{}.{namespace}.svc.{}", slice.service, options.domain));
    Some(SlicePlan { key: (namespace.clone(), host), endpoints: endpoints.into() })
}

/// Who the endpoints are, each once.
fn accounts_of(endpoints: &[Endpoint]) -> impl Iterator<Item = (Name, Name)> {
    let named = endpoints.iter().filter(|endpoint| !endpoint.service_account.is_empty());
    named.map(|endpoint| (endpoint.namespace.clone(), endpoint.service_account.clone()))
}

fn served(key: &HostKey, endpoints: &[Endpoint]) -> impl Iterator<Item = (IpAddr, Served)> {
    endpoints.iter().filter_map(move |endpoint| match endpoint.address {
        Address::Ip(ip) => {
            let served = Served {
                namespace: key.0.clone(),
                host: key.1.clone(),
                port_name: endpoint.port_name.clone(),
                target_port: endpoint.port,
            };
            Some((ip, served))
        }
        Address::Host(_) | Address::Pipe(_) => None,
    })
}
