//! The names that a proxy answers DNS queries for.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::Name;
use pilot_envoy_api::istio::networking::nds::v1::{NameTable, name_table::NameInfo};
use pilot_mesh::HostPlan;
use pilot_model::{Address, Caller, Endpoint, Health, Registry, Resolution, Service};
use pilot_xds::{Encoded, TypeUrl};
use prost::Message as _;

/// What of a proxy can shape the names it is told.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NameTraits {
    pub caller: Caller,
    pub network: Name,
    /// Has a service without an address those of pods in all clusters, or only of those in the proxy's own?
    pub all_clusters: bool,
}

/// What a host is resolved to.
#[derive(Clone, PartialEq, Debug)]
pub struct NameEntry {
    pub host: Name,
    info: NameInfo,
}

/// A host with its addresses, and each pod of it that has a name of its own. `endpoints` are asked for where a service has
/// no address.
pub fn name_entries<'a>(
    plan: &HostPlan,
    traits: &NameTraits,
    endpoints: impl Fn() -> Vec<&'a Endpoint>,
) -> Vec<NameEntry> {
    let mut info: Option<NameInfo> = None;
    let mut pods = Vec::new();
    // What only rules lead to is not called by its name; what several listeners serve is listed for each.
    for service in plan.views.iter().flat_map(|view| &view.services) {
        let own = service.addresses_from(&traits.caller);
        // A range is no answer.
        let mut ips: Vec<String> = own.iter().filter(|a| !a.contains('/')).map(ToString::to_string).collect();
        if own.is_empty() {
            let near = headless(service, traits, &endpoints);
            let counts =
                |endpoint: &&Endpoint| traits.all_clusters || same(&endpoint.cluster, &traits.caller.cluster);
            ips = near.iter().copied().filter(counts).flat_map(ips_of).collect();
            pods.extend(pod_entries(service, &near, traits));
        }
        if ips.is_empty() {
            continue;
        }
        match &mut info {
            // Kubernetes' word counts alone; others add to each other.
            Some(known) if known.registry == registry(Registry::Kubernetes) => (),
            Some(known) if service.registry != Registry::Kubernetes => known.ips.extend(ips),
            Some(_) | None => info = Some(new_info(service, ips)),
        }
    }
    let host = info.map(|info| NameEntry { host: plan.host.name().clone(), info });
    host.into_iter().chain(pods).collect()
}

fn same(a: &Name, b: &Name) -> bool {
    a.is_empty() || b.is_empty() || a == b
}

/// The endpoints whose addresses a service without one has: those that are ready in the client's network.
fn headless<'a>(
    service: &Service,
    traits: &NameTraits,
    endpoints: &impl Fn() -> Vec<&'a Endpoint>,
) -> Vec<&'a Endpoint> {
    let first = service.ports.first().filter(|_| service.resolution == Resolution::Passthrough);
    let Some(port) = first else { return Vec::new() };
    let mut out = endpoints();
    out.retain(|endpoint| {
        endpoint.port_name == port.name
            && same(&endpoint.network, &traits.network)
            && (service.publish_not_ready || endpoint.health == Health::Healthy)
    });
    out
}

fn ips_of(endpoint: &Endpoint) -> impl Iterator<Item = String> {
    let all = std::iter::once(&endpoint.address).chain(&endpoint.more_addresses);
    all.filter_map(|address| match address {
        Address::Ip(ip) => Some(ip.to_string()),
        Address::Host(_) | Address::Pipe(_) => None,
    })
}

/// Pods by their names below the service's; those of the client's cluster hide others of the same name.
fn pod_entries(service: &Service, endpoints: &[&Endpoint], traits: &NameTraits) -> Vec<NameEntry> {
    let Some((_, domain)) = service.host.as_str().split_once('.') else { return Vec::new() };
    let mut found: BTreeMap<(Name, bool), Vec<String>> = BTreeMap::new();
    for endpoint in endpoints {
        if let Some(name) = &endpoint.dns_name {
            let elsewhere = !same(&endpoint.cluster, &traits.caller.cluster);
            found.entry((name.clone(), elsewhere)).or_default().extend(ips_of(endpoint));
        }
    }
    let mut out: Vec<NameEntry> = Vec::new();
    for ((name, _), ips) in found {
        let host = Name::from(format!("{name}.{domain}"));
        if out.last().is_none_or(|known| known.host != host) {
            let info = NameInfo { shortname: name.to_string(), ..new_info(service, ips) };
            out.push(NameEntry { host, info });
        }
    }
    out
}

fn new_info(service: &Service, ips: Vec<String>) -> NameInfo {
    let known = service.registry == Registry::Kubernetes;
    NameInfo {
        ips,
        registry: registry(service.registry).to_owned(),
        // From these the agent makes the shorter names.
        shortname: if known { service.name.to_string() } else { String::new() },
        namespace: if known { service.namespace.to_string() } else { String::new() },
        ..NameInfo::default()
    }
}

fn registry(registry: Registry) -> &'static str {
    match registry {
        Registry::Kubernetes => "Kubernetes",
        Registry::External => "External",
    }
}

/// All names as one resource, which has none itself.
pub fn name_table<'a>(entries: impl Iterator<Item = &'a NameEntry>) -> Arc<Encoded> {
    let table = entries.map(|entry| (entry.host.to_string(), entry.info.clone())).collect();
    Arc::new(Encoded::new(TypeUrl::NameTable, Name::empty(), &NameTable { table }.encode_to_vec()))
}
