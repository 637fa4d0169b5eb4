//! Which VirtualServices speak for a server, and about which hosts.

use pilot_base::{Host, Name};
use pilot_model::{L4Match, MeshConfig};

use super::MergedServer;
use crate::routes::RouteRule;

/// The order in which rules count for the gateways of a namespace: its own private ones, those exported to it, then
/// public ones. Nothing if it cannot see the rule.
pub fn gateway_rank(rule: &RouteRule, client: &Name, mesh: &MeshConfig) -> Option<u8> {
    let export = rule.spec.export_to.or(&mesh.virtual_service_export_to);
    let own = &rule.id.namespace;
    if export.is_public() {
        return Some(2);
    }
    export.visible_in(own, client).then_some(u8::from(client != own))
}

/// The hosts that both a server serves and a rule routes, each as narrow as the narrower of both says, in the order of the
/// server's.
pub fn intersection(server: &MergedServer, rule: &RouteRule) -> Vec<Host> {
    let mut out: Vec<Host> = Vec::new();
    let served = server.hosts.iter().filter(|host| may_route(host.namespace.as_ref(), rule));
    for host in &served.map(|host| host.host.lowercase()).collect::<Vec<_>>() {
        for other in &rule.spec.hosts {
            let narrower = if host.subset_of(other) {
                host
            } else if other.subset_of(host) {
                other
            } else {
                continue;
            };
            if !out.contains(narrower) {
                out.push(narrower.clone());
            }
        }
    }
    out
}

/// Do a server and a rule have any host in common?
pub fn overlaps(server: &MergedServer, rule: &RouteRule) -> bool {
    let served = server.hosts.iter().filter(|host| may_route(host.namespace.as_ref(), rule));
    let mut hosts = served.map(|host| host.host.lowercase());
    hosts.any(|host| rule.spec.hosts.iter().any(|other| other.overlaps(&host)))
}

fn may_route(namespace: Option<&Name>, rule: &RouteRule) -> bool {
    namespace.is_none_or(|namespace| *namespace == rule.id.namespace)
}

/// Can connections to this server match?
pub fn l4_applies(wanted: &L4Match, server: &MergedServer) -> bool {
    let port = wanted.port.is_none_or(|port| port == server.server.port);
    port && (wanted.gateways.is_empty() || wanted.gateways.contains(&server.gateway))
}

/// Hosts in the order in which they are listed: patterns last, longer ones first.
pub fn more_specific(a: &Host, b: &Host) -> std::cmp::Ordering {
    let key = |host: &Host| (host.is_wildcard(), std::cmp::Reverse(host.as_str().len()), host.clone());
    key(a).cmp(&key(b))
}
