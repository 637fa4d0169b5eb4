//! What becomes of connections to a service: what VirtualServices say about them, or straight to it.

use std::collections::BTreeSet;

use pilot_base::{Host, Name};
use pilot_mesh::{ClusterName, HostPlan, MESH, TrafficPlan};
use pilot_model::{ConfigId, Destination, HashKey, L4Destination, L4Match, Registry, Span, TrafficPolicy};

use super::merge::{Chain, L4Serve, Serve};
use super::part::{Maker, Place, Surroundings};
use crate::convert::wildcards;
use crate::dynamic_forward_proxy::dynamic_host;
use crate::network_filter::{TcpProxy, Upstream};
use crate::stat_name::StatName;
use crate::virtual_host::short_names;

/// The chains of a port that does not speak HTTP, or may not.
pub(super) fn chains<S: Surroundings>(maker: &Maker<'_, S>, place: &Place, cidrs: &[Name]) -> Vec<Chain> {
    if maker.port.protocol.is_tls() { tls_chains(maker, place, cidrs) } else { tcp_chains(maker, cidrs) }
}

fn tls_chains<S: Surroundings>(maker: &Maker<'_, S>, place: &Place, cidrs: &[Name]) -> Vec<Chain> {
    let mut cidrs = cidrs.to_vec();
    let mut out = Vec::new();
    let mut seen = BTreeSet::new();
    for rule in &maker.view.l4_routes {
        for route in rule.spec.tls.iter().filter(|route| leads_somewhere(&route.route)) {
            for wanted in route.matches.iter().filter(|wanted| maker.applies(&wanted.base)) {
                // From here on the rule's own word counts, also for what comes after it.
                if !wanted.base.destination_subnets.is_empty() && maker.port.number > 0 {
                    cidrs.clone_from(&wanted.base.destination_subnets);
                }
                // Who they are for is settled; of those that cannot be told apart on the wire the first counts.
                if seen.insert((&wanted.sni_hosts, &wanted.base.destination_subnets)) {
                    out.push(Chain {
                        server_names: wanted.sni_hosts.clone(),
                        cidrs: cidrs.clone(),
                        config: Some(rule.id.clone()),
                        ..Chain::all(maker.to_destinations(&route.route, &rule.id))
                    });
                }
            }
        }
    }
    if out.is_empty() {
        let dynamic = dynamic_host(maker.service).is_some();
        let named = !cidrs.is_empty() || dynamic || maker.is_told_by_name(place);
        let server_names = if named { maker.server_names() } else { Vec::new() };
        out.push(Chain { server_names, cidrs, ..Chain::all(maker.to_service()) });
    }
    out
}

fn tcp_chains<S: Surroundings>(maker: &Maker<'_, S>, cidrs: &[Name]) -> Vec<Chain> {
    let mut out: Vec<Chain> = Vec::new();
    let mut has_default = false;
    for rule in &maker.view.l4_routes {
        for route in rule.spec.tcp.iter().filter(|route| leads_somewhere(&route.route)) {
            let serve = || maker.to_destinations(&route.route, &rule.id);
            let applying = || route.matches.iter().filter(|wanted| maker.applies(wanted));
            let takes_all =
                |wanted: &L4Match| wanted.destination_subnets.is_empty() || maker.port.number == 0;
            if route.matches.is_empty() || applying().any(takes_all) {
                let config = Some(rule.id.clone());
                out.push(Chain { cidrs: cidrs.to_vec(), config, ..Chain::all(serve()) });
                return out;
            }
            let subnets: Vec<Name> =
                applying().flat_map(|wanted| wanted.destination_subnets.iter().cloned()).collect();
            if !subnets.is_empty() {
                let sorted = |cidrs: &[Name]| cidrs.iter().cloned().collect::<BTreeSet<_>>();
                // Envoy refuses two chains for the same addresses.
                has_default |= sorted(&subnets) == sorted(cidrs);
                out.push(Chain { cidrs: subnets, ..Chain::all(serve()) });
            }
        }
    }
    if !has_default {
        out.push(Chain { cidrs: cidrs.to_vec(), ..Chain::all(maker.to_service()) });
    }
    out
}

fn leads_somewhere(routes: &[L4Destination]) -> bool {
    routes.len() == 1 || routes.iter().any(|share| share.weight > 0)
}

impl<S: Surroundings> Maker<'_, S> {
    /// Do these clients make connections that match, at this port?
    fn applies(&self, wanted: &L4Match) -> bool {
        let gateways = wanted.gateways.is_empty() || wanted.gateways.iter().any(|gateway| gateway == MESH);
        let port = wanted.port.is_none_or(|port| port == self.port.number);
        let namespace =
            wanted.source_namespace.is_empty() || self.around.client() == Some(&wanted.source_namespace);
        gateways && port && namespace && wanted.source_labels.subset_of(&self.traits.labels)
    }

    /// Does only the name that a client asks for tell this service from others at the same place?
    fn is_told_by_name(&self, place: &Place) -> bool {
        let traits = self.traits;
        let addresses = self.service.addresses_from(&traits.caller);
        match addresses.first() {
            Some(address) => address.contains('/'),
            None => {
                let own = match self.service.registry {
                    Registry::External => wildcards(traits.ip_mode)[0],
                    Registry::Kubernetes => "0.0.0.0",
                };
                own == self.wildcard().as_str() && place.address == self.wildcard()
            }
        }
    }

    /// The names by which TLS clients ask for the service.
    fn server_names(&self) -> Vec<Name> {
        let mut out = vec![self.service.host.name().clone()];
        let absolute = self.settings.options.features.absolute_fqdn;
        for (_, alias) in &self.service.aliases {
            out.push(alias.name().clone());
            out.extend(absolute.then(|| Name::from(format!("{alias}."))));
            let short = short_names(alias.as_str(), &self.traits.dns_suffix, self.around.client());
            out.extend(short.into_iter().map(Name::from));
        }
        out
    }

    /// Straight to the service. A listener at another port than the service's only one leads there.
    fn to_service(&self) -> Serve {
        let port = match &self.service.ports[..] {
            [only] => only.number,
            _ => self.port.number,
        };
        let cluster = ClusterName::outbound(port, "", &self.service.host);
        // A port without its name: that is how these have always been called.
        let stats =
            StatName { service: Some(self.service), port, target_port: Some(0), ..StatName::default() };
        let proxy = TcpProxy::to(&cluster).named(stats, self.settings);
        let dynamic = dynamic_host(self.service);
        self.serve(self.tuned(proxy, self.plan.traffic.as_deref(), ""), cluster, dynamic)
    }

    fn to_destinations(&self, routes: &[L4Destination], rule: &ConfigId) -> Serve {
        let traffic = routes.first().and_then(|first| self.around.plan(&first.destination.host));
        let traffic = traffic.and_then(|plan| plan.traffic.as_deref());
        if let [only] = routes {
            let cluster = self.cluster(&only.destination);
            let subset = &only.destination.subset;
            let plan = self.around.plan(&only.destination.host);
            let stats = StatName {
                service: plan.and_then(|plan| plan.service()).map(|service| &**service),
                subset,
                port: self.port.number,
                port_name: &self.port.name,
                target_port: Some(0),
            };
            let proxy = TcpProxy::to(&cluster).named(stats, self.settings);
            return self.serve(self.tuned(proxy, traffic, subset), cluster, None);
        }
        let shares = routes.iter().filter(|share| share.weight > 0);
        let clusters: Vec<(Name, u32)> =
            shares.map(|share| (self.cluster(&share.destination), share.weight)).collect();
        let first = clusters.first().map(|(name, _)| name.clone()).unwrap_or_default();
        let stat_prefix = format!("{}.{}", rule.name, rule.namespace);
        let proxy = TcpProxy::towards(stat_prefix, Upstream::Weighted(clusters));
        self.serve(self.tuned(proxy, traffic, ""), first, None)
    }

    fn serve(&self, proxy: TcpProxy, cluster: Name, dynamic: Option<&Host>) -> Serve {
        Serve::L4(L4Serve { proxy, protocol: self.port.protocol, cluster, dynamic: dynamic.cloned() })
    }

    fn cluster(&self, to: &Destination) -> Name {
        let default = || {
            let plan = self.around.plan(&to.host);
            plan.map_or(self.port.number, |plan| plan.default_port(self.port.number))
        };
        let host = self.around.plan(&to.host).map_or(&to.host, HostPlan::real_host);
        ClusterName::outbound(to.port.unwrap_or_else(default), &to.subset, host)
    }

    fn tuned(&self, proxy: TcpProxy, traffic: Option<&TrafficPlan>, subset: &str) -> TcpProxy {
        tuned(proxy, traffic, subset, self.traits.idle_timeout)
    }
}

/// What DestinationRules say about connections. The policy of the rule as a whole, not of the port: that is where
/// listeners have always looked.
pub(crate) fn tuned(
    proxy: TcpProxy,
    traffic: Option<&TrafficPlan>,
    subset: &str,
    idle_timeout: Option<Span>,
) -> TcpProxy {
    let rule = traffic.map(|traffic| &traffic.rule);
    let policy = rule.and_then(|rule| rule.policy.as_ref());
    let of_subset = rule.and_then(|rule| rule.subsets.iter().find(|s| s.name == subset));
    let of_subset = of_subset.and_then(|subset| subset.policy.as_ref());
    let hashes = |policy: Option<&TrafficPolicy>| {
        let balancer = policy?.load_balancer.as_ref()?;
        Some(balancer.consistent_hash.as_ref().is_some_and(|hash| hash.key == HashKey::SourceIp(true)))
    };
    let tcp = policy.and_then(|p| p.connection_pool.as_ref()).and_then(|pool| pool.tcp.as_ref());
    let tunnel = if subset.is_empty() { policy } else { of_subset };
    TcpProxy {
        idle_timeout: tcp.and_then(|tcp| tcp.idle_timeout).or(idle_timeout),
        max_duration: tcp.and_then(|tcp| tcp.max_connection_duration),
        hash_source_ip: hashes(of_subset).or_else(|| hashes(policy)).unwrap_or(false),
        tunnel: tunnel.and_then(|policy| policy.tunnel.clone()),
        ..proxy
    }
}
