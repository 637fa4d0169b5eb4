//! The names that a proxy answers DNS queries for.

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
}

/// What a host is resolved to.
#[derive(Clone, PartialEq, Debug)]
pub struct NameEntry {
    pub host: Name,
    info: NameInfo,
}

/// A host with its addresses; nothing if it has none that are known. `endpoints` are asked for where a service has no
/// address of its own.
pub fn name_entry<'a>(
    plan: &HostPlan,
    traits: &NameTraits,
    endpoints: impl Fn() -> Vec<&'a Endpoint>,
) -> Option<NameEntry> {
    let mut info: Option<NameInfo> = None;
    for service in plan.services.iter().filter(|_| !plan.views.is_empty()) {
        let ips = addresses(service, traits, &endpoints);
        if ips.is_empty() {
            continue;
        }
        match &mut info {
            None => info = Some(new_info(service, ips)),
            // Kubernetes' word counts alone; others add to each other.
            Some(known) if known.registry != registry(Registry::Kubernetes) => known.ips.extend(ips),
            Some(_) => (),
        }
    }
    info.map(|info| NameEntry { host: plan.host.name().clone(), info })
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

fn addresses<'a>(
    service: &Service,
    traits: &NameTraits,
    endpoints: &impl Fn() -> Vec<&'a Endpoint>,
) -> Vec<String> {
    let own = service.addresses_from(&traits.caller);
    if !own.is_empty() {
        // A range is no answer.
        return own.iter().filter(|a| !a.contains('/')).map(ToString::to_string).collect();
    }
    let first = service.ports.first().filter(|_| service.resolution == Resolution::Passthrough);
    let Some(port) = first else { return Vec::new() };
    let near = |endpoint: &&Endpoint| {
        let same = |a: &Name, b: &Name| a.is_empty() || b.is_empty() || a == b;
        same(&endpoint.network, &traits.network) && same(&endpoint.cluster, &traits.caller.cluster)
    };
    let ready = |endpoint: &&Endpoint| service.publish_not_ready || endpoint.health == Health::Healthy;
    let here = endpoints().into_iter().filter(|e| e.port_name == port.name).filter(near).filter(ready);
    let ips = here.flat_map(|endpoint| std::iter::once(&endpoint.address).chain(&endpoint.more_addresses));
    let ips = ips.filter_map(|address| match address {
        Address::Ip(ip) => Some(ip.to_string()),
        Address::Host(_) | Address::Pipe(_) => None,
    });
    ips.collect()
}

/// All names as one resource, which has none itself.
pub fn name_table<'a>(entries: impl Iterator<Item = &'a NameEntry>) -> Arc<Encoded> {
    let table = entries.map(|entry| (entry.host.to_string(), entry.info.clone())).collect();
    Arc::new(Encoded::new(TypeUrl::NameTable, Name::empty(), &NameTable { table }.encode_to_vec()))
}
