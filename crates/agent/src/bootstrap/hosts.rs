use std::net::IpAddr;

use serde_json::{Value, json};

use super::Stack;

/// The addresses that Envoy listens on and calls, which follow the family of the node's own.
pub(super) struct Hosts {
    pub(super) localhost: String,
    /// All addresses of the machine.
    pub(super) wildcard: String,
    /// The other family's, on a machine that has both and wants both.
    pub(super) also_localhost: Option<String>,
    pub(super) also_wildcard: Option<String>,
    pub(super) lookup_family: &'static str,
}

const V4: (&str, &str) = ("127.0.0.1", "0.0.0.0");
const V6: (&str, &str) = ("::1", "::");

impl Hosts {
    pub(super) fn new(addresses: &[IpAddr], stack: Stack) -> Self {
        let all_v6 = !addresses.is_empty() && addresses.iter().all(IpAddr::is_ipv6);
        let mixed = addresses.iter().any(IpAddr::is_ipv4) && addresses.iter().any(IpAddr::is_ipv6);
        let v6_first = addresses.first().is_some_and(IpAddr::is_ipv6);
        let (own, other, lookup_family) = match (mixed && stack == Stack::Dual, v6_first, all_v6) {
            (true, true, _) => (V6, Some(V4), "ALL"),
            (true, false, _) => (V4, Some(V6), "ALL"),
            (false, _, true) => (V6, None, "V6_ONLY"),
            (false, _, false) => (V4, None, "V4_ONLY"),
        };
        Self {
            localhost: own.0.to_owned(),
            wildcard: own.1.to_owned(),
            also_localhost: other.map(|other| other.0.to_owned()),
            also_wildcard: other.map(|other| other.1.to_owned()),
            lookup_family,
        }
    }
}

pub(super) fn socket(address: &str, port: u16) -> Value {
    json!({ "socket_address": { "protocol": "TCP", "address": address, "port_value": port } })
}
