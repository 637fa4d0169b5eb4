use super::super::config::{Config, InboundPorts, Mode};
use super::super::rule::Action::{Accept, Jump, Redirect, RestoreMark, Return, SaveMark, SetMark, Tproxy};
use super::super::rule::Match::{ConnectionMark, From, Group, In, Mark, Out, State, To, User};
use super::super::rule::Table::{Mangle, Nat};
use super::super::rule::{Chain, Match, Rule, Sign, State as Of, on};
use super::with_loopback;

/// On what a proxy sends to its own workload by the pod's address, so that it is not taken for what arrives.
const OWN_MARK: u32 = 1338;

/// Chains that send packets to the proxy, and what of the arriving traffic goes there.
pub(super) fn rules(config: &Config, rules: &mut Vec<Rule>) {
    rules.push(on(Nat, Chain::Inbound).tcp().for_port(config.tunnel_port).then(Return));
    rules.push(on(Nat, Chain::Redirect).tcp().then(Redirect(config.outbound_port)));
    rules.push(on(Nat, Chain::InRedirect).tcp().then(Redirect(config.inbound_port)));
    if config.inbound == InboundPorts::Only(Vec::new()) {
        return;
    }
    let table = match config.mode {
        Mode::Redirect => Nat,
        Mode::Tproxy => {
            tproxy_chains(config, rules);
            Mangle
        }
    };
    rules.push(on(table, Chain::Prerouting).tcp().then(Jump(Chain::Inbound)));
    match &config.inbound {
        InboundPorts::AllBut(ports) => {
            for port in ports {
                rules.push(on(table, Chain::Inbound).tcp().for_port(*port).then(Return));
            }
            take(config, &[], rules);
        }
        InboundPorts::Only(ports) => {
            for port in ports {
                take(config, &[Match::ToPort(Sign::Is, *port)], rules);
            }
        }
    }
}

fn tproxy_chains(config: &Config, rules: &mut Vec<Rule>) {
    rules.push(on(Mangle, Chain::Divert).then(SetMark(config.mark)));
    rules.push(on(Mangle, Chain::Divert).then(Accept));
    with_loopback(config, rules, |family, loopback| {
        let action = Tproxy { port: config.inbound_port, mark: config.mark };
        on(Mangle, Chain::Tproxy).only(family).when(To(Sign::IsNot, loopback)).tcp().then(action)
    });
}

/// Hands what fits to the proxy. With TPROXY, a connection that is known needs a mark only.
fn take(config: &Config, matches: &[Match], rules: &mut Vec<Rule>) {
    let draft =
        |table| matches.iter().cloned().fold(on(table, Chain::Inbound).tcp(), |draft, m| draft.when(m));
    match config.mode {
        Mode::Redirect => rules.push(draft(Nat).then(Jump(Chain::InRedirect))),
        Mode::Tproxy => {
            rules.push(draft(Mangle).when(State(Of::Known)).then(Jump(Chain::Divert)));
            rules.push(draft(Mangle).then(Jump(Chain::Tproxy)));
        }
    }
}

/// TPROXY keeps the client's address, so only marks tell a proxy's packets from a client's.
pub(super) fn marks(config: &Config, rules: &mut Vec<Rule>) {
    let marked = || Mark(Sign::Is, config.mark);
    let lo = || Out("lo".to_owned());
    rules.push(on(Mangle, Chain::Prerouting).tcp().when(marked()).then(SaveMark));
    rules.push(on(Mangle, Chain::Output).tcp().when(lo()).when(marked()).then(Return));
    let users = config.uids.iter().map(|uid| User(Sign::Is, uid.clone()));
    let groups = config.gids.iter().map(|gid| Group(Sign::Is, gid.clone()));
    for owner in users.chain(groups) {
        with_loopback(config, rules, |family, loopback| {
            let draft = on(Mangle, Chain::Output).only(family).when(To(Sign::IsNot, loopback));
            draft.tcp().when(lo()).when(owner.clone()).then(SetMark(OWN_MARK))
        });
    }
    rules.push(on(Mangle, Chain::Output).tcp().when(ConnectionMark(config.mark)).then(RestoreMark));
    // In front of what takes packets: what the proxy has had, what it sends under its own address, and what a workload
    // sends to itself.
    rules.push(on(Mangle, Chain::Inbound).at(1).tcp().when(marked()).then(Return));
    for (family, source) in super::outbound::PASSED_ON {
        let draft = on(Mangle, Chain::Inbound).at(2).only(family).tcp();
        rules.push(draft.when(From(source.to_owned())).when(In("lo".to_owned())).then(Return));
    }
    let not_own = Mark(Sign::IsNot, OWN_MARK);
    rules.push(on(Mangle, Chain::Inbound).at(3).tcp().when(In("lo".to_owned())).when(not_own).then(Return));
}
