//! What is wrong with rules that can only be known by looking at others.

use std::collections::BTreeSet;

use pilot_base::{Host, Issue, ObjectRef, SharedMap};
use pilot_envoy::Fault;
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{DelegateProblem, RouteRule, RuleIndex as _, check_delegate, delegate_id};
use pilot_model::{ConfigId, Destination, Kind, MeshConfig, RegistryMerge, ServiceEntry};

use super::inputs::Inputs;
use super::registry::Registry;
use super::rules::{Rules, TrafficIndex};

/// Issues by the object that has them.
#[derive(Clone, Copy)]
pub(crate) struct IssueTables {
    pub virtual_services: Table<ConfigId, Vec<Issue>>,
    pub service_entries: Table<ConfigId, Vec<Issue>>,
    pub destination_rules: Table<ConfigId, Vec<Issue>>,
    pub gateways: Table<ConfigId, Vec<Issue>>,
    pub envoy_filters: Table<ConfigId, Vec<Issue>>,
    pub request_authentications: Table<ConfigId, Vec<Issue>>,
    pub network_gateways: Table<ObjectRef, Vec<Issue>>,
}

impl IssueTables {
    pub(super) fn declare(
        graph: &mut Graph,
        inputs: Inputs,
        registry: Registry,
        rules: Rules,
        (gateways, faults, request_authentications): (
            Table<ConfigId, Vec<Issue>>,
            Table<ConfigId, SharedMap<Fault, ()>>,
            Table<ConfigId, Vec<Issue>>,
        ),
    ) -> Self {
        let virtual_services = graph.map("virtual service issues", &rules.named, move |id, reader| {
            let check = Check { registry, rules, reader };
            let rule = reader.get(&rules.named, id)?;
            let mut issues = check.routes(rule);
            issues.extend(check.delegates(rule, reader.get(&inputs.mesh, &())?));
            (!issues.is_empty()).then_some(issues)
        });
        let destination_rules =
            graph.map("destination rule issues", &rules.resolved_rules, move |id, reader| {
                let host = &reader.get(&rules.resolved_rules, id)?.spec.host;
                let known = host.is_wildcard() || !registry.services(reader, host).is_empty();
                (!known).then(|| vec![unknown_host(id.object(Kind::DestinationRule), "spec.host", host)])
            });
        let envoy_filters = graph.map("envoy filter issues", &faults, move |id, reader| {
            let issue = |(fault, ()): (&Fault, &())| {
                let path = format!("spec.configPatches[{}].patch", fault.index);
                Issue::error(id.object(Kind::EnvoyFilter), path, fault.message.clone())
            };
            Some(reader.get(&faults, id)?.iter().map(issue).collect())
        });
        let service_entries =
            graph.map("service entry issues", &inputs.service_entries, move |id, reader| {
                let mut issues = contested_hosts(id, inputs, registry, reader);
                issues.extend(split_hosts(id, inputs, registry, reader));
                (!issues.is_empty()).then_some(issues)
            });
        Self {
            virtual_services,
            service_entries,
            destination_rules,
            gateways,
            envoy_filters,
            request_authentications,
            network_gateways: registry.networks.issues,
        }
    }
}

/// Hosts of a registry's service that an earlier registry has too, if that is to be reported.
fn contested_hosts(id: &ConfigId, inputs: Inputs, registry: Registry, reader: &Reader<'_>) -> Vec<Issue> {
    let merge = reader.get(&inputs.options, &()).map(|options| options.registry_merge);
    let entry = reader.get(&inputs.service_entries, id).filter(|_| merge == Some(RegistryMerge::Conflict));
    let Some((entry, own)) = entry.and_then(|entry| Some((entry, entry.spec.registry.as_ref()?))) else {
        return Vec::new();
    };
    let earlier = |(i, host): (usize, &Host)| {
        let ranks = registry.ranks(reader, &(id.namespace.clone(), host.clone()));
        let (_, first) = ranks.into_iter().find(|(rank, _)| *rank < own.rank)?;
        let message = format!("{host} is also registered as {}, which comes first and counts", first.name);
        Some(
            Issue::error(id.object(Kind::ServiceEntry), format!("spec.hosts[{i}]"), message)
                .at(own.name.as_str()),
        )
    };
    entry.spec.hosts.iter().enumerate().filter_map(earlier).collect()
}

/// Hosts that an earlier registry has at other ports: no cluster has the instances of both, and rules that split between
/// them find nobody.
fn split_hosts(id: &ConfigId, inputs: Inputs, registry: Registry, reader: &Reader<'_>) -> Vec<Issue> {
    let entry = reader.get(&inputs.service_entries, id);
    let Some((entry, own)) = entry.and_then(|entry| Some((entry, entry.spec.registry.as_ref()?))) else {
        return Vec::new();
    };
    let numbers =
        |entry: &ServiceEntry| entry.ports.iter().map(|port| port.number).collect::<BTreeSet<u16>>();
    let mine = numbers(&entry.spec);
    let split = |(i, host): (usize, &Host)| {
        let services = registry.services(reader, host);
        let of_namespace = services.iter().filter(|service| service.namespace == id.namespace);
        let mut others = of_namespace.filter_map(|service| {
            let other = ConfigId::new(service.object.namespace.clone(), service.object.name.clone());
            let spec = &reader.get(&inputs.service_entries, &other)?.spec;
            (spec.registry.as_ref()?.rank < own.rank).then(|| (other, numbers(spec)))
        });
        let (other, theirs) = others.find(|(_, theirs)| theirs.is_disjoint(&mine))?;
        let listed = |ports: &BTreeSet<u16>| ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
        let message = format!(
            "{host} is called at port {} here and at port {} as {}, so no rule reaches both; say one in istio-service-port or --registryServicePort",
            listed(&mine),
            listed(&theirs),
            other.name
        );
        let object = id.object(Kind::ServiceEntry);
        Some(Issue::warning(object, format!("spec.hosts[{i}]"), message).at(own.name.as_str()))
    };
    entry.spec.hosts.iter().enumerate().filter_map(split).collect()
}

struct Check<'r, 'a> {
    registry: Registry,
    rules: Rules,
    reader: &'r Reader<'a>,
}

impl Check<'_, '_> {
    fn routes(&self, rule: &RouteRule) -> Vec<Issue> {
        let object = rule.id.object(Kind::VirtualService);
        let mut issues = Vec::new();
        let mut check = |path: String, to: &Destination| issues.extend(self.destination(&object, &path, to));
        for (i, http) in rule.spec.http.iter().enumerate() {
            for (j, share) in http.route.iter().enumerate() {
                check(format!("spec.http[{i}].route[{j}].destination"), &share.destination);
            }
            if let Some(mirror) = &http.mirror {
                check(format!("spec.http[{i}].mirror"), mirror);
            }
            for (j, mirror) in http.mirrors.iter().enumerate() {
                check(format!("spec.http[{i}].mirrors[{j}].destination"), &mirror.destination);
            }
        }
        for (i, tls) in rule.spec.tls.iter().enumerate() {
            for (j, share) in tls.route.iter().enumerate() {
                check(format!("spec.tls[{i}].route[{j}].destination"), &share.destination);
            }
        }
        for (i, tcp) in rule.spec.tcp.iter().enumerate() {
            for (j, share) in tcp.route.iter().enumerate() {
                check(format!("spec.tcp[{i}].route[{j}].destination"), &share.destination);
            }
        }
        issues
    }

    /// Routes that are left to another VirtualService, and cannot be.
    fn delegates(&self, rule: &RouteRule, mesh: &MeshConfig) -> Vec<Issue> {
        let mut issues = Vec::new();
        for (i, route) in rule.spec.http.iter().enumerate() {
            let Some(delegate) = &route.delegate else { continue };
            let id = delegate_id(delegate, &rule.id);
            let found = self.reader.get(&self.rules.named, &id).map(|rule| &**rule);
            let Err(problem) = check_delegate(found, &rule.id, mesh) else { continue };
            let message = match problem {
                DelegateProblem::Missing => format!("there is no VirtualService {id}: the route is left out"),
                DelegateProblem::HasHosts => {
                    format!(
                        "{id} has hosts of its own; one that others delegate to has none: the route is left out"
                    )
                }
                DelegateProblem::Hidden => {
                    let namespace = &rule.id.namespace;
                    format!("{id} is not exported to {namespace}; add it to exportTo: the route is left out")
                }
            };
            let object = rule.id.object(Kind::VirtualService);
            issues.push(Issue::warning(object, format!("spec.http[{i}].delegate"), message));
        }
        issues
    }

    fn destination(&self, object: &ObjectRef, path: &str, to: &Destination) -> Option<Issue> {
        let services = self.registry.services(self.reader, &to.host);
        if services.is_empty() {
            return Some(unknown_host(object.clone(), &format!("{path}.host"), &to.host));
        }
        let known_port = |port: u16| services.iter().any(|service| service.port(port).is_some());
        if let Some(port) = to.port.filter(|port| !known_port(*port)) {
            let message =
                format!("{} has no port {port}: requests sent there are answered with 503", to.host);
            return Some(Issue::warning(object.clone(), format!("{path}.port"), message));
        }
        if to.subset.is_empty() || self.has_subset(to) {
            return None;
        }
        let message = format!(
            "no DestinationRule gives {} a subset {}: requests sent there are answered with 503",
            to.host, to.subset
        );
        Some(Issue::warning(object.clone(), format!("{path}.subset"), message))
    }

    fn has_subset(&self, to: &Destination) -> bool {
        let index = TrafficIndex { rules: self.rules, reader: self.reader };
        let mut written_for = std::iter::once(to.host.clone()).chain(to.host.covering_patterns());
        written_for.any(|host| {
            index
                .rules(&host)
                .iter()
                .any(|rule| rule.spec.subsets.iter().any(|subset| subset.name == to.subset))
        })
    }
}

fn unknown_host(object: ObjectRef, path: &str, host: &Host) -> Issue {
    Issue::warning(object, path, format!("no service is called {host}"))
}
