//! Rules in nftables' words: one transaction for both families.

use std::collections::BTreeMap;

use super::rule::{Action, Chain, Family, Match, Place, Ports, Protocol, Rule, Sign, State, Table};

/// Between the first and the last of a range of ports.
const RANGE: char = '-';

/// Our tables and their chains, in Istio's order.
const TABLES: [(Table, &[Chain]); 3] = [
    (
        Table::Nat,
        &[
            Chain::Prerouting,
            Chain::Output,
            Chain::Inbound,
            Chain::Redirect,
            Chain::InRedirect,
            Chain::IstioOutput,
            Chain::OutputDns,
        ],
    ),
    (
        Table::Mangle,
        &[Chain::Prerouting, Chain::Output, Chain::Divert, Chain::Tproxy, Chain::Inbound, Chain::Drop],
    ),
    (Table::Raw, &[Chain::Prerouting, Chain::Output, Chain::Inbound, Chain::OutputDns]),
];

/// Takes the place of whatever is in our tables.
pub(super) fn transaction(rules: &[Rule]) -> String {
    TABLES.iter().map(|(table, chains)| table_text(*table, chains, rules)).collect()
}

/// Takes our tables away, whether they are there or not.
pub(super) fn removal() -> String {
    TABLES.iter().map(|(table, _)| delete(*table)).collect()
}

/// Takes those of our tables away that are there and in which the rules have nothing.
pub(super) fn removal_of_unused(rules: &[Rule], there: &str) -> String {
    let unused = |table: &Table| {
        let name = table_name(*table);
        let is_there = there.lines().any(|line| line.split_whitespace().last() == Some(name));
        is_there && rules.iter().all(|rule| rule.table != *table)
    };
    TABLES.iter().map(|(table, _)| *table).filter(unused).map(delete).collect()
}

/// Adding comes first, since what is not there cannot be deleted.
fn delete(table: Table) -> String {
    let table = table_name(table);
    format!("add table inet {table}\ndelete table inet {table}\n")
}

fn table_text(table: Table, chains: &[Chain], rules: &[Rule]) -> String {
    let ours: Vec<&Rule> = rules.iter().filter(|rule| rule.table == table).collect();
    if ours.is_empty() {
        return String::new();
    }
    let name = table_name(table);
    let mut text = format!("add table inet {name}\nflush table inet {name}\n");
    for chain in chains.iter().filter(|chain| ours.iter().any(|rule| rule.chain == **chain)) {
        text.push_str(&format!("add chain inet {name} {}{}\n", chain_name(*chain), hook(table, *chain)));
    }
    let mut lengths: BTreeMap<Chain, usize> = BTreeMap::new();
    for rule in ours {
        let length = lengths.entry(rule.chain).or_default();
        let chain = chain_name(rule.chain);
        // nftables count from 0, and insert only before something.
        let head = match rule.place {
            Place::At(position) if position <= *length => {
                format!("insert rule inet {name} {chain} index {}", position - 1)
            }
            Place::At(_) | Place::Last => format!("add rule inet {name} {chain}"),
        };
        text.push_str(&format!("{head} {}\n", rule_text(rule)));
        *length += 1;
    }
    text
}

/// Where in the kernel a chain hangs. The numbers are those of iptables' tables of the same name.
fn hook(table: Table, chain: Chain) -> String {
    let hook = match chain {
        Chain::Prerouting => "prerouting",
        Chain::Output => "output",
        _ => return String::new(),
    };
    let (kind, priority) = match (table, chain) {
        (Table::Nat, _) => ("nat", -100),
        // A new mark must lead to a new look at the routes.
        (Table::Mangle, Chain::Output) => ("route", -150),
        (Table::Mangle, _) => ("filter", -150),
        (Table::Raw, _) => ("filter", -300),
    };
    format!(" {{ type {kind} hook {hook} priority {priority} ; }}")
}

fn rule_text(rule: &Rule) -> String {
    let mut matches: Vec<(u8, String)> = rule
        .matches
        .iter()
        .filter_map(|what| Some((rank(rule.table, what), match_text(rule, what)?)))
        .collect();
    if asks_for_tcp(rule) {
        matches.push((1, "meta l4proto tcp".to_owned()));
    }
    matches.sort_by_key(|(rank, _)| *rank);
    let mut words: Vec<String> = matches.into_iter().map(|(_, text)| text).collect();
    words.push(action_text(rule));
    words.join(" ")
}

/// A port in the chains of leaving traffic says its protocol by itself; and only TCP's states are looked at.
fn asks_for_tcp(rule: &Rule) -> bool {
    let port_is_enough = matches!(rule.chain, Chain::IstioOutput | Chain::OutputDns)
        && rule.matches.iter().any(|what| matches!(what, Match::ToPort(Sign::Is, _)));
    let asked = |what: &Match| matches!(what, Match::Protocol(Protocol::Tcp) | Match::State(_));
    !port_is_enough && rule.matches.iter().any(asked)
}

/// The order in which matches are written, which is Istio's.
fn rank(table: Table, what: &Match) -> u8 {
    match what {
        Match::In(_) | Match::Out(_) => 0,
        Match::Protocol(_) => 1,
        Match::State(_) => 2,
        Match::From(_) | Match::To(..) => 4,
        Match::FromPort(_) | Match::ToPort(..) | Match::ToNoneOf(_) => {
            if table == Table::Raw {
                3
            } else {
                5
            }
        }
        Match::User(..) | Match::Group(..) => 6,
        Match::Mark(..) | Match::ConnectionMark(_) => 7,
    }
}

fn match_text(rule: &Rule, what: &Match) -> Option<String> {
    let port = |ports: &Ports| ports.text(RANGE);
    let (ip, protocol) = (ip_word(rule), protocol_word(rule));
    let meta = if rule.table == Table::Raw { "meta " } else { "" };
    Some(match what {
        Match::Protocol(_) => return None,
        Match::In(name) => format!("iifname {}", interface(name)),
        Match::Out(name) => format!("oifname {}", interface(name)),
        Match::From(range) => format!("{ip} saddr {range}"),
        Match::To(sign, range) => format!("{ip} daddr {}{range}", not(*sign)),
        Match::FromPort(ports) => format!("{protocol} sport {}", port(ports)),
        Match::ToPort(sign, ports) => format!("{protocol} dport {}{}", not(*sign), port(ports)),
        Match::ToNoneOf(all) => {
            format!("{protocol} dport != {{ {} }}", all.iter().map(port).collect::<Vec<_>>().join(", "))
        }
        Match::User(sign, user) => format!("{meta}skuid {}{user}", not(*sign)),
        Match::Group(sign, group) => format!("{meta}skgid {}{group}", not(*sign)),
        Match::Mark(sign, mark) => format!("mark {}{mark}", not(*sign)),
        Match::ConnectionMark(mark) => format!("ct mark {mark}"),
        Match::State(State::Invalid) => "ct state invalid".to_owned(),
        Match::State(State::Known) => "ct state related,established".to_owned(),
    })
}

fn ip_word(rule: &Rule) -> &'static str {
    if rule.family == Some(Family::V6) { "ip6" } else { "ip" }
}

fn protocol_word(rule: &Rule) -> &'static str {
    if rule.matches.contains(&Match::Protocol(Protocol::Udp)) { "udp" } else { "tcp" }
}

/// What stands for anything is a plus in iptables.
fn interface(name: &str) -> String {
    name.strip_suffix('+').map_or_else(|| name.to_owned(), |stem| format!("\"{stem}*\""))
}

fn not(sign: Sign) -> &'static str {
    match sign {
        Sign::Is => "",
        Sign::IsNot => "!= ",
    }
}

fn action_text(rule: &Rule) -> String {
    match &rule.action {
        Action::Return => "counter return".to_owned(),
        Action::Accept => "counter accept".to_owned(),
        Action::Drop => "counter drop".to_owned(),
        Action::Jump(chain) => format!("counter jump {}", chain_name(*chain)),
        Action::Redirect(port) => format!("counter redirect to :{port}"),
        Action::Tproxy { port, mark } => {
            format!("tproxy {} to :{port} meta mark set {mark} counter accept", ip_word(rule))
        }
        Action::SetMark(mark) => format!("counter meta mark set {mark}"),
        Action::SaveMark => "counter ct mark set mark".to_owned(),
        Action::RestoreMark => "counter meta mark set ct mark".to_owned(),
        Action::Zone(zone) => format!("counter ct zone set {zone}"),
    }
}

fn table_name(table: Table) -> &'static str {
    match table {
        Table::Nat => "istio-proxy-nat",
        Table::Mangle => "istio-proxy-mangle",
        Table::Raw => "istio-proxy-raw",
    }
}

fn chain_name(chain: Chain) -> &'static str {
    match chain {
        Chain::Prerouting => "prerouting",
        Chain::Output => "output",
        Chain::Inbound => "istio-inbound",
        Chain::Redirect => "istio-redirect",
        Chain::InRedirect => "istio-in-redirect",
        Chain::IstioOutput => "istio-output",
        Chain::OutputDns => "istio-output-dns",
        Chain::Divert => "istio-divert",
        Chain::Tproxy => "istio-tproxy",
        Chain::Drop => "istio-drop",
    }
}
