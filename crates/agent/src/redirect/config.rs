//! What traffic is redirected where, checked. Flags win over environment variables.

#[cfg(test)]
mod tests;
mod told;

use std::net::IpAddr;

use pilot_base::Cidr;

use super::args::RedirectArgs;
use super::machine::Machine;
use super::rule::Ports;
use crate::Env;
pub(super) use told::{Told, Wrong};

const DEFAULT_USER: &str = "istio-proxy";
const DEFAULT_UID: &str = "1337";
/// One rule names all of them, and the kernel limits how long a rule may be.
const MOST_GROUPS: usize = 64;
/// More than anybody writes, and little enough for one call of iptables-restore.
const MOST_VALUES: usize = 4096;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Config {
    pub(super) families: Families,
    pub(super) outbound_port: u16,
    pub(super) inbound_port: u16,
    pub(super) tunnel_port: u16,
    pub(super) uids: Vec<String>,
    pub(super) gids: Vec<String>,
    pub(super) mode: Mode,
    /// On packets that TPROXY has to do with, and the routing table for them.
    pub(super) mark: u32,
    pub(super) route_table: u32,
    pub(super) inbound: InboundPorts,
    pub(super) excluded_interfaces: Vec<String>,
    pub(super) virtual_interfaces: Vec<String>,
    pub(super) outbound: Ranges,
    pub(super) outbound_excluded: Vec<Cidr>,
    pub(super) outbound_ports: Vec<Ports>,
    pub(super) outbound_excluded_ports: Vec<Ports>,
    pub(super) groups: Groups,
    pub(super) dns: Option<Dns>,
    pub(super) drop_invalid: bool,
    /// The loopback of version 4, as it was written.
    pub(super) loopback: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Families {
    V4,
    Both,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// The kernel writes the proxy's address into packets.
    Redirect,
    /// Packets stay as they are, so that the client's address is seen.
    Tproxy,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum InboundPorts {
    AllBut(Vec<Ports>),
    Only(Vec<Ports>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Ranges {
    All,
    Only(Vec<Cidr>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Groups {
    AllBut(Vec<String>),
    Only(Vec<String>),
}

/// Whose questions are redirected: those to the machine's servers, as they are written in its file, or all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Dns {
    All,
    Servers { v4: Vec<String>, v6: Vec<String> },
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ConfigError {
    /// A setting cannot be what was written.
    #[error("{0}")]
    Wrong(#[from] Wrong),
    /// All ranges cannot be left out.
    #[error(
        "{0}: * leaves nothing to redirect; write ranges, or an empty --istio-service-cidr to redirect nothing"
    )]
    AllExcluded(String),
    #[error("ISTIO_OUTBOUND_OWNER_GROUPS: {0} groups are more than the {MOST_GROUPS} that fit into one rule")]
    Groups(usize),
    #[error(
        "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR: \"{0}\" is not a range of the loopback, such as 127.0.0.1/32: it must begin with 127 and have 8 to 32 bits"
    )]
    Loopback(String),
    #[error(
        "this machine has no address but the loopback's, so nothing can be redirected; bring its network up first"
    )]
    NoAddress,
    #[error(
        "cannot read /etc/resolv.conf to know the servers whose traffic --redirect-dns takes: {0}; --capture-all-dns needs no such file"
    )]
    Resolver(String),
}

impl Config {
    pub(super) fn new(args: &RedirectArgs, env: &Env, machine: &Machine) -> Result<Self, ConfigError> {
        let told = Told { env };
        let uids = uids(&told, args, machine)?;
        let gids = told.list(&args.proxy_gid, "proxy-gid", told::name)?;
        Ok(Self {
            families: families(&told, args, machine)?,
            outbound_port: Told::flag_only(&args.envoy_port, "envoy-port", "15001").port()?,
            inbound_port: told.text(&args.inbound_capture_port, "inbound-capture-port", "15006").port()?,
            tunnel_port: told.text(&args.inbound_tunnel_port, "inbound-tunnel-port", "15008").port()?,
            gids: if gids.is_empty() { uids.clone() } else { gids },
            uids,
            mode: mode(&told, args)?,
            mark: told.text(&args.istio_inbound_tproxy_mark, "istio-inbound-tproxy-mark", "1337").number()?,
            route_table: told
                .text(&args.istio_inbound_tproxy_route_table, "istio-inbound-tproxy-route-table", "133")
                .number()?,
            inbound: inbound(&told, args)?,
            excluded_interfaces: told.list(
                &args.istio_exclude_interfaces,
                "istio-exclude-interfaces",
                told::interface,
            )?,
            virtual_interfaces: told.list(
                &args.kube_virt_interfaces,
                "kube-virt-interfaces",
                told::interface,
            )?,
            outbound: outbound(&told, args)?,
            outbound_excluded: outbound_excluded(&told, args)?,
            outbound_ports: told.list(&args.istio_outbound_ports, "istio-outbound-ports", told::ports)?,
            outbound_excluded_ports: told.list(
                &args.istio_local_outbound_ports_exclude,
                "istio-local-outbound-ports-exclude",
                told::ports,
            )?,
            groups: groups(&told)?,
            dns: dns(&told, args, machine)?,
            drop_invalid: told.flag(args.drop_invalid, "drop-invalid", Some("INVALID_DROP")),
            loopback: loopback(env)?,
        })
    }

    /// Is the loopback among what is redirected by name?
    pub(super) fn names_loopback(&self) -> bool {
        match &self.outbound {
            Ranges::All => false,
            Ranges::Only(ranges) => ranges.iter().any(|range| range.base().is_loopback()),
        }
    }
}

fn families(told: &Told<'_>, args: &RedirectArgs, machine: &Machine) -> Result<Families, ConfigError> {
    let dual_stack = told.flag(args.dual_stack, "dual-stack", Some("ISTIO_DUAL_STACK"));
    let first = machine.addresses.first().ok_or(ConfigError::NoAddress)?;
    let both = first.is_ipv6() || (dual_stack && machine.addresses.iter().any(IpAddr::is_ipv6));
    Ok(if both { Families::Both } else { Families::V4 })
}

/// The proxy's users: as told, or the one that is called so on this machine.
fn uids(told: &Told<'_>, args: &RedirectArgs, machine: &Machine) -> Result<Vec<String>, ConfigError> {
    let uids = told.list(&args.proxy_uid, "proxy-uid", told::name)?;
    if !uids.is_empty() {
        return Ok(uids);
    }
    let user = told.env.get("ENVOY_USER").unwrap_or(DEFAULT_USER);
    Ok(vec![machine.uid(user).unwrap_or(DEFAULT_UID).to_owned()])
}

fn mode(told: &Told<'_>, args: &RedirectArgs) -> Result<Mode, ConfigError> {
    let name = "istio-inbound-interception-mode";
    let mode = told.text(&args.istio_inbound_interception_mode, name, "REDIRECT");
    match mode.text.as_str() {
        "REDIRECT" | "" => Ok(Mode::Redirect),
        "TPROXY" => Ok(Mode::Tproxy),
        _ => Err(mode.wrong("REDIRECT or TPROXY").into()),
    }
}

fn inbound(told: &Told<'_>, args: &RedirectArgs) -> Result<InboundPorts, ConfigError> {
    let but = told.list(&args.istio_local_exclude_ports, "istio-local-exclude-ports", told::ports)?;
    let ports = told.text(&args.istio_inbound_ports, "istio-inbound-ports", "");
    match ports.text.as_str() {
        "*" => Ok(InboundPorts::AllBut(but)),
        _ => Ok(InboundPorts::Only(ports.list(told::ports)?)),
    }
}

fn outbound(told: &Told<'_>, args: &RedirectArgs) -> Result<Ranges, ConfigError> {
    let ranges = told.text(&args.istio_service_cidr, "istio-service-cidr", "");
    match ranges.text.as_str() {
        "*" => Ok(Ranges::All),
        _ => Ok(Ranges::Only(ranges.list(told::range)?)),
    }
}

fn outbound_excluded(told: &Told<'_>, args: &RedirectArgs) -> Result<Vec<Cidr>, ConfigError> {
    let ranges = told.text(&args.istio_service_exclude_cidr, "istio-service-exclude-cidr", "");
    match ranges.text.as_str() {
        "*" => Err(ConfigError::AllExcluded(ranges.place)),
        _ => Ok(ranges.list(told::range)?),
    }
}

fn groups(told: &Told<'_>) -> Result<Groups, ConfigError> {
    // Here an empty variable says something: nobody's traffic.
    let include = told.env.iter().find(|(name, _)| *name == "ISTIO_OUTBOUND_OWNER_GROUPS");
    match include.map_or("*", |(_, text)| text) {
        "*" => {
            let exclude = told.text(&None, "istio-outbound-owner-groups-exclude", "");
            Ok(Groups::AllBut(exclude.list(told::name)?))
        }
        _ => {
            let groups = told.text(&None, "istio-outbound-owner-groups", "").list(told::name)?;
            match groups.len() {
                0..=MOST_GROUPS => Ok(Groups::Only(groups)),
                many => Err(ConfigError::Groups(many)),
            }
        }
    }
}

fn dns(told: &Told<'_>, args: &RedirectArgs, machine: &Machine) -> Result<Option<Dns>, ConfigError> {
    if !told.flag(args.redirect_dns, "redirect-dns", Some("ISTIO_META_DNS_CAPTURE")) {
        return Ok(None);
    }
    if told.flag(args.capture_all_dns, "capture-all-dns", None) {
        return Ok(Some(Dns::All));
    }
    let resolver = machine.resolver.as_ref().map_err(|error| ConfigError::Resolver(error.clone()))?;
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for server in servers(resolver) {
        match server.parse() {
            Ok(IpAddr::V4(_)) => v4.push(server.to_owned()),
            Ok(IpAddr::V6(_)) => v6.push(server.to_owned()),
            Err(_) => {
                tracing::warn!(server, "this server in /etc/resolv.conf is not an address: passed over");
            }
        }
    }
    if v4.is_empty() && v6.is_empty() {
        tracing::warn!(
            "DNS is not redirected: /etc/resolv.conf names no server, and --capture-all-dns is not set"
        );
        return Ok(None);
    }
    Ok(Some(Dns::Servers { v4, v6 }))
}

fn servers(resolver: &str) -> impl Iterator<Item = &str> {
    resolver.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let server = words.next().filter(|word| *word == "nameserver").and_then(|_| words.next())?;
        // Which interface leads to a server is the machine's business.
        Some(server.split('%').next().unwrap_or(server))
    })
}

fn loopback(env: &Env) -> Result<String, ConfigError> {
    let text = env.get("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR").unwrap_or("127.0.0.1/32");
    let fits = |range: &Cidr| {
        range.base().is_ipv4() && range.base().is_loopback() && (8..=32).contains(&range.bits())
    };
    match Cidr::parse(text).filter(fits) {
        Some(_) => Ok(text.to_owned()),
        None => Err(ConfigError::Loopback(text.to_owned())),
    }
}
