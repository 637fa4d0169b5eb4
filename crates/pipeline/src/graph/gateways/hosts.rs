//! Tables of routes for routers, one host at a time: a rule that changes costs its own hosts, however many others share
//! their table.

use std::sync::Arc;

use pilot_base::{Host, Name, SharedMap};
use pilot_envoy::{
    GatewayRoutes, GatewayVirtualHost, RoutedHost, gateway_routes, gateway_table, gateway_virtual_hosts,
};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{Layer, MergedGateway, MergedServer, RouteRule, gateway_rank, intersection};
use pilot_model::{ConfigId, Created};
use pilot_xds::{ChildMap, Encoded, Summary};

use super::{Merged, RouteAsker, RouteKey};
use crate::graph::audience::Audiences;
use crate::graph::plans::Plans;
use crate::graph::rules::Rules;

/// A VirtualService as it is bound to a Gateway.
type Binding = (Name, ConfigId);
/// In which order rules add to a host: by server, then by who sees them, then by age. What a server itself says about a
/// host comes behind its rules.
type SourceKey = (usize, u8, Created, Name, Name, usize);
const SERVER_ITSELF: u8 = u8::MAX;

/// What a rule means for one table.
#[derive(Clone, PartialEq)]
struct Bound {
    rank: u8,
    created: Created,
    /// A rule that names a Gateway twice adds its routes twice.
    times: usize,
    hosts: Vec<(usize, RoutedHost)>,
    routes: GatewayRoutes,
}

/// Why a host is in a table.
#[derive(Clone, PartialEq)]
struct Source {
    port: u16,
    redirect: bool,
    rule: Option<Binding>,
}

/// All that is said about a host of a table.
#[derive(Clone, PartialEq)]
struct HostSources {
    host: RoutedHost,
    rules: Vec<Binding>,
}

pub(super) fn declare(
    graph: &mut Graph,
    plans: Plans,
    rules: Rules,
    (audiences, merged): (Audiences, Merged),
) -> Table<RouteAsker, pilot_xds::Layer> {
    let inputs = plans.inputs;
    let routers = graph.map("router routes", &audiences.gateway_route, move |asker, reader| {
        reader.get(&merged, &asker.1).cloned()
    });
    let tables: Table<RouteKey, SharedMap<(), ()>> = graph.tally("gateway route tables wanted", |feeds| {
        feeds.from(&routers, |asker: &RouteAsker, merged: &Arc<MergedGateway>, out| {
            merged.routes.keys().for_each(|name| out.emit((asker.clone(), name.clone()), (), ()));
        });
    });
    let bound = declare_bound(graph, plans, rules, routers);
    let by_rules = declare_sources(graph, routers, bound);
    let entries = graph.map("gateway virtual hosts", &by_rules, move |key, reader| {
        let ((asker, table), rules) = key;
        let hosts = reader.get(&by_rules, key)?;
        let routes: Vec<GatewayRoutes> = rules
            .iter()
            .filter_map(|(gateway, id)| {
                let key = (gateway.clone(), id.clone(), (asker.clone(), table.clone()));
                reader.get(&bound, &key).map(|bound| bound.routes.clone())
            })
            .collect();
        let hosts = hosts.iter().map(|(_, host)| host.clone()).collect();
        Some(gateway_virtual_hosts(hosts, &routes, &asker.2, inputs.settings(reader)?))
    });
    let children: Table<RouteKey, ChildMap> = graph.group("gateway route entries", |feeds| {
        feeds.from(
            &entries,
            |(table, _): &(RouteKey, Vec<Binding>), hosts: &Vec<GatewayVirtualHost>, out| {
                for host in hosts {
                    out.emit(table.clone(), host.name.clone(), Some(host.entry.clone()));
                }
            },
        );
    });
    let tables = graph.map("gateway route tables", &tables, move |key, reader| {
        let ((_, set, _), name) = key;
        let first = reader.get(&merged, set)?.routes.get(name)?.first()?;
        let none = ChildMap::new();
        let children = reader.get(&children, key).unwrap_or(&none);
        Some(Arc::new(gateway_table(name, children, Summary::of(children), first.server.port)))
    });
    graph.group("gateway route tables by asker", |feeds| {
        feeds.from(&tables, |(asker, name): &RouteKey, table: &Arc<Encoded>, out| {
            out.emit(asker.clone(), name.clone(), Some(Arc::clone(table)));
        });
    })
}

/// Every rule for requests with every table it may have something to say in.
fn declare_bound(
    graph: &mut Graph,
    plans: Plans,
    rules: Rules,
    routers: Table<RouteAsker, Arc<MergedGateway>>,
) -> Table<(Name, ConfigId, RouteKey), Bound> {
    let by_gateway: Table<(Name, ConfigId), SharedMap<(), ()>> =
        graph.tally("request rules by gateway", |feeds| {
            feeds.from(&rules.resolved, |id: &ConfigId, rule: &Arc<RouteRule>, out| {
                let gateways = rule.spec.gateways.iter().filter(|_| !rule.spec.http.is_empty());
                gateways.for_each(|gateway| out.emit((gateway.clone(), id.clone()), (), ()));
            });
        });
    let tables: Table<(Name, RouteKey), SharedMap<(), ()>> =
        graph.tally("route tables by gateway", |feeds| {
            feeds.from(&routers, |asker: &RouteAsker, merged: &Arc<MergedGateway>, out| {
                for (name, servers) in &merged.routes {
                    for server in servers {
                        out.emit((server.gateway.clone(), (asker.clone(), name.clone())), (), ());
                    }
                }
            });
        });
    let keys = graph.product("gateway rule keys", &by_gateway, &tables);
    graph.map("gateway rules", &keys, move |(gateway, id, (asker, table)), reader| {
        let rule = reader.get(&rules.resolved, id)?;
        let servers = reader.get(&routers, asker)?.routes.get(table)?;
        let servers = servers.iter().enumerate().filter(|(_, server)| server.gateway == *gateway);
        let times = rule.spec.gateways.iter().filter(|name| *name == gateway).count();
        Some(Bound { times, ..bound(rule, servers, asker, plans, reader)? })
    })
}

fn bound<'s>(
    rule: &RouteRule,
    servers: impl Iterator<Item = (usize, &'s Arc<MergedServer>)>,
    (namespace, _, traits): &RouteAsker,
    plans: Plans,
    reader: &Reader<'_>,
) -> Option<Bound> {
    let settings = plans.inputs.settings(reader)?;
    let rank = gateway_rank(rule, namespace, settings.mesh)?;
    let layer = Layer::Namespace(namespace.clone());
    let plan = |host: &Host| plans.get(&layer, host, reader);
    let mut routes: Option<GatewayRoutes> = None;
    let mut hosts = Vec::new();
    for (index, server) in servers {
        let common = intersection(server, rule);
        if common.is_empty() {
            continue;
        }
        // The first server that they are made for also shapes them for the others.
        let made =
            routes.get_or_insert_with(|| gateway_routes(rule, server, namespace, &plan, (traits, settings)));
        if made.is_empty() {
            routes = None;
            continue;
        }
        hosts.extend(common.into_iter().map(|host| (index, routed(&host, server))));
    }
    Some(Bound { rank, created: rule.created, times: 1, hosts, routes: routes? })
}

fn routed(host: &Host, server: &MergedServer) -> RoutedHost {
    RoutedHost { host: host.lowercase(), port: server.server.port, redirect: server.server.redirects() }
}

/// The hosts of each table, together where the same rules make their routes.
fn declare_sources(
    graph: &mut Graph,
    routers: Table<RouteAsker, Arc<MergedGateway>>,
    bound: Table<(Name, ConfigId, RouteKey), Bound>,
) -> Table<(RouteKey, Vec<Binding>), SharedMap<Host, RoutedHost>> {
    let sources: Table<(RouteKey, Host), SharedMap<SourceKey, Source>> =
        graph.group("gateway host sources", |feeds| {
            feeds.from(&bound, |(gateway, id, table), bound: &Bound, out| {
                let every =
                    bound.hosts.iter().flat_map(|host| (0..bound.times).map(move |time| (host, time)));
                for ((index, host), time) in every {
                    let name = (id.name.clone(), id.namespace.clone());
                    let key = (*index, bound.rank, bound.created, name.0, name.1, time);
                    let rule = Some((gateway.clone(), id.clone()));
                    let source = Source { port: host.port, redirect: host.redirect, rule };
                    out.emit((table.clone(), host.host.clone()), key, source);
                }
            });
            feeds.from(&routers, |asker: &RouteAsker, merged: &Arc<MergedGateway>, out| {
                for (name, servers) in &merged.routes {
                    let redirecting = servers.iter().enumerate().filter(|(_, s)| s.server.redirects());
                    for (index, server) in redirecting {
                        for host in &server.hosts {
                            let host = Host::new(&host.text()).lowercase();
                            let key =
                                (index, SERVER_ITSELF, Created::default(), Name::empty(), Name::empty(), 0);
                            let source = Source { port: server.server.port, redirect: true, rule: None };
                            out.emit(((asker.clone(), name.clone()), host), key, source);
                        }
                    }
                }
            });
        });
    let hosts = graph.map("gateway hosts", &sources, move |key, reader| {
        let sources = reader.get(&sources, key)?;
        let first = sources.iter().next()?.1;
        let all = || sources.iter().map(|(_, source)| source);
        Some(HostSources {
            host: RoutedHost {
                host: key.1.clone(),
                port: first.port,
                redirect: all().any(|source| source.redirect),
            },
            rules: all().filter_map(|source| source.rule.clone()).collect(),
        })
    });
    graph.group("gateway hosts by rules", |feeds| {
        feeds.from(&hosts, |(table, host): &(RouteKey, Host), found: &HostSources, out| {
            out.emit((table.clone(), found.rules.clone()), host.clone(), found.host.clone());
        });
    })
}
