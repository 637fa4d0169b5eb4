use super::super::config::{Config, Groups, Ranges};
use super::super::rule::Action::{Jump, Return};
use super::super::rule::Match::{self, From, Group, In, Out, To, ToNoneOf, ToPort, User};
use super::super::rule::Table::Nat;
use super::super::rule::{Chain, Draft, Family, Rule, Sign, on};
use super::{dns, with_loopback};

/// The address from which a proxy hands arriving traffic to its workload.
pub(super) const PASSED_ON: [(Family, &str); 2] = [(Family::V4, "127.0.0.6/32"), (Family::V6, "::6/128")];

pub(super) fn rules(config: &Config, rules: &mut Vec<Rule>) {
    rules.push(on(Nat, Chain::Output).then(Jump(Chain::IstioOutput)));
    for port in &config.outbound_excluded_ports {
        rules.push(output().tcp().for_port(*port).then(Return));
        rules.push(output().udp().for_port(*port).then(Return));
    }
    for (family, source) in PASSED_ON {
        rules.push(output().only(family).when(lo()).when(From(source.to_owned())).then(Return));
    }
    for uid in &config.uids {
        // DNS of the proxy goes straight to its server.
        let ports = match config.dns {
            Some(_) => ToNoneOf(vec![dns::PORT.into(), config.tunnel_port.into()]),
            None => ToPort(Sign::IsNot, config.tunnel_port.into()),
        };
        proxys_own(config, &ports, |sign| User(sign, uid.clone()), rules);
    }
    for gid in &config.gids {
        let ports = ToPort(Sign::IsNot, config.tunnel_port.into());
        proxys_own(config, &ports, |sign| Group(sign, gid.clone()), rules);
    }
    groups(config, rules);
    if let Some(dns) = &config.dns {
        dns::rules(config, dns, rules);
    }
    destinations(config, rules);
}

fn output() -> Draft {
    on(Nat, Chain::IstioOutput)
}

fn lo() -> Match {
    Out("lo".to_owned())
}

/// What the proxy itself sends is left alone, except for its calls to its own workload by a service's address: those
/// arrive like others'. What a workload sends to itself is left alone too.
fn proxys_own(config: &Config, ports: &Match, owner: impl Fn(Sign) -> Match, rules: &mut Vec<Rule>) {
    with_loopback(config, rules, |family, loopback| {
        let draft = output().only(family).when(lo()).when(To(Sign::IsNot, loopback)).tcp();
        draft.when(ports.clone()).when(owner(Sign::Is)).then(Jump(Chain::InRedirect))
    });
    // Whoever names the loopback among the ranges to redirect wants it redirected.
    if !config.names_loopback() {
        let draft = output().when(lo());
        // A server on this machine is asked for names by the agent only.
        let draft = match config.dns {
            Some(_) => draft.tcp().when(ToPort(Sign::IsNot, dns::PORT.into())),
            None => draft,
        };
        rules.push(draft.when(owner(Sign::IsNot)).then(Return));
    }
    rules.push(output().when(owner(Sign::Is)).then(Return));
}

fn groups(config: &Config, rules: &mut Vec<Rule>) {
    match &config.groups {
        Groups::AllBut(groups) => {
            for group in groups {
                rules.push(output().when(Group(Sign::Is, group.clone())).then(Return));
            }
        }
        Groups::Only(groups) => {
            let none_of =
                groups.iter().fold(output(), |draft, group| draft.when(Group(Sign::IsNot, group.clone())));
            rules.push(none_of.then(Return));
        }
    }
}

/// Exceptions first, then what is redirected.
fn destinations(config: &Config, rules: &mut Vec<Rule>) {
    with_loopback(config, rules, |family, loopback| {
        output().only(family).when(To(Sign::Is, loopback)).then(Return)
    });
    for (family, range) in in_families(&config.outbound_excluded) {
        rules.push(output().only(family).when(To(Sign::Is, range)).then(Return));
    }
    for port in &config.outbound_ports {
        rules.push(output().tcp().for_port(*port).then(Jump(Chain::Redirect)));
    }
    let from_machine = |name: &str| on(Nat, Chain::Prerouting).at(1).when(In(name.to_owned()));
    match &config.outbound {
        Ranges::All => {
            rules.push(output().then(Jump(Chain::Redirect)));
            let machines = config.virtual_interfaces.iter();
            rules.extend(machines.map(|name| from_machine(name).then(Jump(Chain::Redirect))));
        }
        Ranges::Only(ranges) => {
            for (family, range) in in_families(ranges) {
                let to = To(Sign::Is, range);
                for name in &config.virtual_interfaces {
                    let draft = from_machine(name).only(family).when(to.clone());
                    rules.push(draft.then(Jump(Chain::Redirect)));
                }
                rules.push(output().only(family).when(to).then(Jump(Chain::Redirect)));
            }
        }
    }
}

/// Those of version 4 first.
fn in_families(ranges: &[pilot_base::Cidr]) -> Vec<(Family, String)> {
    let of = |family: Family| {
        let fits = move |range: &&pilot_base::Cidr| range.base().is_ipv4() == (family == Family::V4);
        ranges.iter().filter(fits).map(move |range| (family, format!("{}/{}", range.base(), range.bits())))
    };
    of(Family::V4).chain(of(Family::V6)).collect()
}
