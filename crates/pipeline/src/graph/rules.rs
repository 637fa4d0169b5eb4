//! Rules, found by the host they are written for.

use std::sync::Arc;

use pilot_base::{Host, Name, SharedMap};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{RouteRule, RuleIndex, applies_to_mesh, lb_labels, resolve_routes, resolve_rule};
use pilot_model::{Config, ConfigId, Created, DestinationRule, LoadBalancer, Sidecar};

use super::inputs::Inputs;

/// The order in which rules claim a host: the oldest first.
type RuleKey = (Created, Name, Name);
pub(super) type Rule = Config<DestinationRule>;

#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// VirtualServices with their names made whole.
    pub(super) resolved: Table<ConfigId, Arc<RouteRule>>,
    pub(super) resolved_rules: Table<ConfigId, Arc<Rule>>,
    routes: Table<Host, SharedMap<RuleKey, Arc<RouteRule>>>,
    traffic: Table<Host, SharedMap<RuleKey, Arc<Rule>>>,
    sidecars: Table<Name, SharedMap<RuleKey, Arc<Config<Sidecar>>>>,
    /// Labels of clients that rules compare with those of endpoints.
    compared: Table<(), SharedMap<Name, ()>>,
}

impl Rules {
    pub(super) fn declare(graph: &mut Graph, inputs: Inputs) -> Self {
        let resolved = graph.map("resolved virtual services", &inputs.virtual_services, move |id, reader| {
            let options = reader.get(&inputs.options, &())?;
            Some(Arc::new(resolve_routes(reader.get(&inputs.virtual_services, id)?, &options.domain)))
        });
        let routes = graph.group("virtual services by host", |feeds| {
            feeds.from(&resolved, |_, rule: &Arc<RouteRule>, out| {
                for host in rule.spec.hosts.iter().filter(|_| applies_to_mesh(rule)) {
                    out.emit(host.clone(), rule.order(), Arc::clone(rule));
                }
            });
        });
        let resolved_rules =
            graph.map("resolved destination rules", &inputs.destination_rules, move |id, reader| {
                let options = reader.get(&inputs.options, &())?;
                Some(Arc::new(resolve_rule(reader.get(&inputs.destination_rules, id)?, &options.domain)))
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
        let compared = graph.tally("labels that rules compare", |feeds| {
            feeds.from(&resolved_rules, |_, rule: &Arc<Rule>, out| {
                load_balancers(&rule.spec).flat_map(lb_labels).for_each(|label| out.emit((), label, ()));
            });
        });
        Self { resolved, resolved_rules, routes, traffic, sidecars, compared }
    }

    /// Hosts that VirtualServices speak of, as keys.
    pub(super) fn hosts(&self) -> &Table<Host, SharedMap<RuleKey, Arc<RouteRule>>> {
        &self.routes
    }

    pub(super) fn routes(&self, reader: &Reader<'_>, host: &Host) -> Vec<Arc<RouteRule>> {
        reader.get(&self.routes, host).into_iter().flatten().map(|(_, rule)| Arc::clone(rule)).collect()
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

/// Every load balancer that a rule has.
fn load_balancers(rule: &DestinationRule) -> impl Iterator<Item = &LoadBalancer> {
    let policies = rule.policy.iter().chain(rule.subsets.iter().filter_map(|subset| subset.policy.as_ref()));
    policies.flat_map(|policy| {
        policy.load_balancer.iter().chain(policy.ports.iter().filter_map(|port| port.load_balancer.as_ref()))
    })
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
