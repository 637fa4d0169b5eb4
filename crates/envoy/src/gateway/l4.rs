//! Where connections go that a rule of a VirtualService speaks of.

use pilot_base::{Host, Name};
use pilot_mesh::{ClusterName, HostPlan};
use pilot_model::{ConfigId, Destination, L4Destination, Protocol, Span};

use crate::listener::{L4Serve, tuned};
use crate::network_filter::{TcpProxy, Upstream};
use crate::settings::Settings;
use crate::stat_name::StatName;

pub(super) struct L4Route<'a> {
    pub(super) rule: &'a ConfigId,
    pub(super) route: &'a [L4Destination],
    /// The port that was called, and what is spoken there.
    pub(super) port: u16,
    pub(super) port_name: &'a str,
    pub(super) protocol: Protocol,
    pub(super) idle_timeout: Option<Span>,
    pub(super) settings: Settings<'a>,
}

impl L4Route<'_> {
    /// Nothing if the rule leads nowhere.
    pub(super) fn serve<'p>(&self, plan: &impl Fn(&Host) -> Option<&'p HostPlan>) -> Option<L4Serve> {
        let first = self.route.first()?;
        let cluster = |to: &Destination| {
            let port = to.port.or_else(|| plan(&to.host).and_then(only_port)).unwrap_or(self.port);
            let host = plan(&to.host).map_or(&to.host, HostPlan::real_host);
            ClusterName::outbound(port, &to.subset, host)
        };
        let (proxy, cluster, subset) = match self.route {
            [only] => {
                let cluster = cluster(&only.destination);
                let subset = only.destination.subset.as_str();
                let stats = StatName {
                    service: plan(&only.destination.host)
                        .and_then(HostPlan::service)
                        .map(|service| &**service),
                    subset,
                    port: self.port,
                    port_name: self.port_name,
                    target_port: Some(0),
                };
                (TcpProxy::to(&cluster).named(stats, self.settings), cluster, subset)
            }
            several => {
                let shares = several.iter().filter(|share| share.weight > 0);
                let weighted: Vec<(Name, u32)> =
                    shares.map(|share| (cluster(&share.destination), share.weight)).collect();
                let first = weighted.first()?.0.clone();
                let stat_prefix = format!("{}.{}", self.rule.name, self.rule.namespace);
                (TcpProxy::towards(stat_prefix, Upstream::Weighted(weighted)), first, "")
            }
        };
        // What is said about the traffic to the first destination counts for all.
        let traffic = plan(&first.destination.host).and_then(|plan| plan.traffic.as_deref());
        let proxy = tuned(proxy, traffic, subset, self.idle_timeout);
        Some(L4Serve { proxy, protocol: self.protocol, cluster, dynamic: None })
    }
}

/// The port of a service that has only one.
pub(super) fn only_port(plan: &HostPlan) -> Option<u16> {
    match &plan.ports()[..] {
        [(_, only)] => Some(only.number),
        _ => None,
    }
}
