//! Where connections go that a rule of a VirtualService speaks of.

use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_mesh::{ClusterName, HostPlan};
use pilot_model::{ConfigId, Destination, L4Destination, Protocol, Service, Span};

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
                let service = plan(&only.destination.host).and_then(HostPlan::service);
                (self.named(TcpProxy::to(&cluster), service, only), cluster, only.destination.subset.as_str())
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
        let traffic = plan(&first.destination.host).and_then(|plan| plan.traffic.as_ref());
        let proxy = tuned(proxy, traffic, subset, self.idle_timeout);
        Some(L4Serve { proxy, protocol: self.protocol, cluster, dynamic: None })
    }
}

impl L4Route<'_> {
    /// By the pattern of the mesh, if it has one and the service is known.
    fn named(&self, proxy: TcpProxy, service: Option<&Arc<Service>>, to: &L4Destination) -> TcpProxy {
        let Some(service) = service else { return proxy };
        let stats = StatName {
            service: Some(service),
            subset: &to.destination.subset,
            port: self.port,
            port_name: self.port_name,
            target_port: Some(0),
        };
        match stats.by(&self.settings.mesh.outbound_cluster_stat_name) {
            Some(stat_prefix) => TcpProxy { stat_prefix, ..proxy },
            None => proxy,
        }
    }
}

/// The port of a service that has only one.
pub(super) fn only_port(plan: &HostPlan) -> Option<u16> {
    match &plan.ports()[..] {
        [(_, only)] => Some(only.number),
        _ => None,
    }
}
