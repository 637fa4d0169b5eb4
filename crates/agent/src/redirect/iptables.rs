//! Rules in iptables' words.

use std::collections::{BTreeMap, BTreeSet};

use super::rule::{Action, Chain, Family, Match, Place, Ports, Protocol, Rule, Sign, State, Table};

/// Between the first and the last of a range of ports.
const RANGE: char = ':';

/// One call of iptables, without the program's name.
pub(super) type Words = Vec<String>;

/// The rules of one family, for iptables-restore.
pub(super) fn restore(rules: &[Rule], family: Family) -> String {
    let mut tables: BTreeMap<Table, Vec<String>> = BTreeMap::new();
    for (table, chain) in chains(rules, family) {
        tables.entry(table).or_default().push(format!("-N {}", name(chain)));
    }
    for rule in rules.iter().filter(|rule| rule.is_for(family)) {
        tables.entry(rule.table).or_default().push(words(rule, Verb::Add).join(" "));
    }
    tables
        .into_iter()
        .map(|(table, lines)| format!("* {}\n{}\nCOMMIT\n", table_name(table), lines.join("\n")))
        .collect()
}

/// Calls that succeed if a rule is there, one for each.
pub(super) fn checks(rules: &[Rule], family: Family) -> Vec<Words> {
    let ours = rules.iter().filter(|rule| rule.is_for(family));
    ours.map(|rule| in_table(rule.table, words(rule, Verb::Check))).collect()
}

/// Calls that take the rules away. Jumps go first, because a chain that is jumped to cannot be deleted.
pub(super) fn undo(rules: &[Rule], family: Family) -> Vec<Words> {
    let mut calls = Vec::new();
    let mut empty = Vec::new();
    let mut seen = BTreeSet::new();
    for rule in rules.iter().rev().filter(|rule| rule.is_for(family)) {
        if rule.chain.is_kernels() || matches!(rule.action, Action::Jump(_)) {
            calls.push(in_table(rule.table, words(rule, Verb::Delete)));
        }
        if !rule.chain.is_kernels() && seen.insert((rule.table, rule.chain)) {
            empty.extend(delete_chain(table_name(rule.table), name(rule.chain)));
        }
    }
    calls.extend(empty);
    calls
}

pub(super) fn delete_chain(table: &str, chain: &str) -> [Words; 2] {
    ["-F", "-X"].map(|verb| ["-t", table, verb, chain].map(str::to_owned).to_vec())
}

/// While rules are exchanged nothing goes in or out: better late than past the proxy.
pub(super) fn barrier(verb: Verb) -> Vec<Words> {
    let chains = ["INPUT", "FORWARD", "OUTPUT"].into_iter();
    let pairs = chains.flat_map(|chain| ["tcp", "udp"].map(|protocol| (chain, protocol)));
    let call = |(chain, protocol)| {
        let (verb, position) = match verb {
            Verb::Add => ("-I", Some("1")),
            Verb::Check => ("-C", None),
            Verb::Delete => ("-D", None),
        };
        let words = ["-t", "filter", verb, chain].into_iter().chain(position);
        words.chain(["-p", protocol, "-j", "DROP"]).map(str::to_owned).collect()
    };
    pairs.map(call).collect()
}

/// Our chains in the order in which they are used first, those without rules last.
pub(super) fn chains(rules: &[Rule], family: Family) -> Vec<(Table, Chain)> {
    let ours = || rules.iter().filter(|rule| rule.is_for(family));
    let own = ours().map(|rule| (rule.table, rule.chain));
    let jumped_to = ours().filter_map(|rule| match rule.action {
        Action::Jump(chain) => Some((rule.table, chain)),
        _ => None,
    });
    let mut seen = BTreeSet::new();
    own.chain(jumped_to).filter(|(_, chain)| !chain.is_kernels()).filter(|pair| seen.insert(*pair)).collect()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verb {
    Add,
    Check,
    Delete,
}

fn in_table(table: Table, words: Words) -> Words {
    ["-t", table_name(table)].into_iter().map(str::to_owned).chain(words).collect()
}

fn words(rule: &Rule, verb: Verb) -> Words {
    let chain = name(rule.chain);
    let head = match (verb, rule.place) {
        (Verb::Add, Place::Last) => vec!["-A".to_owned(), chain.to_owned()],
        (Verb::Add, Place::At(position)) => vec!["-I".to_owned(), chain.to_owned(), position.to_string()],
        (Verb::Check, _) => vec!["-C".to_owned(), chain.to_owned()],
        (Verb::Delete, _) => vec!["-D".to_owned(), chain.to_owned()],
    };
    let tail = format!("-j {}", target(rule));
    let matches = rule.matches.iter().map(match_text);
    let texts = matches.chain([tail]);
    head.into_iter()
        .chain(texts.flat_map(|text| text.split(' ').map(str::to_owned).collect::<Words>()))
        .collect()
}

fn match_text(what: &Match) -> String {
    let port = |ports: &Ports| ports.text(RANGE);
    match what {
        Match::In(name) => format!("-i {name}"),
        Match::Out(name) => format!("-o {name}"),
        Match::From(range) => format!("-s {range}"),
        Match::To(sign, range) => format!("{}-d {range}", not(*sign)),
        Match::Protocol(protocol) => format!("-p {protocol}"),
        Match::FromPort(ports) => format!("--sport {}", port(ports)),
        Match::ToPort(sign, ports) => format!("{}--dport {}", not(*sign), port(ports)),
        Match::ToNoneOf(all) => {
            format!("-m multiport ! --dports {}", all.iter().map(port).collect::<Vec<_>>().join(","))
        }
        Match::User(sign, user) => format!("-m owner {}--uid-owner {user}", not(*sign)),
        Match::Group(sign, group) => format!("-m owner {}--gid-owner {group}", not(*sign)),
        Match::Mark(sign, mark) => format!("-m mark {}--mark {mark}", not(*sign)),
        Match::ConnectionMark(mark) => format!("-m connmark --mark {mark}"),
        Match::State(State::Invalid) => "-m conntrack --ctstate INVALID".to_owned(),
        Match::State(State::Known) => "-m conntrack --ctstate RELATED,ESTABLISHED".to_owned(),
    }
}

fn not(sign: Sign) -> &'static str {
    match sign {
        Sign::Is => "",
        Sign::IsNot => "! ",
    }
}

fn target(rule: &Rule) -> String {
    match &rule.action {
        Action::Return => "RETURN".to_owned(),
        Action::Accept => "ACCEPT".to_owned(),
        Action::Drop => "DROP".to_owned(),
        Action::Jump(chain) => name(*chain).to_owned(),
        // Istio writes the option in its short form for UDP; iptables knows both.
        Action::Redirect(port) if rule.matches.contains(&Match::Protocol(Protocol::Udp)) => {
            format!("REDIRECT --to-port {port}")
        }
        Action::Redirect(port) => format!("REDIRECT --to-ports {port}"),
        Action::Tproxy { port, mark } => format!("TPROXY --tproxy-mark {mark}/0xffffffff --on-port {port}"),
        Action::SetMark(mark) => format!("MARK --set-mark {mark}"),
        Action::SaveMark => "CONNMARK --save-mark".to_owned(),
        Action::RestoreMark => "CONNMARK --restore-mark".to_owned(),
        Action::Zone(zone) => format!("CT --zone {zone}"),
    }
}

pub(super) fn table_name(table: Table) -> &'static str {
    match table {
        Table::Mangle => "mangle",
        Table::Nat => "nat",
        Table::Raw => "raw",
    }
}

pub(super) fn name(chain: Chain) -> &'static str {
    match chain {
        Chain::Prerouting => "PREROUTING",
        Chain::Output => "OUTPUT",
        Chain::Inbound => "ISTIO_INBOUND",
        Chain::Redirect => "ISTIO_REDIRECT",
        Chain::InRedirect => "ISTIO_IN_REDIRECT",
        Chain::IstioOutput => "ISTIO_OUTPUT",
        Chain::OutputDns => "ISTIO_OUTPUT_DNS",
        Chain::Divert => "ISTIO_DIVERT",
        Chain::Tproxy => "ISTIO_TPROXY",
        Chain::Drop => "ISTIO_DROP",
    }
}
