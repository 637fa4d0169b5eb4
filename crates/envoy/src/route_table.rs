//! Tables of routes: all hosts of a port, or the one host of a listener.

use pilot_base::Name;
use pilot_envoy_api::envoy::config::route::v3 as api;
use pilot_model::OutboundMode;
use pilot_xds::{ChildMap, Children, Chunk, Encoded, Summary, TypeUrl};
use prost::Message as _;

use crate::dynamic_forward_proxy::{ANY_CLUSTER, ANY_ROUTE};
use crate::listener::catch_all_cluster;
use crate::route::catch_all;
use crate::settings::RouteTraits;
use crate::virtual_host::VIRTUAL_HOSTS;

/// Which table of routes a listener uses.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RouteTable {
    /// All hosts of a port.
    Port(u16),
    /// All hosts at all ports, for a forward proxy or a socket file.
    Named(Name),
}

impl RouteTable {
    /// The table of a proxy that applications are told to use as one.
    pub fn forward_proxy() -> Self {
        Self::Named(Name::new("http_proxy"))
    }

    pub fn name(&self) -> Name {
        match self {
            Self::Port(port) => Name::from(port.to_string()),
            Self::Named(name) => name.clone(),
        }
    }
}

/// Answers that Envoy gives itself may be this long.
const DIRECT_RESPONSE_LIMIT: u32 = 1 << 20;

pub(crate) fn table(name: &str) -> api::RouteConfiguration {
    api::RouteConfiguration {
        name: name.to_owned(),
        // Clusters come over the same stream; one that is missing answers 503 for its own routes only.
        validate_clusters: Some(false),
        max_direct_response_body_size_bytes: Some(DIRECT_RESPONSE_LIMIT),
        ignore_port_in_host_matching: true,
        ..api::RouteConfiguration::default()
    }
}

/// The routes of a table: what all proxies share, what these see differently, and what becomes of other hosts.
pub fn route_table(
    which: &RouteTable,
    shared: &ChildMap,
    summary: Summary,
    own: &ChildMap,
    traits: &RouteTraits,
) -> Encoded {
    let name = which.name();
    // A rule for every host leaves no others; Envoy would refuse a table in which that is said twice.
    let every = Name::from(format!("*:{name}"));
    let is_routed =
        own.get(&every).map_or_else(|| shared.get(&every).is_some_and(Option::is_some), Option::is_some);
    let last = (!is_routed).then(|| Chunk::new(VIRTUAL_HOSTS, &other_hosts(traits).encode_to_vec()));
    let children = Children::new(shared.clone(), summary, own.clone(), last);
    Encoded::assemble(TypeUrl::Route, name.clone(), &table(&name).encode_to_vec(), children)
}

pub(crate) fn other_hosts(traits: &RouteTraits) -> api::VirtualHost {
    let (name, target) = match traits.outbound.mode {
        OutboundMode::RegistryOnly => ("block_all", None),
        OutboundMode::AllowAny => ("allow_any", Some(catch_all_cluster(&traits.outbound))),
        OutboundMode::AllowAnyDynamicDns => {
            let RouteTraits { attempt_count, x_forwarded_host, .. } = *traits;
            return hosts_by_name(NameHeaders { attempt_count, x_forwarded_host });
        }
    };
    api::VirtualHost {
        name: name.to_owned(),
        domains: vec!["*".to_owned()],
        routes: vec![catch_all(name, target.as_ref(), traits.x_forwarded_host)],
        include_request_attempt_count: traits.attempt_count,
        ..api::VirtualHost::default()
    }
}

/// Every host that nobody declared, found by its name.
pub(crate) fn hosts_by_name(headers: NameHeaders) -> api::VirtualHost {
    api::VirtualHost {
        name: ANY_ROUTE.to_owned(),
        domains: vec!["*".to_owned()],
        routes: vec![catch_all(ANY_ROUTE, Some(&Name::new(ANY_CLUSTER)), headers.x_forwarded_host)],
        include_request_attempt_count: headers.attempt_count,
        ..api::VirtualHost::default()
    }
}

/// What is told to hosts that are found by their names.
#[derive(Clone, Copy)]
pub(crate) struct NameHeaders {
    pub(crate) attempt_count: bool,
    pub(crate) x_forwarded_host: bool,
}

/// The routes of a listener that serves one host only.
pub(crate) fn sniffed_table(host: &api::VirtualHost) -> Encoded {
    let message = api::RouteConfiguration { virtual_hosts: vec![host.clone()], ..table(&host.name) };
    Encoded::new(TypeUrl::Route, Name::new(&host.name), &message.encode_to_vec())
}
