use std::io;
use std::net::IpAddr;

use super::netlink::Netlink;

const RESOLVER_FILE: &str = "/etc/resolv.conf";
const USERS_FILE: &str = "/etc/passwd";

/// What rules depend on beside what was told, read once.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    /// Those that others can reach, of version 4 first.
    pub(super) addresses: Vec<IpAddr>,
    /// What the resolver is told, or why it cannot be read.
    pub(super) resolver: Result<String, String>,
    users: String,
}

impl Machine {
    pub(super) fn read() -> io::Result<Self> {
        let mut addresses = Netlink::open()?.addresses()?;
        addresses.retain(is_reachable);
        addresses.sort_by_key(IpAddr::is_ipv6);
        Ok(Self {
            addresses,
            resolver: std::fs::read_to_string(RESOLVER_FILE).map_err(|error| error.to_string()),
            // A machine without users has nobody of the name that is looked for.
            users: std::fs::read_to_string(USERS_FILE).unwrap_or_default(),
        })
    }

    /// The number of a user.
    pub(super) fn uid(&self, name: &str) -> Option<&str> {
        self.users.lines().find_map(|line| {
            let mut fields = line.split(':');
            fields.next().filter(|own| *own == name)?;
            fields.nth(1)
        })
    }

    #[cfg(test)]
    pub(super) fn with(addresses: &[&str], resolver: &str, users: &str) -> Self {
        Self {
            addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
            resolver: Ok(resolver.to_owned()),
            users: users.to_owned(),
        }
    }
}

fn is_reachable(address: &IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !address.is_loopback() && !local
}
