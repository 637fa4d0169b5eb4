//! Virtual hosts of a gateway: what its servers serve and VirtualServices route.

use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::config::route::v3 as api;
use pilot_mesh::{HostPlan, MergedServer, RouteRule, more_specific};
use pilot_model::Destination;
use pilot_xds::{ChildMap, Children, Chunk, Encoded, Summary, TypeUrl};
use prost::Message as _;

use super::l4::only_port;
use crate::route::{self, Context};
use crate::route_table::table;
use crate::server_tls::HTTP3_ALPN;
use crate::settings::{RouteTraits, Settings};
use crate::virtual_host::{VIRTUAL_HOSTS, domain};

/// The routes of one VirtualService for one Gateway.
#[derive(Clone, PartialEq, Debug)]
pub struct GatewayRoutes(Arc<Vec<api::Route>>);

impl GatewayRoutes {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The routes of a rule for the hosts of a server. `plan` tells what a host is to these proxies.
pub fn gateway_routes<'a>(
    rule: &RouteRule,
    server: &MergedServer,
    client: &Name,
    plan: &dyn Fn(&Host) -> Option<&'a HostPlan>,
    (traits, settings): (&RouteTraits, Settings<'_>),
) -> GatewayRoutes {
    let context = Context {
        port: server.server.port,
        gateway: &server.gateway,
        tls: server.server.tls.is_some(),
        client: Some(client),
        traits,
        settings,
        traffic: &|to: &Destination| plan(&to.host).and_then(|plan| plan.traffic.as_deref()),
        service: &|to: &Destination| plan(&to.host)?.service().map(|service| &**service),
        only_port: &|to: &Destination| plan(&to.host).and_then(only_port),
        real_host: &|host| plan(host).map_or(host, HostPlan::real_host).clone(),
    };
    let mut routes = route::of_rule(rule, &context);
    if server.http3 {
        routes
            .iter_mut()
            .for_each(|route| route.response_headers_to_add.push(http3_is_at(server.server.port)));
    }
    GatewayRoutes(Arc::new(routes))
}

/// Clients come over TCP first, and are told where else they may come for a day.
fn http3_is_at(port: u16) -> core::HeaderValueOption {
    core::HeaderValueOption {
        header: Some(core::HeaderValue {
            key: "alt-svc".to_owned(),
            value: format!("{HTTP3_ALPN}=\":{port}\"; ma=86400"),
            ..core::HeaderValue::default()
        }),
        append_action: core::header_value_option::HeaderAppendAction::AppendIfExistsOrAdd as i32,
        ..core::HeaderValueOption::default()
    }
}

/// A host of a table, and what its servers say about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RoutedHost {
    pub host: Host,
    /// The port of the first server that serves it.
    pub port: u16,
    /// Clients must come with TLS.
    pub redirect: bool,
}

/// An entry of a table of routes.
#[derive(Clone, PartialEq, Debug)]
pub struct GatewayVirtualHost {
    pub name: Name,
    pub entry: Chunk,
}

/// The virtual hosts of hosts that have the same routes: as few as can be, each called like the first of its hosts.
pub fn gateway_virtual_hosts(
    mut hosts: Vec<RoutedHost>,
    routes: &[GatewayRoutes],
    traits: &RouteTraits,
    settings: Settings<'_>,
) -> Vec<GatewayVirtualHost> {
    hosts.sort_by(|a, b| more_specific(&a.host, &b.host));
    let routes = everything_last(routes);
    let mut out: Vec<api::VirtualHost> = Vec::new();
    for host in hosts {
        let require_tls = if host.redirect { api::virtual_host::TlsRequirementType::All as i32 } else { 0 };
        let collapse = settings.options.features.route_collapse;
        match out.last_mut().filter(|last| collapse && last.require_tls == require_tls) {
            Some(last) => last.domains.push(host.host.to_string()),
            None => out.push(api::VirtualHost {
                name: format!("{}:{}", domain(host.host.as_str()), host.port),
                domains: vec![host.host.to_string()],
                routes: routes.clone(),
                require_tls,
                include_request_attempt_count: traits.attempt_count,
                ..api::VirtualHost::default()
            }),
        }
    }
    let finish = |host: api::VirtualHost| GatewayVirtualHost {
        name: Name::new(&host.name),
        entry: Chunk::new(VIRTUAL_HOSTS, &host.encode_to_vec()),
    };
    out.into_iter().map(finish).collect()
}

/// Rules for one host follow each other; what takes everything must not hide the rules behind it.
fn everything_last(rules: &[GatewayRoutes]) -> Vec<api::Route> {
    let all = rules.iter().flat_map(|rule| rule.0.iter());
    let (last, mut first): (Vec<api::Route>, Vec<api::Route>) =
        all.cloned().partition(route::takes_everything);
    first.extend(last);
    first
}

/// A table of routes: its virtual hosts, or one that knows no path at all.
pub fn gateway_table(name: &Name, hosts: &ChildMap, summary: Summary, port: u16) -> Encoded {
    let nothing = api::VirtualHost {
        name: format!("blackhole:{port}"),
        domains: vec!["*".to_owned()],
        ..api::VirtualHost::default()
    };
    let last = hosts.is_empty().then(|| Chunk::new(VIRTUAL_HOSTS, &nothing.encode_to_vec()));
    let children = Children::new(hosts.clone(), summary, ChildMap::new(), last);
    Encoded::assemble(TypeUrl::Route, name.clone(), &table(name).encode_to_vec(), children)
}
