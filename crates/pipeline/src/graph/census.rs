//! How many there are of what operators watch, kept up to date by what each commit changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilot_base::{Host, Name, SharedMap};
use pilot_incr::{Engine, Table};
use pilot_mesh::RouteRule;
use pilot_model::{Endpoint, EndpointSlice, Health, Resolution, Service};

use super::inputs::Inputs;
use super::registry::{HostKey, Registry, ServiceKey, Shards};
use super::rules::{Rule, RuleKey, Rules};

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    pub services: usize,
    /// Ports of services whose endpoints proxies are told, without any.
    pub ports_without_endpoints: usize,
    /// Ports of services whose names proxies look up, without any name.
    pub ports_without_names: usize,
    /// Endpoints of Kubernetes that are not ready.
    pub endpoints_not_ready: usize,
    /// Hosts for which several VirtualServices that are seen together claim the requests of sidecars.
    pub contested_hosts: usize,
    /// Subsets that a namespace gives a host although an older rule of its has one of that name.
    pub repeated_subsets: usize,
}

/// The tables that are counted in.
#[derive(Clone, Copy)]
pub(crate) struct CensusTables {
    services: Table<Host, SharedMap<ServiceKey, Arc<Service>>>,
    endpoints: Table<HostKey, Shards>,
    routes: Table<Host, SharedMap<RuleKey, Arc<RouteRule>>>,
    traffic: Table<Host, SharedMap<RuleKey, Arc<Rule>>>,
    slices: Table<pilot_model::ConfigId, EndpointSlice>,
}

/// Counts without ever looking at more than what changed.
#[derive(Default)]
pub(crate) struct CensusTaker {
    census: Census,
    /// Ports that lack something, of the hosts that have such.
    lacking: BTreeMap<HostKey, Lack>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Lack {
    endpoints: usize,
    names: usize,
}

impl CensusTables {
    pub(super) fn new(inputs: Inputs, registry: Registry, rules: Rules) -> Self {
        let (services, endpoints) = registry.counted();
        Self { services, endpoints, routes: *rules.hosts(), traffic: rules.traffic, slices: *inputs.slices }
    }
}

impl CensusTaker {
    pub(crate) fn census(&self) -> Census {
        self.census
    }

    /// Brings the numbers up to date with the last commit.
    pub(crate) fn update(&mut self, engine: &Engine, tables: &CensusTables) {
        let census = &mut self.census;
        moved(&mut census.services, engine, &tables.services, SharedMap::len);
        moved(&mut census.endpoints_not_ready, engine, &tables.slices, not_ready);
        moved(&mut census.contested_hosts, engine, &tables.routes, |rules| usize::from(is_contested(rules)));
        moved(&mut census.repeated_subsets, engine, &tables.traffic, repeated_subsets);
        for key in touched(engine, tables) {
            let lack = lack(engine, tables, &key);
            let before = if lack == Lack::default() {
                self.lacking.remove(&key)
            } else {
                self.lacking.insert(key, lack)
            };
            let before = before.unwrap_or_default();
            let census = &mut self.census;
            census.ports_without_endpoints += lack.endpoints;
            census.ports_without_endpoints -= before.endpoints;
            census.ports_without_names += lack.names;
            census.ports_without_names -= before.names;
        }
    }
}

/// Moves a number by the difference that each changed row makes to it.
fn moved<K: pilot_incr::Key, V: pilot_incr::Value>(
    number: &mut usize,
    engine: &Engine,
    table: &Table<K, V>,
    count: impl Fn(&V) -> usize,
) {
    for (_, old, new) in engine.changes(table) {
        *number += new.map_or(0, |row| count(row));
        *number -= old.map_or(0, |row| count(row));
    }
}

fn not_ready(slice: &EndpointSlice) -> usize {
    slice.endpoints.iter().filter(|endpoint| endpoint.health == Health::Unhealthy).count()
}

/// Two rules are surely seen together if they are in one namespace, or if everybody sees both.
fn is_contested(rules: &SharedMap<RuleKey, Arc<RouteRule>>) -> bool {
    let mut namespaces: BTreeSet<&Name> = BTreeSet::new();
    let mut public = 0;
    rules.iter().any(|(_, rule)| {
        let export = &rule.spec.export_to;
        public += usize::from(export.is_empty() || export.is_public());
        !namespaces.insert(&rule.id.namespace) || public > 1
    })
}

fn repeated_subsets(rules: &SharedMap<RuleKey, Arc<Rule>>) -> usize {
    let mut names: BTreeSet<(&Name, &Name)> = BTreeSet::new();
    let for_everyone = rules.iter().filter(|(_, rule)| rule.spec.workload_selector.is_none());
    let subsets =
        for_everyone.flat_map(|(_, rule)| rule.spec.subsets.iter().map(|s| (&rule.id.namespace, &s.name)));
    subsets.filter(|subset| !names.insert(*subset)).count()
}

/// The hosts whose services or endpoints the last commit changed, each in the namespaces that have it.
fn touched(engine: &Engine, tables: &CensusTables) -> BTreeSet<HostKey> {
    let mut keys: BTreeSet<HostKey> =
        engine.changes(&tables.endpoints).into_iter().map(|(key, ..)| key.clone()).collect();
    for (host, old, new) in engine.changes(&tables.services) {
        let services = [old, new].into_iter().flatten().flat_map(|services| services.iter());
        keys.extend(services.map(|(_, service)| (service.namespace.clone(), host.clone())));
    }
    keys
}

fn lack(engine: &Engine, tables: &CensusTables, key: &HostKey) -> Lack {
    let (namespace, host) = key;
    let mut lack = Lack::default();
    let Some(services) = engine.get(&tables.services, host) else { return lack };
    let endpoints = engine.get(&tables.endpoints, key);
    let own = services.iter().map(|(_, service)| service);
    for service in own.filter(|service| service.namespace == *namespace && service.external_name.is_none()) {
        let serves = |name: &Name| {
            let all = endpoints.into_iter().flat_map(|shards| shards.iter());
            all.into_iter()
                .any(|(_, some)| some.iter().any(|endpoint: &Endpoint| endpoint.port_name == *name))
        };
        let without = || service.ports.iter().filter(|port| !serves(&port.name)).count();
        match service.resolution {
            Resolution::Static => lack.endpoints += without(),
            Resolution::Dns | Resolution::DnsRoundRobin => lack.names += without(),
            Resolution::DynamicDns | Resolution::Passthrough => (),
        }
    }
    lack
}
