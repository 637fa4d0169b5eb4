//! From settings to rules. Their order is Istio's: a packet takes the first one that fits.

mod dns;
mod inbound;
mod outbound;
#[cfg(test)]
mod tests;

use super::config::{Config, Families, Mode};
use super::rule::Action::{Drop, Jump, Return};
use super::rule::Match::{In, Out, State};
use super::rule::Table::{Mangle, Nat};
use super::rule::{Chain, Family, Rule, State as Of, on};

/// The loopback of version 6, and all of it.
const LOOPBACK_V6: &str = "::1/128";

pub(super) fn rules(config: &Config) -> Vec<Rule> {
    let mut rules = Vec::new();
    excluded_interfaces(config, &mut rules);
    virtual_interfaces(config, &mut rules);
    if config.drop_invalid {
        rules.push(on(Mangle, Chain::Prerouting).when(State(Of::Invalid)).then(Jump(Chain::Drop)));
        rules.push(on(Mangle, Chain::Drop).then(Drop));
    }
    inbound::rules(config, &mut rules);
    outbound::rules(config, &mut rules);
    if config.mode == Mode::Tproxy {
        inbound::marks(config, &mut rules);
    }
    rules.retain(|rule| config.families == Families::Both || rule.is_for(Family::V4));
    rules
}

fn excluded_interfaces(config: &Config, rules: &mut Vec<Rule>) {
    let tables = if config.mode == Mode::Tproxy { &[Nat, Mangle][..] } else { &[Nat] };
    for table in tables {
        for name in &config.excluded_interfaces {
            rules.push(on(*table, Chain::Prerouting).when(In(name.clone())).then(Return));
            rules.push(on(*table, Chain::Output).when(Out(name.clone())).then(Return));
        }
    }
}

/// What a virtual machine sends arrives here, and must not be taken for what others send.
fn virtual_interfaces(config: &Config, rules: &mut Vec<Rule>) {
    for name in &config.virtual_interfaces {
        rules.push(on(Nat, Chain::Prerouting).at(1).when(In(name.clone())).then(Return));
    }
}

/// The same rule for both families, with the family's own loopback in it.
fn with_loopback(config: &Config, rules: &mut Vec<Rule>, rule: impl Fn(Family, String) -> Rule) {
    rules.push(rule(Family::V4, config.loopback.clone()));
    rules.push(rule(Family::V6, LOOPBACK_V6.to_owned()));
}
