//! Rules, found by the host they are written for.

use std::sync::Arc;

use pilot_base::{Host, Labels, Name, SharedMap};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{
    RouteIndex, RouteRule, RuleIndex, applies_to_mesh, l4_source_labels, lb_labels, merge_delegates,
    resolve_routes, resolve_rule, routes_connections, source_labels,
};
use pilot_model::{Config, ConfigId, Created, DestinationRule, ExportTo, LoadBalancer, Proxy, Sidecar};

use super::inputs::Inputs;

/// The order in which rules claim a host: the oldest first.
pub(super) type RuleKey = (Created, Name, Name);
pub(super) type Rule = Config<DestinationRule>;
/// A label that a rule asks clients for, and the namespace that sees the rule; empty for all of them.
type AskedLabel = (Name, Name, Name);
type AskedLabels = Table<AskedLabel, SharedMap<(), ()>>;

#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// VirtualServices with their names made whole, before others took the place of what they leave to them.
    pub(super) named: Table<ConfigId, Arc<RouteRule>>,
    /// VirtualServices with their names made whole.
    pub(super) resolved: Table<ConfigId, Arc<RouteRule>>,
    pub(super) resolved_rules: Table<ConfigId, Arc<Rule>>,
    routes: Table<Host, SharedMap<RuleKey, Arc<RouteRule>>>,
    /// VirtualServices about connections, by each pattern that covers one of their hosts.
    below: Table<Host, SharedMap<RuleKey, Arc<RouteRule>>>,
    pub(super) traffic: Table<Host, SharedMap<RuleKey, Arc<Rule>>>,
    sidecars: Table<Name, SharedMap<RuleKey, Arc<Config<Sidecar>>>>,
    /// Rules for some workloads only, by their namespace.
    selective: Table<Name, SharedMap<RuleKey, Arc<Rule>>>,
    /// Labels of clients that rules compare with those of endpoints.
    compared: Table<(), SharedMap<Name, ()>>,
    request_labels: AskedLabels,
    connection_labels: AskedLabels,
}

impl Rules {
    pub(super) fn declare(graph: &mut Graph, inputs: Inputs) -> Self {
        let named = graph.map("named virtual services", &inputs.virtual_services, move |id, reader| {
            let options = reader.get(&inputs.options, &())?;
            let rule = reader.share(&inputs.virtual_services, id)?;
            Some(unless_equal(resolve_routes(&rule, &options.domain), rule))
        });
        let resolved = graph.map("resolved virtual services", &named, move |id, reader| {
            let mesh = reader.get(&inputs.mesh, &())?;
            let rule = reader.get(&named, id)?;
            if rule.spec.http.iter().all(|route| route.delegate.is_none()) {
                return Some(Arc::clone(rule));
            }
            let find = |id: &ConfigId| reader.get(&named, id).map(|rule| &**rule);
            Some(Arc::new(merge_delegates(rule, mesh, find)))
        });
        let routes = graph.group("virtual services by host", |feeds| {
            feeds.from(&resolved, |_, rule: &Arc<RouteRule>, out| {
                for host in rule.spec.hosts.iter().filter(|_| applies_to_mesh(rule)) {
                    out.emit(host.clone(), rule.order(), Arc::clone(rule));
                }
            });
        });
        let below = graph.group("connection rules by pattern", |feeds| {
            feeds.from(&resolved, |_, rule: &Arc<RouteRule>, out| {
                let counts = applies_to_mesh(rule) && routes_connections(rule);
                let patterns = rule.spec.hosts.iter().filter(|_| counts).flat_map(Host::covering_patterns);
                let patterns: std::collections::BTreeSet<Host> = patterns.collect();
                patterns.into_iter().for_each(|pattern| out.emit(pattern, rule.order(), Arc::clone(rule)));
            });
        });
        let resolved_rules =
            graph.map("resolved destination rules", &inputs.destination_rules, move |id, reader| {
                let options = reader.get(&inputs.options, &())?;
                let rule = reader.share(&inputs.destination_rules, id)?;
                Some(unless_equal(resolve_rule(&rule, &options.domain), rule))
            });
        let traffic = graph.group("destination rules by host", |feeds| {
            feeds.from(&resolved_rules, |_, rule: &Arc<Rule>, out| {
                out.emit(rule.spec.host.clone(), rule.order(), Arc::clone(rule));
            });
        });
        let sidecars = graph.group("sidecars by namespace", |feeds| {
            feeds.from(&inputs.sidecars, |id, sidecar, out| {
                out.emit(id.namespace.clone(), sidecar.order(), Arc::new(sidecar.clone()));
            });
        });
        let selective = graph.group("selective destination rules", |feeds| {
            feeds.from(&resolved_rules, |id, rule: &Arc<Rule>, out| {
                if rule.spec.workload_selector.is_some() {
                    out.emit(id.namespace.clone(), rule.order(), Arc::clone(rule));
                }
            });
        });
        let compared = graph.tally("labels that rules compare", |feeds| {
            feeds.from(&resolved_rules, |_, rule: &Arc<Rule>, out| {
                load_balancers(&rule.spec).flat_map(lb_labels).for_each(|label| out.emit((), label, ()));
            });
        });
        let (request_labels, connection_labels) = declare_labels(graph, inputs, resolved);
        Self {
            named,
            resolved,
            resolved_rules,
            routes,
            below,
            traffic,
            sidecars,
            selective,
            compared,
            request_labels,
            connection_labels,
        }
    }

    /// Those labels of a proxy by which some rule that it sees tells requests apart.
    pub(super) fn request_labels(&self, reader: &Reader<'_>, proxy: &Proxy) -> Labels {
        asked(self.request_labels, reader, proxy)
    }

    /// Those labels of a proxy by which some rule that it sees tells connections apart.
    pub(super) fn connection_labels(&self, reader: &Reader<'_>, proxy: &Proxy) -> Labels {
        asked(self.connection_labels, reader, proxy)
    }

    /// Hosts that VirtualServices speak of, as keys.
    pub(super) fn hosts(&self) -> &Table<Host, SharedMap<RuleKey, Arc<RouteRule>>> {
        &self.routes
    }

    pub(super) fn routes(&self, reader: &Reader<'_>, host: &Host) -> Vec<Arc<RouteRule>> {
        reader.get(&self.routes, host).into_iter().flatten().map(|(_, rule)| Arc::clone(rule)).collect()
    }

    /// DestinationRules for some workloads of a namespace that are for one with these labels.
    pub(super) fn selecting(&self, reader: &Reader<'_>, namespace: &Name, labels: &Labels) -> Vec<ConfigId> {
        let rules = reader.get(&self.selective, namespace).into_iter().flatten().map(|(_, rule)| rule);
        let selects = |rule: &&Arc<Rule>| {
            rule.spec.workload_selector.as_ref().is_some_and(|selector| selector.subset_of(labels))
        };
        rules.filter(selects).map(|rule| rule.id.clone()).collect()
    }

    pub(super) fn compared<'a>(&self, reader: &Reader<'a>) -> impl Iterator<Item = &'a Name> + use<'a> {
        reader.get(&self.compared, &()).into_iter().flatten().map(|(label, ())| label)
    }

    pub(super) fn sidecars<'a>(
        &self,
        reader: &Reader<'a>,
        namespace: &Name,
    ) -> impl Iterator<Item = &'a Arc<Config<Sidecar>>> + use<'a> {
        reader.get(&self.sidecars, namespace).into_iter().flatten().map(|(_, sidecar)| sidecar)
    }
}

/// Most rules have whole names already: then there need not be a second copy.
fn unless_equal<T: PartialEq>(resolved: T, written: Arc<T>) -> Arc<T> {
    if resolved == *written { written } else { Arc::new(resolved) }
}

/// Every load balancer that a rule has.
fn load_balancers(rule: &DestinationRule) -> impl Iterator<Item = &LoadBalancer> {
    let policies = rule.policy.iter().chain(rule.subsets.iter().filter_map(|subset| subset.policy.as_ref()));
    policies.flat_map(|policy| {
        policy.load_balancer.iter().chain(policy.ports.iter().filter_map(|port| port.load_balancer.as_ref()))
    })
}

/// Only labels that a rule asks for can make a difference, so no others may keep proxies from sharing what they are sent.
fn declare_labels(
    graph: &mut Graph,
    inputs: Inputs,
    rules: Table<ConfigId, Arc<RouteRule>>,
) -> (AskedLabels, AskedLabels) {
    let asked = graph.map("labels asked for", &rules, move |id, reader| {
        let rule = reader.get(&rules, id)?;
        let mesh = reader.get(&inputs.mesh, &())?;
        let export = rule.spec.export_to.or(&mesh.virtual_service_export_to);
        let of = |labels: Vec<(&Name, &Name)>| by_namespace(labels, export, &id.namespace);
        let requests = of(source_labels(&rule.spec).collect());
        let connections = of(l4_source_labels(&rule.spec).collect());
        (!requests.is_empty() || !connections.is_empty()).then_some((requests, connections))
    });
    let requests = graph.tally("labels asked for requests", |feeds| {
        feeds.from(&asked, |_, (labels, _): &(Vec<AskedLabel>, Vec<AskedLabel>), out| {
            labels.iter().for_each(|label| out.emit(label.clone(), (), ()));
        });
    });
    let connections = graph.tally("labels asked for connections", |feeds| {
        feeds.from(&asked, |_, (_, labels): &(Vec<AskedLabel>, Vec<AskedLabel>), out| {
            labels.iter().for_each(|label| out.emit(label.clone(), (), ()));
        });
    });
    (requests, connections)
}

fn by_namespace(labels: Vec<(&Name, &Name)>, export: &ExportTo, own: &Name) -> Vec<AskedLabel> {
    let seen_by: Vec<Name> =
        if export.is_public() { vec![Name::empty()] } else { export.namespaces(own).into_iter().collect() };
    let asked = |(key, value): (&Name, &Name)| {
        let label = (key.clone(), value.clone());
        seen_by.iter().map(move |namespace| (namespace.clone(), label.0.clone(), label.1.clone()))
    };
    labels.into_iter().flat_map(asked).collect()
}

fn asked(table: AskedLabels, reader: &Reader<'_>, proxy: &Proxy) -> Labels {
    let counts = |key: &Name, value: &Name| {
        [Name::empty(), proxy.namespace.clone()]
            .into_iter()
            .any(|namespace| reader.get(&table, &(namespace, key.clone(), value.clone())).is_some())
    };
    let found = proxy.labels.iter().filter(|(key, value)| counts(key, value));
    found.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// VirtualServices as a row sees them.
pub(super) struct VirtualServices<'r, 'a> {
    pub(super) rules: Rules,
    pub(super) reader: &'r Reader<'a>,
}

impl RouteIndex for VirtualServices<'_, '_> {
    fn written_for(&self, host: &Host) -> Vec<Arc<RouteRule>> {
        self.rules.routes(self.reader, host)
    }

    fn below(&self, pattern: &Host) -> Vec<Arc<RouteRule>> {
        let rules = self.reader.get(&self.rules.below, pattern).into_iter().flatten();
        rules.map(|(_, rule)| Arc::clone(rule)).collect()
    }
}

/// DestinationRules as a row sees them.
pub(super) struct TrafficIndex<'r, 'a> {
    pub(super) rules: Rules,
    pub(super) reader: &'r Reader<'a>,
}

impl RuleIndex for TrafficIndex<'_, '_> {
    fn rules(&self, host: &Host) -> Vec<Arc<Rule>> {
        let rules = self.reader.get(&self.rules.traffic, host);
        rules.into_iter().flatten().map(|(_, rule)| Arc::clone(rule)).collect()
    }
}
