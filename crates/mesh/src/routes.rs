use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_model::{Config, Destination, HttpRoute, MeshConfig, VirtualService, Visibility};

use crate::names::fqdn;

/// The gateway that stands for all sidecars.
const MESH: &str = "mesh";

/// A VirtualService with its names made whole.
pub type RouteRule = Config<VirtualService>;

pub fn applies_to_mesh(rule: &RouteRule) -> bool {
    rule.spec.gateways.is_empty() || rule.spec.gateways.iter().any(|gateway| gateway == MESH)
}

/// Makes every host in a VirtualService whole, and every gateway say its namespace.
pub fn resolve_routes(rule: &RouteRule, domain: &Name) -> RouteRule {
    let mut rule = rule.clone();
    let namespace = rule.id.namespace.clone();
    let whole = |host: &Host| fqdn(host, &namespace, domain);
    let gateway = |name: &Name| match name.as_str() {
        MESH => name.clone(),
        name if name.contains('/') && !name.starts_with("./") => Name::new(name),
        name => Name::from(format!("{namespace}/{}", name.strip_prefix("./").unwrap_or(name))),
    };
    let spec = &mut rule.spec;
    spec.hosts.iter_mut().for_each(|host| *host = whole(host));
    spec.gateways.iter_mut().for_each(|name| *name = gateway(name));
    for route in &mut spec.http {
        let targets = route.route.iter_mut().map(|w| &mut w.destination);
        for destination in targets.chain(route.mirrors.iter_mut().map(|m| &mut m.destination)) {
            destination.host = whole(&destination.host);
        }
        route.matches.iter_mut().flat_map(|m| &mut m.gateways).for_each(|name| *name = gateway(name));
    }
    let l4 =
        spec.tls.iter_mut().flat_map(|r| &mut r.route).chain(spec.tcp.iter_mut().flat_map(|r| &mut r.route));
    l4.for_each(|w| w.destination.host = whole(&w.destination.host));
    let matches = spec.tls.iter_mut().flat_map(|r| r.matches.iter_mut().map(|m| &mut m.base));
    let matches = matches.chain(spec.tcp.iter_mut().flat_map(|r| &mut r.matches));
    matches.flat_map(|m| &mut m.gateways).for_each(|name| *name = gateway(name));
    rule
}

/// The VirtualServices that may route a host, the first that has a route for the occasion wins.
///
/// Those written for the very host come first: the client's own, then what is exported to it, then public ones, each in
/// order of age. Only if there is none, the one with the most specific wildcard. `rules` finds them by the host they are
/// written for, in order of age; `client` is `None` for the view that all namespaces share.
pub fn select_routes(
    host: &Host,
    client: Option<&Name>,
    mesh: &MeshConfig,
    rules: impl Fn(&Host) -> Vec<Arc<RouteRule>>,
) -> Vec<Arc<RouteRule>> {
    if !host.is_wildcard() {
        let exact = visible(rules(host), client, mesh);
        if !exact.is_empty() {
            return exact;
        }
    }
    let by_pattern = host.covering_patterns().map(|pattern| visible(rules(&pattern), client, mesh));
    by_pattern.filter_map(|rules| rules.into_iter().next()).next().into_iter().collect()
}

fn visible(rules: Vec<Arc<RouteRule>>, client: Option<&Name>, mesh: &MeshConfig) -> Vec<Arc<RouteRule>> {
    let rank = |rule: &RouteRule| {
        let export = rule.spec.export_to.or(&mesh.virtual_service_export_to);
        let own = &rule.id.namespace;
        if export.is_public() {
            return Some(2);
        }
        let client = client.filter(|client| export.visible_in(own, client))?;
        Some(if client == own { 0 } else { 1 })
    };
    let mut ranked: Vec<(u8, Arc<RouteRule>)> = rules
        .into_iter()
        .filter(|rule| applies_to_mesh(rule))
        .filter_map(|rule| Some((rank(&rule)?, rule)))
        .collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, rule)| rule).collect()
}

/// Every place a VirtualService sends traffic to.
pub fn destinations(rule: &VirtualService) -> impl Iterator<Item = &Destination> {
    let http = rule.http.iter().flat_map(http_destinations);
    let tls = rule.tls.iter().flat_map(|r| r.route.iter().map(|w| &w.destination));
    let tcp = rule.tcp.iter().flat_map(|r| r.route.iter().map(|w| &w.destination));
    http.chain(tls).chain(tcp)
}

fn http_destinations(route: &HttpRoute) -> impl Iterator<Item = &Destination> {
    let targets = route.route.iter().map(|w| &w.destination);
    targets.chain(route.mirrors.iter().map(|m| &m.destination))
}

/// Namespaces that a rule treats differently from others.
pub(crate) fn source_namespaces(rule: &VirtualService) -> impl Iterator<Item = Name> {
    let named = rule.http.iter().flat_map(|route| &route.matches).map(|m| &m.source_namespace);
    named.filter(|namespace| !namespace.is_empty()).cloned()
}

/// Namespaces that see a rule differently from everyone.
pub(crate) fn special_namespaces(rule: &RouteRule, mesh: &MeshConfig) -> Vec<Name> {
    let export = rule.spec.export_to.or(&mesh.virtual_service_export_to);
    if export.is_public() || export.contains(&Visibility::Nobody) {
        return Vec::new();
    }
    export.namespaces(&rule.id.namespace).into_iter().collect()
}
