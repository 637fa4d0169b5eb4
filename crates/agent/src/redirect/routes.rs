use std::io;
use std::net::{IpAddr, Ipv6Addr};

use super::config::{Config, Families, InboundPorts, Mode};
use super::netlink::{Netlink, Thing, Wanted, family_byte};

/// From here a proxy hands arriving traffic to its workload. Of version 4 the loopback has more than one address anyway.
const PASSED_ON_V6: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6);

/// Addresses and routes that the rules count on.
pub(super) fn set(config: &Config) -> io::Result<()> {
    let tproxy = config.mode == Mode::Tproxy && config.inbound != InboundPorts::Only(Vec::new());
    let routes = if tproxy { marked(config, config.families) } else { Vec::new() };
    let address = (config.families == Families::Both).then_some(address());
    make(Wanted::There, address.into_iter().chain(routes))
}

/// Takes them away, whichever mode they were for.
pub(super) fn remove(config: &Config) -> io::Result<()> {
    make(Wanted::Gone, [address()].into_iter().chain(marked(config, Families::Both)))
}

fn make(wanted: Wanted, things: impl IntoIterator<Item = Thing>) -> io::Result<()> {
    let mut netlink = Netlink::open()?;
    things.into_iter().try_for_each(|thing| netlink.make(wanted, &thing))
}

fn address() -> Thing {
    Thing::LoopbackAddress(IpAddr::V6(PASSED_ON_V6))
}

/// Marked packets are for this machine, whatever their address.
fn marked(config: &Config, families: Families) -> Vec<Thing> {
    let numbers = match families {
        Families::V4 => &[libc::AF_INET][..],
        Families::Both => &[libc::AF_INET, libc::AF_INET6],
    };
    let (mark, table) = (config.mark, config.route_table);
    let family = |number: &i32| {
        let family = family_byte(*number);
        [Thing::MarkRule { mark, table, family }, Thing::EverythingLocal { table, family }]
    };
    numbers.iter().flat_map(family).collect()
}
