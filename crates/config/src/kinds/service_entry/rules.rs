//! What must hold in a ServiceEntry, whatever becomes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use pilot_api::networking as api;
use pilot_model::{Protocol, Resolution};

use crate::check::{Check, Exported, is_host_name, is_label, is_wildcard_host};

pub(super) fn check(entry: &api::ServiceEntry, resolution: Resolution, check: &mut Check<'_>) {
    hosts(entry, resolution, check);
    ports(entry, check);
    if let Some(selector) = &entry.workload_selector {
        check.selector_map("spec.workloadSelector.labels", &selector.labels);
        if selector.labels.is_empty() {
            check.warn("spec.workloadSelector", "has no labels and selects every workload of the namespace");
        }
        if !entry.endpoints.is_empty() {
            check.reject("spec", "endpoints and workloadSelector exclude each other");
        }
    }
    let ranges = entry.addresses.iter().any(|address| address.contains('/'));
    if ranges && !matches!(resolution, Resolution::Passthrough | Resolution::Static) {
        check.reject("spec.addresses", "a CIDR is only for the resolutions NONE and STATIC");
    }
    match resolution {
        Resolution::Passthrough => {
            if entry.workload_selector.is_some() {
                check.warn("spec.workloadSelector", "has no effect with the resolution NONE");
            }
        }
        Resolution::Static => (),
        Resolution::Dns | Resolution::DnsRoundRobin => looked_up(entry, resolution, check),
        Resolution::DynamicDns => dynamic(entry, check),
    }
    if resolution != Resolution::Passthrough && entry.hosts.len() > 1 {
        let shared = |port: &api::ServicePort| names_host(Protocol::parse(&port.protocol));
        if let Some(i) = entry.ports.iter().position(|port| !shared(port)) {
            check.reject(
                format!("spec.ports[{i}].protocol"),
                "several hosts can only share a port at which requests name their host: HTTP or TLS",
            );
        }
    }
    check.export_to(&entry.export_to, Exported::Service);
}

/// Can several hosts stand behind one port?
fn names_host(protocol: Protocol) -> bool {
    protocol.is_http() || matches!(protocol, Protocol::Https | Protocol::Tls)
}

fn hosts(entry: &api::ServiceEntry, resolution: Resolution, check: &mut Check<'_>) {
    if entry.hosts.is_empty() {
        check.reject("spec.hosts", "is missing: a service entry is found by its host");
    }
    for (i, host) in entry.hosts.iter().enumerate() {
        let path = format!("spec.hosts[{i}]");
        if host == "*" || !is_wildcard_host(host) {
            check.reject(path, format!("{host:?} is not a host name"));
        } else if resolution != Resolution::DynamicDns && host.contains('*') && !host.starts_with("*.") {
            check.warn(path, format!("{host:?}: a wildcard stands for whole parts of a name"));
        }
    }
}

fn ports(entry: &api::ServiceEntry, check: &mut Check<'_>) {
    let allocates = entry.resolution != api::service_entry::Resolution::None as i32;
    let (mut numbers, mut names) = (BTreeSet::new(), BTreeSet::new());
    for (i, port) in entry.ports.iter().enumerate() {
        let path = format!("spec.ports[{i}]");
        if !numbers.insert(port.number) {
            check.reject(format!("{path}.number"), format!("port {} is given twice", port.number));
        }
        if !names.insert(&port.name) {
            check.reject(format!("{path}.name"), format!("{:?} is given twice", port.name));
        }
        if !is_label(&port.name) {
            check.reject(format!("{path}.name"), format!("{:?} cannot be a name", port.name));
        }
        if !port.protocol.is_empty() && Protocol::parse(&port.protocol) == Protocol::Auto {
            check.reject(format!("{path}.protocol"), format!("{:?} is not a protocol", port.protocol));
        }
        let tcp = matches!(port.protocol.as_str(), "" | "TCP");
        if tcp && entry.addresses.is_empty() && !allocates {
            check.warn(format!("{path}.protocol"), "TCP without addresses takes all traffic to the port");
        }
    }
}

fn looked_up(entry: &api::ServiceEntry, resolution: Resolution, check: &mut Check<'_>) {
    let pattern = entry.hosts.iter().position(|host| !is_host_name(host));
    if let Some(i) = pattern.filter(|_| entry.endpoints.is_empty()) {
        check.reject(
            format!("spec.hosts[{i}]"),
            "cannot be looked up: without endpoints a host must be a whole name",
        );
    }
    if resolution == Resolution::DnsRoundRobin && entry.endpoints.len() > 1 {
        check.reject("spec.endpoints", "the resolution DNS_ROUND_ROBIN has one endpoint at most");
    }
    let tcp = |port: &api::ServicePort| is_tcp(Protocol::parse(&port.protocol));
    if !entry.addresses.is_empty() && entry.hosts.len() > 1 && entry.ports.iter().any(tcp) {
        check.warn("spec.hosts", "with addresses and a TCP port only one host can be told from others");
    }
}

fn is_tcp(protocol: Protocol) -> bool {
    use Protocol::{Https, Mongo, MySql, Redis, Tcp, Tls};
    matches!(protocol, Tcp | Https | Tls | Mongo | Redis | MySql)
}

fn dynamic(entry: &api::ServiceEntry, check: &mut Check<'_>) {
    if let Some(i) = entry.hosts.iter().position(|host| !host.starts_with('*')) {
        check.reject(format!("spec.hosts[{i}]"), "must be a wildcard for the resolution DYNAMIC_DNS");
    }
    if !entry.addresses.is_empty() {
        check.reject("spec.addresses", "cannot be given with the resolution DYNAMIC_DNS");
    }
    if !entry.endpoints.is_empty() {
        check.reject("spec.endpoints", "cannot be given with the resolution DYNAMIC_DNS");
    }
    for (i, port) in entry.ports.iter().enumerate() {
        use Protocol::{Grpc, Http, Http2, Tls};
        if !matches!(Protocol::parse(&port.protocol), Http | Tls | Grpc | Http2) {
            check.reject(
                format!("spec.ports[{i}].protocol"),
                "the resolution DYNAMIC_DNS is for HTTP, HTTP2, GRPC and TLS",
            );
        }
    }
}

/// What holds for every endpoint. `known` are the names of the service's ports.
pub(crate) fn endpoint(
    endpoint: &api::WorkloadEntry,
    known: Option<&BTreeSet<&str>>,
    path: &str,
    check: &mut Check<'_>,
) {
    if endpoint.address.is_empty() && !endpoint.network.is_empty() {
        check.warn(
            format!("{path}.address"),
            "is missing: the endpoint can only be reached through a gateway of its network",
        );
    }
    if let Some(socket) = endpoint.address.strip_prefix("unix://") {
        // A name that begins with @ is no file.
        if !socket.starts_with('/') && !socket.starts_with('@') {
            check.reject(format!("{path}.address"), format!("{socket:?} is not an absolute path"));
        }
        if socket.ends_with('/') {
            check.reject(format!("{path}.address"), format!("{socket:?} is a folder and no socket file"));
        }
        if !endpoint.ports.is_empty() {
            check.reject(format!("{path}.ports"), "a socket file has no ports");
        }
        if known.is_some_and(|known| known.len() != 1) {
            check.reject(path, "a socket file serves exactly one port");
        }
    }
    endpoint_ports(&endpoint.ports, known, path, check);
    check.label_map(&format!("{path}.labels"), &endpoint.labels);
}

fn endpoint_ports(
    ports: &BTreeMap<String, u32>,
    known: Option<&BTreeSet<&str>>,
    path: &str,
    check: &mut Check<'_>,
) {
    for name in ports.keys() {
        if known.is_some_and(|known| !known.contains(name.as_str())) {
            check.reject(format!("{path}.ports.{name}"), "the service entry has no such port");
        } else if !is_label(name) {
            check.reject(format!("{path}.ports.{name}"), format!("{name:?} cannot be a name"));
        }
    }
}

/// Is it an address that a proxy can connect to, or a name that it can look up?
pub(crate) fn is_reachable(address: &str) -> bool {
    address.starts_with("unix://") || address.parse::<IpAddr>().is_ok() || is_host_name(address)
}
