pub(super) mod rules;

use std::net::IpAddr;

use pilot_api::networking as api;
use pilot_base::{Host, Labels, Name};
use pilot_model::{
    Address, EntryPort, ExportTo, Location, Protocol, Resolution, ServiceEntry, WorkloadEntry,
};

use crate::check::{Check, names};
use crate::de;
use crate::yaml::Node;

pub(crate) fn decode(message: api::ServiceEntry, check: &mut Check<'_>) -> ServiceEntry {
    let resolution = resolution(&message);
    rules::check(&message, resolution, check);
    let ports = ports(&message.ports, check);
    let addresses = addresses(&message.addresses, check);
    let known: std::collections::BTreeSet<&str> =
        message.ports.iter().map(|port| port.name.as_str()).collect();
    let mut endpoints = Vec::new();
    for (i, endpoint) in message.endpoints.into_iter().enumerate() {
        let path = format!("spec.endpoints[{i}]");
        rules::endpoint(&endpoint, Some(&known), &path, check);
        if let Some(endpoint) = self::endpoint(endpoint, resolution, &path, check) {
            endpoints.push(endpoint);
        }
    }
    endpoints.shrink_to_fit();
    let internal = message.location == api::service_entry::Location::MeshInternal as i32;
    ServiceEntry {
        hosts: message.hosts.iter().map(|host| Host::new(host).lowercase()).collect(),
        addresses,
        ports,
        location: if internal { Location::Internal } else { Location::External },
        resolution,
        endpoints,
        workload_selector: message.workload_selector.map(|selector| Labels::new(selector.labels)),
        export_to: ExportTo::parse(message.export_to.iter().map(String::as_str)),
        subject_alt_names: names(message.subject_alt_names),
        auto_addresses: Vec::new(),
        registry: None,
    }
}

/// The addresses that were allocated to hosts. One that cannot be read is as good as none.
pub(crate) fn allocated(status: &Node<'_>) -> Vec<(Host, IpAddr)> {
    let Ok(status) = de::read::<api::ServiceEntryStatus>(status, "status") else { return Vec::new() };
    let each = status
        .value
        .addresses
        .into_iter()
        .filter_map(|address| Some((Host::new(&address.host).lowercase(), address.value.parse().ok()?)));
    each.collect()
}

fn resolution(message: &api::ServiceEntry) -> Resolution {
    use api::service_entry::Resolution as Api;
    match Api::try_from(message.resolution).unwrap_or(Api::None) {
        Api::None => Resolution::Passthrough,
        Api::Static => Resolution::Static,
        Api::Dns => Resolution::Dns,
        Api::DnsRoundRobin => Resolution::DnsRoundRobin,
        Api::DynamicDns => Resolution::DynamicDns,
    }
}

fn ports(ports: &[api::ServicePort], check: &mut Check<'_>) -> Vec<EntryPort> {
    let mut out = Vec::new();
    for (i, port) in ports.iter().enumerate() {
        let path = format!("spec.ports[{i}]");
        let target = port.target_port;
        let target_port = (target != 0).then(|| check.port(format!("{path}.targetPort"), target));
        let protocol = Protocol::parse(&port.protocol);
        out.push(EntryPort {
            number: check.port(format!("{path}.number"), port.number),
            name: Name::new(&port.name),
            protocol,
            target_port,
        });
    }
    out
}

/// A CIDR that holds one address is that address.
fn addresses(addresses: &[String], check: &mut Check<'_>) -> Vec<Name> {
    let mut out = Vec::new();
    for (i, address) in addresses.iter().enumerate() {
        match single_address(address) {
            Some(address) => out.push(address),
            None => check.leave_out(
                format!("spec.addresses[{i}]"),
                format!("{address:?} is neither an IP nor a CIDR"),
            ),
        }
    }
    out
}

fn single_address(text: &str) -> Option<Name> {
    let Some((ip, bits)) = text.split_once('/') else {
        return text.parse::<IpAddr>().ok().map(|_| Name::new(text));
    };
    let (ip, bits): (IpAddr, u8) = (ip.parse().ok()?, bits.parse().ok()?);
    let whole = if ip.is_ipv4() { 32 } else { 128 };
    match bits.cmp(&whole) {
        std::cmp::Ordering::Equal => Some(Name::from(ip.to_string())),
        std::cmp::Ordering::Less => Some(Name::new(text)),
        std::cmp::Ordering::Greater => None,
    }
}

fn endpoint(
    message: api::WorkloadEntry,
    resolution: Resolution,
    path: &str,
    check: &mut Check<'_>,
) -> Option<WorkloadEntry> {
    let address = Address::parse(&message.address);
    match (resolution, &address) {
        // An endpoint without an address stands behind a gateway of its network.
        _ if message.address.is_empty() && !message.network.is_empty() => (),
        (Resolution::Passthrough, _) => {
            check.leave_out(path, "resolution NONE has no endpoints: traffic goes where it was going");
            return None;
        }
        (Resolution::Static, Address::Host(_)) => {
            check.leave_out(format!("{path}.address"), format!("{:?} is not an IP address", message.address));
            return None;
        }
        (_, Address::Host(name)) if !rules::is_reachable(name) => {
            check.leave_out(format!("{path}.address"), format!("{name:?} is neither an IP nor a host name"));
            return None;
        }
        (Resolution::Dns | Resolution::DnsRoundRobin, Address::Pipe(_)) => {
            check.leave_out(format!("{path}.address"), "a socket file cannot be looked up");
            return None;
        }
        _ => (),
    }
    Some(workload(message, path, check))
}

/// What an endpoint and a WorkloadEntry have in common.
pub(crate) fn workload(message: api::WorkloadEntry, path: &str, check: &mut Check<'_>) -> WorkloadEntry {
    let mut ports = std::collections::BTreeMap::new();
    for (name, number) in message.ports {
        let number = check.port(format!("{path}.ports.{name}"), number);
        ports.insert(Name::from(name), number);
    }
    WorkloadEntry {
        address: message.address.into(),
        ports,
        labels: Labels::new(message.labels),
        network: message.network.into(),
        locality: message.locality.into(),
        weight: message.weight,
        service_account: message.service_account.into(),
        is_healthy: None,
    }
}

#[cfg(test)]
mod tests {
    use super::single_address;

    #[test]
    fn a_range_of_one_is_an_address() {
        let of = |text: &str| single_address(text).map(|a| a.to_string());
        assert_eq!(of("10.0.0.1"), Some("10.0.0.1".into()));
        assert_eq!(of("10.0.0.1/32"), Some("10.0.0.1".into()));
        assert_eq!(of("10.0.0.0/8"), Some("10.0.0.0/8".into()));
        assert_eq!(of("10.0.0.0/33"), None);
        assert_eq!(of("nowhere"), None);
    }
}
