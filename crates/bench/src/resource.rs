//! What a proxy has to know of a resource: its name, and what it makes it ask for.

use smallvec::SmallVec;

use crate::wire::{Fields, Value, all, first};

/// The types that a sidecar asks for, in the order in which it does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Cluster,
    Endpoint,
    Listener,
    Route,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Cluster, Self::Endpoint, Self::Listener, Self::Route];

    pub fn type_url(self) -> &'static str {
        match self {
            Self::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Endpoint => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::Route => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        }
    }

    pub fn of_type_url(url: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.type_url().as_bytes() == url)
    }

    pub fn index(self) -> usize {
        self as usize
    }

    /// Is all of it asked for, without names?
    pub fn is_wildcard(self) -> bool {
        matches!(self, Self::Cluster | Self::Listener)
    }

    /// What is asked for by names that stand in this.
    pub fn leads_to(self) -> Option<Self> {
        match self {
            Self::Cluster => Some(Self::Endpoint),
            Self::Listener => Some(Self::Route),
            Self::Endpoint | Self::Route => None,
        }
    }
}

/// The name of a resource, which all four types have in their first field.
pub(crate) fn name(resource: &[u8]) -> &[u8] {
    first(resource, 1).unwrap_or_default()
}

/// The names that a resource makes a proxy ask for.
pub(crate) fn leads(kind: Kind, resource: &[u8]) -> SmallVec<[&[u8]; 2]> {
    match kind {
        Kind::Cluster => endpoint_name(resource).into_iter().collect(),
        Kind::Listener => route_names(resource),
        Kind::Endpoint | Kind::Route => SmallVec::new(),
    }
}

/// `Cluster.DiscoveryType.EDS`
const EDS: u64 = 3;

fn endpoint_name(cluster: &[u8]) -> Option<&[u8]> {
    let (mut name, mut service, mut is_eds) = (None, None, false);
    for field in Fields(cluster) {
        match field {
            (1, Value::Bytes(bytes)) => name = Some(bytes),
            (2, Value::Number(number)) => is_eds = number == EDS,
            (3, Value::Bytes(config)) => service = first(config, 2).filter(|name| !name.is_empty()),
            _ => {}
        }
    }
    service.or(name).filter(|_| is_eds)
}

const CONNECTION_MANAGER: &[u8] =
    b"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

fn route_names(listener: &[u8]) -> SmallVec<[&[u8]; 2]> {
    // Filter chains and the one for everything else; their filters; the settings of each.
    let chains = all(listener, 3).chain(all(listener, 25));
    let settings = chains.flat_map(|chain| all(chain, 3)).filter_map(|filter| first(filter, 4));
    let managers = settings.filter(|any| first(any, 1) == Some(CONNECTION_MANAGER));
    let mut names: SmallVec<[&[u8]; 2]> = managers
        .filter_map(|any| first(any, 2))
        .filter_map(|manager| first(manager, 3))
        .filter_map(|rds| first(rds, 2))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The addresses of all endpoints of a ClusterLoadAssignment.
pub(crate) fn addresses(assignment: &[u8]) -> impl Iterator<Item = &[u8]> {
    all(assignment, 2)
        .flat_map(|locality| all(locality, 2))
        .filter_map(|endpoint| first(endpoint, 1))
        .filter_map(|endpoint| first(endpoint, 1))
        .filter_map(|address| first(address, 1))
        .filter_map(|socket| first(socket, 2))
}

/// The names of all routes in one virtual host of a route table.
pub(crate) fn routes_of<'a>(table: &'a [u8], virtual_host: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    all(table, 2)
        .filter(move |host| first(host, 1) == Some(virtual_host))
        .flat_map(|host| all(host, 3))
        .filter_map(|route| first(route, 14))
}

#[cfg(test)]
mod tests {
    use super::{Kind, addresses, leads, name, routes_of};
    use crate::wire::{put_bytes, put_varint};

    fn message(fields: &[(u32, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, bytes) in fields {
            put_bytes(&mut out, *number, bytes);
        }
        out
    }

    #[test]
    fn only_clusters_whose_endpoints_are_told_apart_ask_for_them() {
        let mut cluster = message(&[(1, b"outbound|80||a"), (3, &message(&[(2, b"other")]))]);
        assert!(leads(Kind::Cluster, &cluster).is_empty());
        put_varint(&mut cluster, 2 << 3);
        put_varint(&mut cluster, 3);
        assert_eq!(leads(Kind::Cluster, &cluster).as_slice(), [b"other"]);
        assert_eq!(name(&cluster), b"outbound|80||a");
    }

    #[test]
    fn listeners_ask_for_the_routes_of_their_connection_managers() {
        let filter = |url: &[u8], route: &[u8]| {
            let manager = message(&[(3, &message(&[(2, route)]))]);
            message(&[(1, b"name"), (4, &message(&[(1, url), (2, &manager)]))])
        };
        let chain = message(&[(3, &filter(super::CONNECTION_MANAGER, b"80")), (3, &filter(b"tcp", b"no"))]);
        let rest = message(&[(3, &filter(super::CONNECTION_MANAGER, b"else"))]);
        let listener = message(&[(1, b"0.0.0.0_80"), (3, &chain), (3, &chain), (25, &rest)]);
        assert_eq!(leads(Kind::Listener, &listener).as_slice(), [b"80".as_slice(), b"else"]);
    }

    #[test]
    fn marks_are_found_where_envoy_has_them() {
        let address = message(&[(1, &message(&[(2, b"11.100.100.100")]))]);
        let endpoint = message(&[(1, &message(&[(1, &address)]))]);
        let assignment = message(&[(1, b"a"), (2, &message(&[(2, &endpoint), (2, &endpoint)]))]);
        assert_eq!(addresses(&assignment).count(), 2);
        let host = |name: &[u8]| message(&[(1, name), (3, &message(&[(14, b"route")]))]);
        let table = message(&[(1, b"80"), (2, &host(b"a:80")), (2, &host(b"b:80"))]);
        assert_eq!(routes_of(&table, b"b:80").collect::<Vec<_>>(), [b"route"]);
    }
}
