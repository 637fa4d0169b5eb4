use std::sync::Arc;

use pilot_envoy_api::envoy::config::route::v3::{Route, RouteConfiguration, VirtualHost, route::Action};
use pilot_model::{
    ApplyTo, ObjectMatch, PatchOperation as Op, RouteActionKind, RouteConfigurationMatch, RouteMatch,
    VirtualHostMatch,
};
use pilot_xds::{Encoded, TypeUrl};
use prost::Message as _;

use super::list::{arrange, merge};
use super::{Faults, Outcome, Patch, Patches};

/// Whose routes.
#[derive(Clone, Copy)]
pub enum RouteSide<'a> {
    Outbound,
    Inbound,
    /// Tells which ports of services lead to a port of the gateway; none for one that is called by its own number.
    Gateway(&'a dyn Fn(u32) -> Vec<u32>),
}

/// A table of routes that was encoded as a whole.
pub fn patch_route_configuration(
    encoded: &Encoded,
    patches: &Patches,
    side: RouteSide<'_>,
    faults: &mut Faults,
) -> Outcome {
    if RouteScope::new(encoded.name(), patches, side).is_empty() {
        return Outcome::Same;
    }
    let Ok(before) = RouteConfiguration::decode(encoded.message().as_slice()) else { return Outcome::Same };
    let mut routes = before.clone();
    patch_routes(&mut routes, patches, side, faults);
    if routes == before {
        return Outcome::Same;
    }
    let bytes = routes.encode_to_vec();
    Outcome::Changed(Arc::new(Encoded::new(TypeUrl::Route, encoded.name().clone(), &bytes)))
}

pub(super) fn patch_routes(
    routes: &mut RouteConfiguration,
    patches: &Patches,
    side: RouteSide<'_>,
    faults: &mut Faults,
) {
    let scope = RouteScope::new(&routes.name, patches, side);
    scope.patch_header(routes, faults);
    let mut removed = Vec::new();
    for host in &mut routes.virtual_hosts {
        let name = host.name.clone();
        if !scope.patch_host(host, faults) {
            removed.push(name);
        }
    }
    routes.virtual_hosts.extend(scope.added_hosts());
    routes.virtual_hosts.retain(|host| !removed.contains(&host.name));
}

/// The patches that are for one table of routes.
pub(super) struct RouteScope<'a> {
    patches: Vec<&'a Patch>,
}

impl<'a> RouteScope<'a> {
    pub(super) fn new(table: &str, patches: &'a Patches, side: RouteSide<'_>) -> Self {
        Self { patches: patches.iter().filter(|patch| matches_table(table, patch, side)).collect() }
    }

    fn to(&self, apply_to: ApplyTo) -> impl Iterator<Item = &'a Patch> {
        self.patches.iter().copied().filter(move |patch| patch.spec.apply_to == apply_to)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.patches.is_empty()
    }

    /// Everything but the hosts, unless a patch brings hosts along.
    pub(super) fn patch_header(&self, routes: &mut RouteConfiguration, faults: &mut Faults) {
        let name = routes.name.clone();
        for patch in self.to(ApplyTo::RouteConfiguration).filter(|patch| patch.spec.operation.is_merge()) {
            merge(routes, patch, faults);
            if routes.name != name {
                faults.add(patch, "must not give a table of routes another name: its own is kept");
                routes.name.clone_from(&name);
            }
        }
    }

    pub(super) fn added_hosts(&self) -> impl Iterator<Item = VirtualHost> {
        self.to(ApplyTo::VirtualHost).filter(|patch| patch.spec.operation == Op::Add).map(Patch::value)
    }

    /// `false`: the host is to be removed.
    pub(super) fn patch_host(&self, host: &mut VirtualHost, faults: &mut Faults) -> bool {
        for patch in self.to(ApplyTo::VirtualHost) {
            if !matches_host(host, patch) {
                continue;
            }
            match patch.spec.operation {
                Op::Remove => return false,
                Op::Replace => *host = patch.value(),
                operation if operation.is_merge() => merge(host, patch, faults),
                _ => (),
            }
        }
        self.patch_http_routes(host, faults);
        true
    }

    fn patch_http_routes(&self, host: &mut VirtualHost, faults: &mut Faults) {
        let patches: Vec<&Patch> =
            self.to(ApplyTo::HttpRoute).filter(|patch| matches_host(host, patch)).collect();
        host.routes.retain_mut(|route| patch_route(route, &patches, faults));
        for patch in patches {
            let wanted = host_match(patch).and_then(|matching| matching.route.as_ref());
            let is_wanted = |route: &Route| wanted.is_some_and(|wanted| matches_route(route, wanted));
            let finds: Option<&dyn Fn(&Route) -> bool> = wanted.map(|_| &is_wanted as _);
            match patch.spec.operation {
                Op::InsertFirst if wanted.is_some() && !host.routes.iter().any(is_wanted) => (),
                Op::Add | Op::InsertFirst | Op::InsertBefore | Op::InsertAfter => {
                    arrange(&mut host.routes, patch.spec.operation, || patch.value(), finds);
                }
                _ => (),
            }
        }
    }
}

/// `false`: the route is to be removed.
fn patch_route(route: &mut Route, patches: &[&Patch], faults: &mut Faults) -> bool {
    for patch in patches {
        let wanted = host_match(patch).and_then(|matching| matching.route.as_ref());
        if !wanted.is_none_or(|wanted| matches_route(route, wanted)) {
            continue;
        }
        match patch.spec.operation {
            Op::Remove => return false,
            operation if operation.is_merge() => merge(route, patch, faults),
            _ => (),
        }
    }
    true
}

fn table_match(patch: &Patch) -> Option<&RouteConfigurationMatch> {
    match &patch.spec.object {
        ObjectMatch::RouteConfiguration(matching) => Some(matching),
        _ => None,
    }
}

fn host_match(patch: &Patch) -> Option<&VirtualHostMatch> {
    table_match(patch).and_then(|matching| matching.vhost.as_ref())
}

fn matches_table(table: &str, patch: &Patch, side: RouteSide<'_>) -> bool {
    let Some(matching) = table_match(patch) else { return true };
    if !matching.name.is_empty() && matching.name.as_str() != table {
        return false;
    }
    let RouteSide::Gateway(callers) = side else {
        return matching.port.is_none_or(|port| port == sidecar_port(table));
    };
    let (port, port_name, gateway) = gateway_table(table);
    let has_port = |wanted: u32| match callers(port).as_slice() {
        [] => wanted == port,
        ports => ports.contains(&wanted),
    };
    (matching.port_name.is_empty() || matching.port_name.as_str() == port_name)
        && (matching.gateway.is_empty() || matching.gateway.as_str() == gateway)
        && matching.port.is_none_or(has_port)
}

/// `8080` or `inbound|8080||`; zero for the table of a single host.
fn sidecar_port(table: &str) -> u32 {
    let port = match table.strip_prefix("inbound|") {
        Some(rest) => rest.split('|').next().unwrap_or_default(),
        None => table,
    };
    port.parse().unwrap_or(0)
}

/// `http.8080`, or `https.443.port-name.gateway.namespace`: port, name of the port, and gateway.
fn gateway_table(table: &str) -> (u32, &str, String) {
    if let Some(port) = table.strip_prefix("http.") {
        return (port.parse().unwrap_or(0), "", String::new());
    }
    match table.split('.').collect::<Vec<_>>()[..] {
        ["https", port, port_name, gateway, namespace] => {
            (port.parse().unwrap_or(0), port_name, format!("{namespace}/{gateway}"))
        }
        _ => (0, "", String::new()),
    }
}

fn matches_host(host: &VirtualHost, patch: &Patch) -> bool {
    host_match(patch).is_none_or(|VirtualHostMatch { name, domain, .. }| {
        (name.is_empty() || name.as_str() == host.name)
            && (domain.is_empty() || host.domains.iter().any(|d| d == domain.as_str()))
    })
}

fn matches_route(route: &Route, RouteMatch { name, action }: &RouteMatch) -> bool {
    if !name.is_empty() && name.as_str() != route.name {
        return false;
    }
    let Some(wanted) = action else { return true };
    match &route.action {
        Some(Action::Route(_)) => *wanted == RouteActionKind::Route,
        Some(Action::Redirect(_)) => *wanted == RouteActionKind::Redirect,
        Some(Action::DirectResponse(_)) => *wanted == RouteActionKind::DirectResponse,
        _ => true,
    }
}
