use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::{Host, Labels, Name};
use pilot_model::{Config, Destination, HttpRoute, L4Match, MeshConfig, VirtualService, Visibility};

use crate::names::fqdn;

/// The gateway that stands for all sidecars.
pub const MESH: &str = "mesh";

/// A VirtualService with its names made whole.
pub type RouteRule = Config<VirtualService>;

/// Finds VirtualServices for sidecars by what they are written for, in order of age.
pub trait RouteIndex {
    /// Those for exactly this host or pattern.
    fn written_for(&self, host: &Host) -> Vec<Arc<RouteRule>>;
    /// Those with rules for connections that are for something which the pattern covers.
    fn below(&self, pattern: &Host) -> Vec<Arc<RouteRule>>;
}

pub fn applies_to_mesh(rule: &RouteRule) -> bool {
    rule.spec.gateways.is_empty() || rule.spec.gateways.iter().any(|gateway| gateway == MESH)
}

/// Does it have rules for connections?
pub fn routes_connections(rule: &RouteRule) -> bool {
    !rule.spec.tls.is_empty() || !rule.spec.tcp.is_empty()
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
        let copies = route.mirror.iter_mut().chain(route.mirrors.iter_mut().map(|m| &mut m.destination));
        for destination in targets.chain(copies) {
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
/// order of age. Only if there is none, the one with the most specific wildcard. `client` is `None` for the view that all
/// namespaces share; `admitted` tells which of them a Sidecar lets through.
pub(crate) fn select_routes(
    host: &Host,
    client: Option<&Name>,
    mesh: &MeshConfig,
    admitted: impl Fn(&RouteRule) -> bool,
    index: &impl RouteIndex,
) -> Vec<Arc<RouteRule>> {
    let seen = |host: &Host| visible(index.written_for(host), client, mesh, &admitted);
    if !host.is_wildcard() {
        let exact = seen(host);
        if !exact.is_empty() {
            return exact;
        }
    }
    let by_pattern = host.covering_patterns().map(|pattern| seen(&pattern));
    by_pattern.filter_map(|rules| rules.into_iter().next()).next().into_iter().collect()
}

/// The VirtualServices that have something to say about connections to a host. All of them count, in order, also those
/// for patterns that cover it and for hosts that it covers.
pub(crate) fn select_l4_routes(
    host: &Host,
    client: Option<&Name>,
    mesh: &MeshConfig,
    admitted: impl Fn(&RouteRule) -> bool,
    index: &impl RouteIndex,
) -> Vec<Arc<RouteRule>> {
    visible(about_connections(host, index), client, mesh, &admitted)
}

/// Every rule about connections that overlaps a host, each once, in order of age.
pub(crate) fn about_connections(host: &Host, index: &impl RouteIndex) -> Vec<Arc<RouteRule>> {
    let mut found = BTreeMap::new();
    let exact = (!host.is_wildcard()).then(|| host.clone());
    let around = exact.into_iter().chain(host.covering_patterns()).flat_map(|host| index.written_for(&host));
    let below = host.is_wildcard().then(|| index.below(host)).into_iter().flatten();
    for rule in around.chain(below).filter(|rule| routes_connections(rule)) {
        found.entry(rule.order()).or_insert(rule);
    }
    found.into_values().collect()
}

fn visible(
    rules: Vec<Arc<RouteRule>>,
    client: Option<&Name>,
    mesh: &MeshConfig,
    admitted: &impl Fn(&RouteRule) -> bool,
) -> Vec<Arc<RouteRule>> {
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
        .filter(|rule| applies_to_mesh(rule) && admitted(rule))
        .filter_map(|rule| Some((rank(&rule)?, rule)))
        .collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, rule)| rule).collect()
}

/// Every place a VirtualService sends traffic to.
pub fn destinations(rule: &VirtualService) -> impl Iterator<Item = &Destination> {
    rule.http.iter().flat_map(http_destinations).chain(l4_destinations(rule))
}

/// Where it sends traffic of a namespace to.
pub(crate) fn destinations_for<'a>(
    rule: &'a VirtualService,
    client: &'a Name,
) -> impl Iterator<Item = &'a Destination> {
    let for_client = move |route: &&HttpRoute| {
        let mut named = route.matches.iter().map(|m| &m.source_namespace).filter(|name| !name.is_empty());
        // One that names no namespace, or this one among others.
        let first = named.next();
        first.is_none_or(|first| first == client || named.any(|name| name == client))
    };
    rule.http.iter().filter(for_client).flat_map(http_destinations).chain(l4_destinations(rule))
}

/// Where it sends connections to.
pub fn l4_destinations(rule: &VirtualService) -> impl Iterator<Item = &Destination> {
    let tls = rule.tls.iter().flat_map(|r| r.route.iter().map(|w| &w.destination));
    tls.chain(rule.tcp.iter().flat_map(|r| r.route.iter().map(|w| &w.destination)))
}

/// Where it sends copies of requests to.
pub fn mirror_destinations(rule: &VirtualService) -> impl Iterator<Item = &Destination> {
    rule.http.iter().flat_map(mirrors)
}

fn http_destinations(route: &HttpRoute) -> impl Iterator<Item = &Destination> {
    route.route.iter().map(|w| &w.destination).chain(mirrors(route))
}

fn mirrors(route: &HttpRoute) -> impl Iterator<Item = &Destination> {
    route.mirror.iter().chain(route.mirrors.iter().map(|m| &m.destination))
}

fn l4_matches(rule: &VirtualService) -> impl Iterator<Item = &L4Match> {
    let tls = rule.tls.iter().flat_map(|route| route.matches.iter().map(|m| &m.base));
    tls.chain(rule.tcp.iter().flat_map(|route| &route.matches))
}

/// Namespaces whose requests a rule treats differently from others.
pub(crate) fn source_namespaces(rule: &VirtualService) -> impl Iterator<Item = Name> {
    let named = rule.http.iter().flat_map(|route| &route.matches).map(|m| &m.source_namespace);
    named.filter(|namespace| !namespace.is_empty()).cloned()
}

/// Namespaces whose connections a rule treats differently from others.
pub(crate) fn l4_source_namespaces(rule: &VirtualService) -> impl Iterator<Item = Name> {
    l4_matches(rule).map(|m| &m.source_namespace).filter(|namespace| !namespace.is_empty()).cloned()
}

/// Labels of clients by which a rule tells requests apart.
pub fn source_labels(rule: &VirtualService) -> impl Iterator<Item = (&Name, &Name)> {
    rule.http.iter().flat_map(|route| &route.matches).flat_map(|m| Labels::iter(&m.source_labels))
}

/// Labels of clients by which a rule tells connections apart.
pub fn l4_source_labels(rule: &VirtualService) -> impl Iterator<Item = (&Name, &Name)> {
    l4_matches(rule).flat_map(|m| Labels::iter(&m.source_labels))
}

/// Namespaces that see a rule differently from everyone.
pub(crate) fn special_namespaces(rule: &RouteRule, mesh: &MeshConfig) -> Vec<Name> {
    let export = rule.spec.export_to.or(&mesh.virtual_service_export_to);
    if export.is_public() || export.contains(&Visibility::Nobody) {
        return Vec::new();
    }
    export.namespaces(&rule.id.namespace).into_iter().collect()
}
