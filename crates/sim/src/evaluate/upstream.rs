use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use pilot_envoy_api::envoy::config::cluster::v3::Cluster;
use pilot_envoy_api::envoy::config::cluster::v3::cluster::common_lb_config::LocalityConfigSpecifier;
use pilot_envoy_api::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType, LbPolicy};
use pilot_envoy_api::envoy::config::core::v3::HealthStatus;
use pilot_envoy_api::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, LbEndpoint, LocalityLbEndpoints, lb_endpoint,
};

use super::listener::address_of;
use super::{Answer, Call, HeaderOps, HttpCall, Snapshot, tls};

/// Where a call goes on to, and how.
#[derive(Clone, Debug)]
pub struct Upstream {
    pub cluster: String,
    /// Who may be chosen, with their chances; empty if nobody can serve.
    pub endpoints: Vec<(SocketAddr, f64)>,
    /// The request as it arrives there; nothing for a connection that is not HTTP.
    pub request: Option<HttpCall>,
    pub response: HeaderOps,
    /// The server name it asks for, if TLS is spoken there, be it the proxy's or the application's own.
    pub tls: Option<String>,
    /// Is the server told how often a request was tried?
    pub counts_attempts: bool,
    /// After how many errors in a row an endpoint is left out for a while.
    pub ejects_after: Option<u32>,
    pub timeout: Option<Duration>,
    pub retry: Retry,
    /// Who is sent a copy, with the chance of it.
    pub mirrors: Vec<(SocketAddr, f64)>,
}

/// When a failed attempt is followed by another.
#[derive(Clone, Default, Debug)]
pub struct Retry {
    pub attempts: u32,
    pub on: Vec<String>,
    pub statuses: Vec<u32>,
    pub per_try_timeout: Option<Duration>,
    /// Is an endpoint that failed left out while there are others?
    pub elsewhere: bool,
}

impl Retry {
    /// Is an answer with this status followed by another attempt?
    pub fn is_for(&self, status: u16) -> bool {
        self.on.iter().any(|condition| match condition.as_str() {
            "5xx" => (500..600).contains(&status),
            "gateway-error" => (502..=504).contains(&status),
            "retriable-4xx" => status == 409,
            "retriable-status-codes" => self.statuses.contains(&u32::from(status)),
            _ => false,
        })
    }

    pub fn is_for_lost_connections(&self) -> bool {
        self.on.iter().any(|c| matches!(c.as_str(), "connect-failure" | "5xx" | "gateway-error"))
    }

    pub fn is_for_timeouts(&self) -> bool {
        self.on.iter().any(|c| matches!(c.as_str(), "5xx" | "gateway-error"))
    }
}

/// After how many errors in a row a cluster leaves an endpoint out.
pub(super) fn ejects_after(snapshot: &Snapshot, cluster: &str) -> Option<u32> {
    let outliers = snapshot.clusters.get(cluster)?.outlier_detection.as_ref()?;
    let enforced = outliers.enforcing_consecutive_5xx.unwrap_or(100) > 0;
    enforced.then(|| outliers.consecutive_5xx.unwrap_or(5))
}

pub(super) fn tcp(snapshot: &Snapshot, cluster: &str, call: &Call, key: Option<u64>) -> Answer {
    let inner = call.tls.as_ref().map(|tls| tls.server_name.clone());
    match endpoints_at_once(snapshot, cluster, call.to, key) {
        Some(endpoints) if !endpoints.is_empty() => Answer::Forward(Box::new(Upstream {
            cluster: cluster.to_owned(),
            endpoints,
            request: call.http.clone(),
            response: HeaderOps::default(),
            tls: tls::upstream(snapshot, cluster, None).or(inner),
            counts_attempts: false,
            ejects_after: None,
            timeout: None,
            retry: Retry::default(),
            mirrors: Vec::new(),
        })),
        _ => Answer::Refused,
    }
}

/// Who may serve what cannot wait for a cluster.
pub(super) fn endpoints_at_once(
    snapshot: &Snapshot,
    cluster: &str,
    to: SocketAddr,
    key: Option<u64>,
) -> Option<Vec<(SocketAddr, f64)>> {
    if snapshot.on_demand.contains(cluster) { None } else { endpoints(snapshot, cluster, to, key) }
}

/// Who may serve, with chances. Nothing if there is no such cluster. A key pins the choice where the cluster balances by
/// one.
pub(super) fn endpoints(
    snapshot: &Snapshot,
    cluster: &str,
    to: SocketAddr,
    key: Option<u64>,
) -> Option<Vec<(SocketAddr, f64)>> {
    let cluster = snapshot.clusters.get(cluster)?;
    let assignment = match discovery(cluster) {
        DiscoveryType::OriginalDst => return Some(vec![(to, 1.0)]),
        DiscoveryType::Eds => snapshot.endpoints.get(&cluster.name)?,
        _ => match &cluster.load_assignment {
            Some(assignment) => assignment,
            None => return Some(Vec::new()),
        },
    };
    let all = balanced(cluster, assignment, &snapshot.ejected);
    let pinned = matches!(cluster.lb_policy(), LbPolicy::RingHash | LbPolicy::Maglev);
    Some(match key {
        Some(key) if pinned && !all.is_empty() => {
            let at = usize::try_from(key % all.len() as u64).unwrap_or(0);
            vec![(all[at].0, 1.0)]
        }
        _ => all,
    })
}

fn discovery(cluster: &Cluster) -> DiscoveryType {
    match &cluster.cluster_discovery_type {
        Some(ClusterDiscoveryType::Type(kind)) => {
            DiscoveryType::try_from(*kind).unwrap_or(DiscoveryType::Static)
        }
        _ => DiscoveryType::Static,
    }
}

/// The first priority that has somebody healthy takes everything.
fn balanced(
    cluster: &Cluster,
    assignment: &ClusterLoadAssignment,
    ejected: &BTreeSet<(String, SocketAddr)>,
) -> Vec<(SocketAddr, f64)> {
    let by_locality = cluster.common_lb_config.as_ref().is_some_and(|config| {
        matches!(config.locality_config_specifier, Some(LocalityConfigSpecifier::LocalityWeightedLbConfig(_)))
    });
    let priorities: BTreeSet<u32> = assignment.endpoints.iter().map(|l| l.priority).collect();
    for priority in priorities {
        let localities = assignment.endpoints.iter().filter(|l| l.priority == priority);
        let mut weighted: Vec<(SocketAddr, f64)> = Vec::new();
        for locality in localities {
            let all = of_locality(locality, by_locality.then_some(()));
            weighted
                .extend(all.into_iter().filter(|(at, _)| !ejected.contains(&(cluster.name.clone(), *at))));
        }
        let total: f64 = weighted.iter().map(|(_, weight)| weight).sum();
        if total > 0.0 {
            return weighted.into_iter().map(|(address, weight)| (address, weight / total)).collect();
        }
    }
    Vec::new()
}

fn of_locality(locality: &LocalityLbEndpoints, by_locality: Option<()>) -> Vec<(SocketAddr, f64)> {
    let serves = |e: &&LbEndpoint| matches!(e.health_status(), HealthStatus::Unknown | HealthStatus::Healthy);
    let weight = |e: &LbEndpoint| f64::from(e.load_balancing_weight.unwrap_or(1));
    let serving: Vec<&LbEndpoint> = locality.lb_endpoints.iter().filter(serves).collect();
    let total: f64 = serving.iter().map(|e| weight(e)).sum();
    let factor = match by_locality {
        Some(()) => f64::from(locality.load_balancing_weight.unwrap_or(0)) / total.max(1.0),
        None => 1.0,
    };
    serving.into_iter().filter_map(|e| Some((address(e)?, weight(e) * factor))).collect()
}

fn address(endpoint: &LbEndpoint) -> Option<SocketAddr> {
    match &endpoint.host_identifier {
        Some(lb_endpoint::HostIdentifier::Endpoint(endpoint)) => address_of(endpoint.address.as_ref()?),
        _ => None,
    }
}
