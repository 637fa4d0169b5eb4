//! Where connections go that a rule of a VirtualService speaks of.

use pilot_base::{Host, Name};
use pilot_mesh::{ClusterName, HostPlan};
use pilot_model::{ConfigId, Destination, HashKey, L4Destination, Span, TrafficPolicy};

use crate::network_filter::{TcpProxy, Upstream};

pub(super) struct L4Route<'a> {
    pub(super) rule: &'a ConfigId,
    pub(super) route: &'a [L4Destination],
    /// The port that was called.
    pub(super) port: u16,
    pub(super) idle_timeout: Option<Span>,
}

impl L4Route<'_> {
    /// Nothing if the rule leads nowhere.
    pub(super) fn proxy<'p>(&self, plan: &impl Fn(&Host) -> Option<&'p HostPlan>) -> Option<TcpProxy> {
        let first = self.route.first()?;
        let cluster = |to: &Destination| cluster(to, plan(&to.host), self.port);
        let (proxy, subset) = match self.route {
            [only] => (TcpProxy::to(&cluster(&only.destination)), only.destination.subset.clone()),
            several => {
                let shares = several.iter().filter(|share| share.weight > 0);
                let weighted: Vec<(Name, u32)> =
                    shares.map(|share| (cluster(&share.destination), share.weight)).collect();
                if weighted.is_empty() {
                    return None;
                }
                let stat_prefix = format!("{}.{}", self.rule.name, self.rule.namespace);
                (TcpProxy::towards(stat_prefix, Upstream::Weighted(weighted)), Name::empty())
            }
        };
        Some(with_policy(proxy, plan(&first.destination.host), &subset, self.idle_timeout))
    }
}

/// What is said about the traffic to the first destination counts for all.
pub(super) fn with_policy(
    proxy: TcpProxy,
    plan: Option<&HostPlan>,
    subset: &str,
    idle_timeout: Option<Span>,
) -> TcpProxy {
    let rule = plan.and_then(|plan| plan.traffic.as_ref()).map(|traffic| &traffic.rule);
    let general = rule.and_then(|rule| rule.policy.as_ref());
    let named = rule.and_then(|rule| rule.subsets.iter().find(|s| s.name == subset));
    let own = named.and_then(|subset| subset.policy.as_ref());
    let tcp = general.and_then(|p| p.connection_pool.as_ref()).and_then(|pool| pool.tcp.as_ref());
    let balanced = own.filter(|policy| policy.load_balancer.is_some()).or(general);
    TcpProxy {
        idle_timeout: tcp.and_then(|tcp| tcp.idle_timeout).or(idle_timeout),
        max_duration: tcp.and_then(|tcp| tcp.max_connection_duration),
        hash_source_ip: balanced.is_some_and(by_source_ip),
        tunnel: if subset.is_empty() { general } else { own }.and_then(|policy| policy.tunnel.clone()),
        ..proxy
    }
}

fn by_source_ip(policy: &TrafficPolicy) -> bool {
    let hash = policy.load_balancer.as_ref().and_then(|lb| lb.consistent_hash.as_ref());
    hash.is_some_and(|hash| hash.key == HashKey::SourceIp(true))
}

fn cluster(destination: &Destination, plan: Option<&HostPlan>, called: u16) -> Name {
    let port = destination.port.or_else(|| plan.and_then(only_port)).unwrap_or(called);
    ClusterName::outbound(port, &destination.subset, &destination.host)
}

/// The port of a service that has only one.
pub(super) fn only_port(plan: &HostPlan) -> Option<u16> {
    match &plan.ports()[..] {
        [(_, only)] => Some(only.number),
        _ => None,
    }
}
