use super::super::config::{Config, Dns};
use super::super::rule::Action::{Jump, Redirect, Zone};
use super::super::rule::Match::{From, FromPort, Group, To, User};
use super::super::rule::Table::{Nat, Raw};
use super::super::rule::{Chain, Draft, Family, Match, Protocol, Rule, Sign, on};

pub(super) const PORT: u16 = 53;
/// Where the agent answers.
const AGENT_PORT: u16 = 15053;
/// The kernel follows UDP by addresses and ports alone. In one zone it would mix up what the agent asks a server with
/// what a workload asked the agent, since both may come from the same port.
const AGENT_TO_SERVER: u8 = 1;
const WORKLOAD_TO_AGENT: u8 = 2;

pub(super) fn rules(config: &Config, dns: &Dns, rules: &mut Vec<Rule>) {
    rules.push(on(Raw, Chain::Output).then(Jump(Chain::OutputDns)));
    rules.extend(for_those(dns, on(Nat, Chain::IstioOutput)).map(|draft| draft.then(Jump(Chain::OutputDns))));
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for (family, server) in servers(dns) {
            let draft = on(Nat, Chain::OutputDns).when(Match::Protocol(protocol)).for_port(PORT);
            rules.push(only(draft, family, server.map(|s| To(Sign::Is, s))).then(Redirect(AGENT_PORT)));
        }
    }
    let users = config.uids.iter().map(|uid| User(Sign::Is, uid.clone()));
    let groups = config.gids.iter().map(|gid| Group(Sign::Is, gid.clone()));
    for owner in users.chain(groups) {
        let asks = on(Raw, Chain::OutputDns).udp().for_port(PORT);
        rules.push(asks.when(owner.clone()).then(Zone(AGENT_TO_SERVER)));
        let answers = on(Raw, Chain::OutputDns).udp().when(FromPort(AGENT_PORT.into()));
        rules.push(answers.when(owner).then(Zone(WORKLOAD_TO_AGENT)));
    }
    rules.extend(for_those(dns, on(Raw, Chain::Prerouting)).map(|draft| draft.then(Jump(Chain::Inbound))));
    for (family, server) in servers(dns) {
        let asks = on(Raw, Chain::OutputDns).udp().for_port(PORT);
        let to = server.clone().map(|server| To(Sign::Is, server));
        rules.push(only(asks, family, to).then(Zone(WORKLOAD_TO_AGENT)));
        let answers = on(Raw, Chain::Inbound).udp().when(FromPort(PORT.into()));
        rules.push(only(answers, family, server.map(From)).then(Zone(AGENT_TO_SERVER)));
    }
}

/// A jump for the families that have a server.
fn for_those(dns: &Dns, draft: Draft) -> impl Iterator<Item = Draft> {
    let drafts = match dns {
        Dns::All => vec![draft],
        Dns::Servers { v4, v6 } => match (v4.is_empty(), v6.is_empty()) {
            (false, false) => vec![draft],
            (false, true) => vec![draft.only(Family::V4)],
            (true, false) => vec![draft.only(Family::V6)],
            (true, true) => Vec::new(),
        },
    };
    drafts.into_iter()
}

/// Each server with its family, or any server of any family.
fn servers(dns: &Dns) -> Vec<(Option<Family>, Option<String>)> {
    match dns {
        Dns::All => vec![(None, None)],
        Dns::Servers { v4, v6 } => {
            let v4 = v4.iter().map(|server| (Some(Family::V4), Some(format!("{server}/32"))));
            let v6 = v6.iter().map(|server| (Some(Family::V6), Some(format!("{server}/128"))));
            v4.chain(v6).collect()
        }
    }
}

fn only(draft: Draft, family: Option<Family>, address: Option<Match>) -> Draft {
    let draft = family.into_iter().fold(draft, Draft::only);
    address.into_iter().fold(draft, Draft::when)
}
