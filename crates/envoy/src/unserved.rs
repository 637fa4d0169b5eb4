//! What proxies are told of clusters, endpoints and routes that they ask for and that nobody serves.
//!
//! Envoy asks for a while for what it is about to let go of, and holds back a cluster or a listener that waits for its
//! first answer. Silence would let it wait.

use std::sync::Arc;

use pilot_base::Name;
use pilot_envoy_api::envoy::config::cluster::v3::Cluster;
use pilot_envoy_api::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType};
use pilot_envoy_api::envoy::config::endpoint::v3::ClusterLoadAssignment;
use pilot_envoy_api::envoy::config::route::v3::RouteConfiguration;
use pilot_xds::{Encoded, Manifest, TypeUrl, Unserved, Why};
use prost::Message as _;

use crate::route_table::{RouteTable, other_hosts, table};
use crate::settings::RouteTraits;
use crate::virtual_host::VIRTUAL_HOSTS;

/// Of a proxy that asks for clusters when a request needs them. Envoy would let only the first request fail at once if it
/// heard that there is none.
pub fn unserved_clusters() -> Unserved {
    Unserved { form: no_cluster, common: Arc::default() }
}

pub fn unserved_endpoints() -> Unserved {
    Unserved { form: no_endpoints, common: Arc::default() }
}

/// Of a sidecar: what becomes of hosts that it does not know.
pub fn unserved_routes(traits: &RouteTraits) -> Unserved {
    let mut common = Vec::new();
    pilot_xds::wire::put_bytes(&mut common, VIRTUAL_HOSTS, &other_hosts(traits).encode_to_vec());
    Unserved { form: no_routes, common: common.into() }
}

pub fn unserved_gateway_routes() -> Unserved {
    Unserved { form: empty_table, common: Arc::default() }
}

fn no_cluster(name: &Name, _: Why, _: &Manifest, _: &[u8]) -> Encoded {
    let message = Cluster {
        name: name.to_string(),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Static as i32)),
        ..Cluster::default()
    };
    Encoded::new(TypeUrl::Cluster, name.clone(), &message.encode_to_vec())
}

/// A subset that no rule knows any more has all endpoints of its service, so that what still goes there arrives.
fn no_endpoints(name: &Name, why: Why, served: &Manifest, _: &[u8]) -> Encoded {
    let whole = whole_service(name).filter(|_| why == Why::Gone).and_then(|whole| served.get(&whole));
    let known = whole.and_then(|whole| ClusterLoadAssignment::decode(&*whole.message()).ok());
    let message = ClusterLoadAssignment { cluster_name: name.to_string(), ..known.unwrap_or_default() };
    Encoded::new(TypeUrl::Endpoint, name.clone(), &message.encode_to_vec())
}

/// `outbound|80||reviews` for `outbound|80|v1|reviews`.
fn whole_service(name: &str) -> Option<String> {
    let [direction, port, subset, host] = name.split('|').collect::<Vec<_>>().try_into().ok()?;
    (!subset.is_empty()).then(|| format!("{direction}|{port}||{host}"))
}

fn no_routes(name: &Name, why: Why, served: &Manifest, other_hosts: &[u8]) -> Encoded {
    let is_port = |text: &str| text.parse::<u16>().is_ok();
    let is_socket = name.starts_with("unix:");
    let is_shared = is_port(name) || is_socket || *name == RouteTable::forward_proxy().name();
    let is_of_one_host = name.split_once(':').is_some_and(|(_, port)| is_port(port));
    if !is_shared && !is_of_one_host {
        return empty_table(name, why, served, other_hosts);
    }
    let mut message = table(name).encode_to_vec();
    if is_shared {
        message.extend_from_slice(other_hosts);
    }
    Encoded::new(TypeUrl::Route, name.clone(), &message)
}

fn empty_table(name: &Name, _: Why, _: &Manifest, _: &[u8]) -> Encoded {
    let message =
        RouteConfiguration { name: name.to_string(), validate_clusters: Some(false), ..Default::default() };
    Encoded::new(TypeUrl::Route, name.clone(), &message.encode_to_vec())
}

#[cfg(test)]
mod tests {
    use pilot_base::Name;
    use pilot_envoy_api::envoy::config::route::v3::{RouteConfiguration, VirtualHost};
    use prost::Message as _;

    use std::sync::Arc;

    use pilot_envoy_api::envoy::config::endpoint::v3::{ClusterLoadAssignment, LocalityLbEndpoints};
    use pilot_xds::{Encoded, Manifest, TypeUrl, Why};

    use super::{no_endpoints, no_routes};

    fn hosts(name: &str) -> Vec<String> {
        let mut common = Vec::new();
        let other = VirtualHost { name: "allow_any".to_owned(), ..VirtualHost::default() };
        pilot_xds::wire::put_bytes(&mut common, super::VIRTUAL_HOSTS, &other.encode_to_vec());
        let table = RouteConfiguration::decode(
            &*no_routes(&Name::new(name), Why::Gone, &Manifest::default(), &common).message(),
        )
        .unwrap();
        assert_eq!(table.name, name);
        table.virtual_hosts.into_iter().map(|host| host.name).collect()
    }

    #[test]
    fn what_is_shared_goes_on_letting_other_hosts_through() {
        assert_eq!(hosts("8080"), ["allow_any"]);
        assert_eq!(hosts("http_proxy"), ["allow_any"]);
        assert_eq!(hosts("unix:///var/run/x.sock"), ["allow_any"]);
        assert!(hosts("a.example.com:80").is_empty());
        assert!(hosts("whatever").is_empty());
    }

    #[test]
    fn a_subset_that_is_gone_has_the_endpoints_of_its_service() {
        let name = "outbound|80||a.example.com";
        let message = ClusterLoadAssignment {
            cluster_name: name.to_owned(),
            endpoints: vec![LocalityLbEndpoints { priority: 1, ..Default::default() }],
            ..Default::default()
        };
        let encoded = Encoded::new(TypeUrl::Endpoint, name.into(), &message.encode_to_vec());
        let served = Manifest::new([[(name.into(), Some(Arc::new(encoded)))].into_iter().collect()]);
        let endpoints = |name: &str, why: Why| {
            let told = no_endpoints(&Name::new(name), why, &served, b"");
            let told = ClusterLoadAssignment::decode(&*told.message()).unwrap();
            assert_eq!(told.cluster_name, name);
            told.endpoints.len()
        };
        assert_eq!(endpoints("outbound|80|v1|a.example.com", Why::Gone), 1);
        assert_eq!(endpoints("outbound|81|v1|a.example.com", Why::Gone), 0);
        assert_eq!(endpoints("outbound|81||a.example.com", Why::Gone), 0);
        assert_eq!(endpoints("outbound|80|v1|a.example.com", Why::InVain), 0, "it may be made up");
    }
}
