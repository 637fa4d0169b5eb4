//! Services and their endpoints, whatever registry they come from.

use std::collections::BTreeSet;
use std::sync::Arc;

use pilot_base::{Host, Name, SharedMap};
use pilot_incr::{Graph, Input, Reader, Table};
use pilot_mesh::{
    EntryPlan, EntrySurroundings, Target, expand_entry, namespace_distribution, order_targets, ports,
    service_labels, spiffe,
};
use pilot_model::{
    ConfigId, Created, Endpoint, Kind, MeshOptions, Protocol, RegistryMerge, Service, ServiceEntryVisibility,
};

use super::inputs::Inputs;
use super::namespaces;
use super::networks::Networks;
use super::pods::Pods;
use super::seats::Seats;
use super::serving::{Served, Serving};
use super::slices::{self, Repeated, SlicePlan};
use super::workloads::Workloads;

/// Which object says something.
pub(super) type Origin = (Kind, ConfigId);
/// The order of services with one host: the oldest first; and which of the services that an object stands for.
pub(super) type ServiceKey = (Created, Name, Name, Origin, usize);
/// A host in the namespace whose endpoints count for it.
pub(super) type HostKey = (Name, Host);

/// The endpoints of a host, by the rank of the registry and the object that says them.
pub(super) type Shards = SharedMap<(u16, Created, Origin), Arc<[Endpoint]>>;

#[derive(Clone, Copy)]
pub(super) struct Registry {
    options: Input<(), MeshOptions>,
    services: Table<Host, SharedMap<ServiceKey, Arc<Service>>>,
    /// Other names of a host, by their namespaces.
    aliases: Table<Host, SharedMap<(Name, Host), ()>>,
    endpoints: Table<HostKey, Shards>,
    repeated: Table<HostKey, Repeated>,
    accounts: Table<HostKey, Vec<Name>>,
    addresses: Table<Name, SharedMap<Host, ()>>,
    covered: Table<(Host, u16), SharedMap<(), ()>>,
    /// Labels of clients that services compare with those of their endpoints.
    compared: Table<(), SharedMap<Name, ()>>,
    pub(super) networks: Networks,
    pub(super) seats: Seats,
    pub(super) serving: Serving,
}

impl Registry {
    pub(super) fn declare(graph: &mut Graph, inputs: Inputs) -> Self {
        let workloads = Workloads::declare(graph, inputs);
        let entries = entry_plans(graph, inputs, workloads);
        let pods = Pods::declare(graph, inputs);
        let seats = Seats::declare(graph, inputs, pods, &entries);
        let slices = slices::slices(graph, inputs, pods);
        let discovered = discovered_services(graph, inputs);
        let outside = slices::outside(graph, inputs, workloads);
        let services = graph.group("services by host", |feeds| {
            feeds.from(&discovered, |id, service: &Arc<Service>, out| {
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
                let origin = (0, Created::default(), (Kind::EndpointSlice, id.clone()));
                out.emit(plan.key.clone(), origin, Arc::clone(&plan.endpoints));
            });
            feeds.from(&outside, |id, plan: &SlicePlan, out| {
                let origin = (0, Created::default(), (Kind::WorkloadEntry, id.clone()));
                out.emit(plan.key.clone(), origin, Arc::clone(&plan.endpoints));
            });
            feeds.from(&entries, |id, plan: &EntryPlan, out| {
                let created = plan.services.first().map(|service| service.created).unwrap_or_default();
                for (host, endpoints) in &plan.endpoints {
                    let key = (id.namespace.clone(), host.clone());
                    let origin = (plan.rank, created, (Kind::ServiceEntry, id.clone()));
                    out.emit(key, origin, Arc::clone(endpoints));
                }
            });
        });
        let accounts = accounts(graph, inputs, [&slices, &outside], &entries);
        let serving = Serving::declare(graph, inputs, [&slices, &outside], &entries);
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
        let networks = Networks::declare(graph, inputs);
        let compared = compared_labels(graph, &services);
        let aliases = aliases(graph, services);
        Self {
            options: inputs.options,
            networks,
            aliases,
            services,
            endpoints,
            repeated: slices::repeated(graph, &endpoints),
            accounts,
            addresses,
            covered,
            compared,
            seats,
            serving,
        }
    }

    /// Hosts that have a service, as keys.
    pub(super) fn hosts(&self) -> &Table<Host, SharedMap<ServiceKey, Arc<Service>>> {
        &self.services
    }

    /// Services and endpoints, for who counts them.
    pub(super) fn counted(
        &self,
    ) -> (Table<Host, SharedMap<ServiceKey, Arc<Service>>>, Table<HostKey, Shards>) {
        (self.services, self.endpoints)
    }

    /// All services with a host, the oldest first.
    pub(super) fn services(&self, reader: &Reader<'_>, host: &Host) -> Vec<Arc<Service>> {
        let services = reader.get(&self.services, host).into_iter().flatten();
        let services = services.map(|(_, service)| Arc::clone(service));
        let Some(aliases) = reader.get(&self.aliases, host) else { return services.collect() };
        let aliases: Vec<(Name, Host)> = aliases.iter().map(|(alias, ())| alias.clone()).collect();
        let named =
            |service: Arc<Service>| Arc::new(Service { aliases: aliases.clone(), ..(*service).clone() });
        services.map(named).collect()
    }

    /// Is there a service with a host in the namespace, or in exactly one if none is named?
    pub(super) fn is_known(&self, reader: &Reader<'_>, namespace: Option<&Name>, host: &Host) -> bool {
        let services = self.services(reader, host);
        let mut namespaces: Vec<&Name> = services.iter().map(|service| &service.namespace).collect();
        namespaces.sort();
        namespaces.dedup();
        match namespace {
            Some(namespace) => namespaces.contains(&namespace),
            None => namespaces.len() == 1,
        }
    }

    pub(super) fn endpoints<'a>(&self, reader: &Reader<'a>, key: &HostKey) -> Vec<&'a Endpoint> {
        let Some(shards) = reader.get(&self.endpoints, key) else { return Vec::new() };
        let merge = reader.get(&self.options, &()).map(|options| options.registry_merge).unwrap_or_default();
        let first = match merge {
            RegistryMerge::Union => None,
            RegistryMerge::Priority | RegistryMerge::Conflict => first_rank(shards),
        };
        let counts = |rank: u16| first.is_none_or(|first| first == rank);
        let shards = shards.iter().filter(|((rank, _, _), _)| counts(*rank));
        let Some(repeated) = reader.get(&self.repeated, key) else {
            return shards.flat_map(|(_, endpoints)| endpoints.iter()).collect();
        };
        let once = shards.flat_map(|((_, _, origin), endpoints)| {
            let said_first = |(at, _): &(usize, _)| !repeated.contains(&(origin.clone(), *at));
            endpoints.iter().enumerate().filter(said_first).map(|(_, endpoint)| endpoint)
        });
        once.collect()
    }

    /// The registries that have a host, in their order; only if there are several.
    pub(super) fn ranks(&self, reader: &Reader<'_>, key: &HostKey) -> Vec<(u16, ConfigId)> {
        let shards = reader.get(&self.endpoints, key).into_iter().flatten();
        shards.map(|((rank, _, (_, id)), _)| (*rank, id.clone())).collect()
    }

    pub(super) fn accounts<'a>(&self, reader: &Reader<'a>, key: &HostKey) -> &'a [Name] {
        reader.get(&self.accounts, key).map(Vec::as_slice).unwrap_or_default()
    }

    /// The ports of services that a workload serves, in the order in which they claim its ports.
    pub(super) fn targets(&self, reader: &Reader<'_>, served: &[Served]) -> Vec<Target> {
        let mut out = Vec::new();
        for served in served {
            let mut own = self.services(reader, &served.host);
            own.retain(|service| service.namespace == served.namespace);
            own.sort_by_key(|service| service.registry);
            for (service, port) in ports(&own).into_iter().filter(|(_, port)| port.name == served.port_name) {
                let kube = service.registry == pilot_model::Registry::Kubernetes;
                if kube && port.protocol == Protocol::Udp {
                    continue;
                }
                let place = service.ports.iter().position(|other| other.number == port.number);
                let target = Target {
                    service: Arc::clone(service),
                    port: port.number,
                    protocol: port.protocol,
                    target_port: served.target_port,
                    pool: None,
                    ingress: None,
                };
                out.push((place.unwrap_or_default(), target));
            }
        }
        order_targets(&mut out);
        out.into_iter().map(|(_, target)| target).collect()
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
}

fn entry_plans(graph: &mut Graph, inputs: Inputs, workloads: Workloads) -> Table<ConfigId, EntryPlan> {
    graph.map("entry plans", &inputs.service_entries, move |id, reader| {
        let options = reader.get(&inputs.options, &())?;
        let entry = reader.get(&inputs.service_entries, id)?;
        let mesh = reader.get(&inputs.mesh, &())?;
        let limit = mesh.service_entry_visibility.as_ref().filter(|visibility| visibility.apply_to_sidecars);
        let of_namespace = |visibility: &ServiceEntryVisibility| {
            visibility.of_namespace(&namespaces::labels(reader, inputs, id))
        };
        let around = EntrySurroundings {
            cluster: &options.cluster,
            namespace: namespaces::annotations(reader, inputs, id),
            visibility: limit.map(of_namespace).unwrap_or_default(),
            default_export: &mesh.service_export_to,
            allocated: options.features.ip_autoallocate,
            workloads: workloads.selected_by(reader, entry),
        };
        Some(expand_entry(entry, &around))
    })
}

/// Kubernetes services of namespaces that count, each once however many clusters have it.
fn discovered_services(graph: &mut Graph, inputs: Inputs) -> Table<ConfigId, Arc<Service>> {
    let elsewhere = graph.group("services of other clusters", |feeds| {
        feeds.from(&inputs.services, |id: &ConfigId, service: &Arc<Service>, out| {
            if !id.cluster.is_empty() {
                let whole = ConfigId::new(id.namespace.clone(), id.name.clone());
                out.emit(whole, id.cluster.clone(), Arc::clone(service));
            }
        });
    });
    graph.map("discovered services", &inputs.services, move |id, reader| {
        discovered_service(id, elsewhere, inputs, reader)
    })
}

/// A Kubernetes service of a namespace that counts. Of one that is in several clusters the first says what it is, ours
/// before all others, and all of them where it is called.
fn discovered_service(
    id: &ConfigId,
    elsewhere: Table<ConfigId, SharedMap<Name, Arc<Service>>>,
    inputs: Inputs,
    reader: &Reader<'_>,
) -> Option<Arc<Service>> {
    let counts = |id: &ConfigId| namespaces::is_discovered(reader, inputs, id);
    let whole = ConfigId::new(id.namespace.clone(), id.name.clone());
    let others = reader.get(&elsewhere, &whole).into_iter().flatten();
    let others: Vec<(ConfigId, &Arc<Service>)> = others
        .map(|(cluster, service)| (ConfigId { cluster: cluster.clone(), ..whole.clone() }, service))
        .filter(|(other, _)| other != id && counts(other))
        .collect();
    let service = reader.get(&inputs.services, id).filter(|_| counts(id))?;
    let is_first = others.iter().all(|(other, _)| id < other)
        && (id.cluster.is_empty() || reader.get(&inputs.services, &whole).is_none_or(|_| !counts(&whole)));
    if !is_first {
        return None;
    }
    let preferred = namespace_distribution(namespaces::annotations(reader, inputs, id));
    let differs = service.distribution_of_namespace && preferred != service.traffic_distribution;
    if !differs && others.is_empty() {
        return Some(Arc::clone(service));
    }
    let mut merged = (**service).clone();
    if differs {
        merged.traffic_distribution = preferred;
    }
    for (cluster, addresses) in others.iter().flat_map(|(_, other)| &other.cluster_addresses) {
        merged.cluster_addresses.entry(cluster.clone()).or_insert_with(|| addresses.clone());
    }
    Some(Arc::new(merged))
}

/// The other names of each host. One may stand for another; names that only stand for each other stand for nothing.
fn aliases(
    graph: &mut Graph,
    services: Table<Host, SharedMap<ServiceKey, Arc<Service>>>,
) -> Table<Host, SharedMap<(Name, Host), ()>> {
    let target = move |reader: &Reader<'_>, host: &Host| {
        let mut found = reader.get(&services, host)?.iter();
        found.find_map(|(_, service)| Some((service.namespace.clone(), service.external_name.clone()?)))
    };
    let resolved = graph.map("aliases", &services, move |host, reader| {
        let (namespace, mut to) = target(reader, host)?;
        let mut seen = BTreeSet::from([host.clone(), to.clone()]);
        while let Some((_, next)) = target(reader, &to) {
            if !seen.insert(next.clone()) {
                return None;
            }
            to = next;
        }
        Some((namespace, to))
    });
    graph.tally("aliases by host", |feeds| {
        feeds.from(&resolved, |alias: &Host, (namespace, host): &(Name, Host), out| {
            out.emit(host.clone(), (namespace.clone(), alias.clone()), ());
        });
    })
}

/// The identities that the endpoints of each host have.
fn accounts(
    graph: &mut Graph,
    inputs: Inputs,
    kube: [&Table<ConfigId, SlicePlan>; 2],
    entries: &Table<ConfigId, EntryPlan>,
) -> Table<HostKey, Vec<Name>> {
    let account_names = graph.tally("service accounts by host", |feeds| {
        for slices in kube {
            feeds.from(slices, |_, plan: &SlicePlan, out| {
                accounts_of(&plan.endpoints).for_each(|account| out.emit(plan.key.clone(), account, ()));
            });
        }
        feeds.from(entries, |id, plan: &EntryPlan, out| {
            for (host, endpoints) in &plan.endpoints {
                let key = (id.namespace.clone(), host.clone());
                accounts_of(endpoints).for_each(|account| out.emit(key.clone(), account, ()));
            }
        });
    });
    graph.map("identities by host", &account_names, move |key, reader| {
        let domain = &reader.get(&inputs.mesh, &())?.trust_domain;
        let names = reader.get(&account_names, key)?.iter();
        Some(names.map(|((namespace, account), ())| spiffe(domain, namespace, account)).collect())
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

/// The first registry that has an endpoint.
fn first_rank(shards: &Shards) -> Option<u16> {
    shards.iter().find(|(_, endpoints)| !endpoints.is_empty()).map(|((rank, _, _), _)| *rank)
}

/// Who the endpoints are, each once.
fn accounts_of(endpoints: &[Endpoint]) -> impl Iterator<Item = (Name, Name)> {
    let named = endpoints.iter().filter(|endpoint| !endpoint.service_account.is_empty());
    named.map(|endpoint| (endpoint.namespace.clone(), endpoint.service_account.clone()))
}
