//! What iptables-save tells, compared with what should be there.

use std::collections::BTreeMap;

use super::iptables;
use super::rule::{Family, Rule};

const TABLES: [&str; 4] = ["filter", "nat", "mangle", "raw"];
const OURS: &str = "ISTIO_";

/// Chains of the tables that count, with their rules as iptables writes them. Chains of others are told only if they
/// have rules.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct State(BTreeMap<(String, String), Vec<String>>);

/// What stands in the way of a cleanup, found afterwards.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Leftovers {
    /// Tables and rules that jump to chains of ours.
    pub(super) jumps: Vec<(String, String)>,
    /// Tables and chains of ours.
    pub(super) chains: Vec<(String, String)>,
}

impl State {
    pub(super) fn parse(text: &str) -> Self {
        let mut chains: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
        let mut table = "";
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = name.trim();
            } else if TABLES.contains(&table) {
                let mut words = line.split(' ');
                let head = words.next().unwrap_or_default();
                if let Some(chain) = head.strip_prefix(':').filter(|chain| chain.starts_with(OURS)) {
                    chains.entry((table.to_owned(), chain.to_owned())).or_default();
                } else if head == "-A" {
                    let chain = words.next().unwrap_or_default().to_owned();
                    chains.entry((table.to_owned(), chain)).or_default().push(line.to_owned());
                }
            }
        }
        Self(chains)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Has it a chain that is to be made?
    pub(super) fn has_chain_of(&self, rules: &[Rule], family: Family) -> bool {
        let wanted = iptables::chains(rules, family);
        wanted.into_iter().any(|(table, chain)| {
            let key = (iptables::table_name(table).to_owned(), iptables::name(chain).to_owned());
            self.0.contains_key(&key)
        })
    }

    /// Are our chains those of the rules, each with as many rules? What the rules say is not compared here: the kernel
    /// gives them back in other words.
    pub(super) fn has_the_shape_of(&self, rules: &[Rule], family: Family) -> bool {
        let mut expected: BTreeMap<(String, String), usize> = iptables::chains(rules, family)
            .into_iter()
            .map(|(table, chain)| ((iptables::table_name(table).into(), iptables::name(chain).into()), 0))
            .collect();
        for rule in rules.iter().filter(|rule| rule.is_for(family) && !rule.chain.is_kernels()) {
            let key = (iptables::table_name(rule.table).to_owned(), iptables::name(rule.chain).to_owned());
            *expected.entry(key).or_default() += 1;
        }
        let ours = self.0.iter().filter(|((_, chain), _)| chain.starts_with(OURS));
        let found: BTreeMap<(String, String), usize> =
            ours.map(|(key, rules)| (key.clone(), rules.len())).collect();
        found == expected
    }

    /// What is ours, whichever settings it was made with.
    pub(super) fn leftovers(&self) -> Leftovers {
        let mut left = Leftovers::default();
        for ((table, chain), rules) in &self.0 {
            if chain.starts_with(OURS) {
                left.chains.push((table.clone(), chain.clone()));
            }
            let jumps = rules.iter().filter(|rule| jumps_to_ours(rule));
            left.jumps.extend(jumps.map(|rule| (table.clone(), rule.clone())));
        }
        left
    }
}

impl Leftovers {
    pub(super) fn removal(&self) -> Vec<iptables::Words> {
        let jump = |(table, rule): &(String, String)| {
            let rule = rule.replacen("-A ", "-D ", 1);
            ["-t", table].into_iter().chain(rule.split(' ')).map(str::to_owned).collect()
        };
        let chains = self.chains.iter().flat_map(|(table, chain)| iptables::delete_chain(table, chain));
        self.jumps.iter().map(jump).chain(chains).collect()
    }
}

fn jumps_to_ours(rule: &str) -> bool {
    let mut words = rule.split(' ').skip_while(|word| *word != "-j");
    words.nth(1).is_some_and(|target| target.starts_with(OURS))
}
