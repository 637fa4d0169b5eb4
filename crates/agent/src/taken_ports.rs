//! Why an Envoy that ended at once may have: somebody else listens where it should. Envoy says so among much else; here it
//! is said with what to do.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

use crate::setup::Envoy;

/// Ports that nobody can listen on now, each with what it is for and how to choose another.
pub(crate) fn find(envoy: &Envoy) -> Vec<String> {
    let [status, prometheus] = envoy.own_ports;
    let wanted = [
        (envoy.admin_port, Ipv4Addr::LOCALHOST, "administration", "proxyAdminPort in PROXY_CONFIG"),
        (status, Ipv4Addr::UNSPECIFIED, "probes", "ENVOY_STATUS_PORT"),
        (prometheus, Ipv4Addr::UNSPECIFIED, "metrics", "ENVOY_PROMETHEUS_PORT"),
    ];
    let taken = wanted.into_iter().filter(|(port, address, ..)| *port != 0 && is_taken(*address, *port));
    taken
        .map(|(port, _, purpose, setting)| {
            format!("port {port}, which Envoy needs for {purpose}, is taken by another process; {setting} can name another")
        })
        .collect()
}

fn is_taken(address: Ipv4Addr, port: u16) -> bool {
    matches!(TcpListener::bind((address, port)), Err(error) if error.kind() == io::ErrorKind::AddrInUse)
}
