//! What routers are sent: the listeners of their Gateways, and the routes behind them.
//!
//! ```text
//!   gateways, services of a workload ─► GatewaySet ─merge─► MergedGateway ─► listeners
//!   VirtualServices by gateway × tables of routes ─► hosts of a table ─► hosts with the same rules ─► virtual hosts
//! ```

mod auto;
mod hosts;
mod select;

use std::sync::Arc;

use pilot_base::{Host, Issue, Name, SharedMap};
use pilot_envoy::{
    GatewayListener, GatewayPlace, GatewayRules, HttpTraits, ListenerTraits, PolicyTraits, RouteTraits,
    SecurityFilters, gateway_listener, gateway_places,
};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{GatewaySet, HostPlan, Layer, MergedGateway, RouteRule, gateway_rank, merge_gateways};
use pilot_model::{ConfigId, Created, Kind};
use pilot_xds::Children;

use super::audience::Audiences;
use super::plans::Plans;
use super::rules::Rules;

pub(super) use select::GatewayIndex;

/// Whose listeners: the namespace of the routers, what they serve, and what they are.
pub(super) type ListenerAsker =
    (Name, Arc<GatewaySet>, Arc<ListenerTraits>, Arc<HttpTraits>, Arc<PolicyTraits>);
type Filters = Table<Arc<PolicyTraits>, Arc<SecurityFilters>>;
/// Whose routes.
pub(super) type RouteAsker = (Name, Arc<GatewaySet>, Arc<RouteTraits>);
/// One table of routes.
type RouteKey = (RouteAsker, Name);
/// The order in which rules claim things: the oldest first.
type RuleKey = (Created, Name, Name);
type Merged = Table<Arc<GatewaySet>, Arc<MergedGateway>>;

#[derive(Clone, Copy)]
pub(super) struct Gateways {
    pub(super) listeners: Table<ListenerAsker, pilot_xds::Layer>,
    pub(super) routes: Table<RouteAsker, pilot_xds::Layer>,
    /// Servers that others stand in the way of.
    pub(super) issues: Table<ConfigId, Vec<Issue>>,
}

impl Gateways {
    pub(super) fn declare(
        graph: &mut Graph,
        plans: Plans,
        rules: Rules,
        (audiences, filters): (Audiences, Filters),
    ) -> Self {
        let inputs = plans.inputs;
        let merged = graph.map("merged gateways", &audiences.gateway_sets, move |set, reader| {
            let gateways: Vec<_> =
                set.gateways.iter().filter_map(|id| reader.get(&inputs.gateways, id)).cloned().collect();
            Some(Arc::new(merge_gateways(&gateways, set)))
        });
        let built = declare_listeners(graph, plans, rules, (audiences, merged, filters));
        let listeners = graph.group("gateway listeners by asker", |feeds| {
            feeds.from(
                &built,
                |(asker, place): &(ListenerAsker, GatewayPlace), listener: &GatewayListener, out| {
                    if let Some(bytes) = &listener.bytes {
                        out.emit(asker.clone(), place.listener_name(), Some(Arc::clone(bytes)));
                    }
                },
            );
        });
        let routes = hosts::declare(graph, plans, rules, (audiences, merged));
        Self { listeners, routes, issues: declare_issues(graph, merged, built) }
    }
}

fn declare_listeners(
    graph: &mut Graph,
    plans: Plans,
    rules: Rules,
    (audiences, merged, filters): (Audiences, Merged, Filters),
) -> Table<(ListenerAsker, GatewayPlace), GatewayListener> {
    let inputs = plans.inputs;
    // Most rules are about requests, and listeners have nothing to do with them.
    let l4_rules: Table<Name, SharedMap<RuleKey, Arc<RouteRule>>> =
        graph.group("connection rules by gateway", |feeds| {
            feeds.from(&rules.resolved, |_, rule: &Arc<RouteRule>, out| {
                if !(rule.spec.tcp.is_empty() && rule.spec.tls.is_empty()) {
                    let gateways = rule.spec.gateways.iter();
                    gateways.for_each(|gateway| out.emit(gateway.clone(), rule.order(), Arc::clone(rule)));
                }
            });
        });
    let auto = auto::AutoChains::declare(graph, plans, audiences);
    let places = graph.map("gateway places", &audiences.gateway_listener, move |asker, reader| {
        let (_, set, traits, ..) = asker;
        Some(gateway_places(reader.get(&merged, set)?, traits))
    });
    let places = graph.tally("gateway listener places", |feeds| {
        feeds.from(
            &places,
            |asker: &ListenerAsker, places: &std::collections::BTreeSet<GatewayPlace>, out| {
                places.iter().for_each(|place| out.emit((asker.clone(), place.clone()), (), ()));
            },
        );
    });
    graph.map("gateway listeners", &places, move |(asker, place), reader| {
        let (_, set, traits, http, policies) = asker;
        let merged = reader.get(&merged, set)?;
        let around = Around { plans, l4_rules, auto, asker, reader };
        let traits = (&**traits, &**http, &**reader.get(&filters, policies)?);
        Some(gateway_listener(place, merged, &around, traits, inputs.settings(reader)?))
    })
}

/// What a router of a namespace sees.
struct Around<'r, 'a> {
    plans: Plans,
    l4_rules: Table<Name, SharedMap<RuleKey, Arc<RouteRule>>>,
    auto: auto::AutoChains,
    asker: &'r ListenerAsker,
    reader: &'r Reader<'a>,
}

impl GatewayRules for Around<'_, '_> {
    fn rules(&self, gateway: &Name) -> Vec<Arc<RouteRule>> {
        let Some(mesh) = self.reader.get(&self.plans.inputs.mesh, &()) else { return Vec::new() };
        let rules = self.reader.get(&self.l4_rules, gateway).into_iter().flatten();
        let mut ranked: Vec<(u8, Arc<RouteRule>)> = rules
            .filter_map(|(_, rule)| Some((gateway_rank(rule, &self.asker.0, mesh)?, Arc::clone(rule))))
            .collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        ranked.into_iter().map(|(_, rule)| rule).collect()
    }

    fn auto_chains(&self) -> Children {
        self.auto.children(self.asker, self.reader)
    }

    fn plan(&self, host: &Host) -> Option<&HostPlan> {
        self.plans.get(&Layer::Namespace(self.asker.0.clone()), host, self.reader)
    }
}

fn declare_issues(
    graph: &mut Graph,
    merged: Merged,
    listeners: Table<(ListenerAsker, GatewayPlace), GatewayListener>,
) -> Table<ConfigId, Vec<Issue>> {
    let found: Table<ConfigId, SharedMap<(String, String), ()>> = graph.tally("gateway conflicts", |feeds| {
        feeds.from(&merged, |_, merged: &Arc<MergedGateway>, out| {
            for server in &merged.left_out {
                let path = format!("spec.servers[{}]", server.server);
                out.emit(server.gateway.clone(), (path, server.why.clone()), ());
            }
        });
        feeds.from(&listeners, |_, listener: &GatewayListener, out| {
            for chain in &listener.left_out {
                if let Some((namespace, name)) = chain.gateway.split_once('/') {
                    let id = ConfigId::new(namespace, name);
                    out.emit(id, ("spec.servers".to_owned(), chain.why.clone()), ());
                }
            }
        });
    });
    graph.map("gateway issues", &found, move |id, reader| {
        let found = reader.get(&found, id)?;
        let issue = |(path, why): &(String, String)| {
            Issue::warning(id.object(Kind::Gateway), path, format!("is not served: {why}"))
        };
        Some(found.iter().map(|(found, ())| issue(found)).collect())
    })
}
