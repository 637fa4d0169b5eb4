//! Where endpoints are, and what that means to those who call them.

use std::borrow::Cow;
use std::sync::Arc;

use pilot_base::{Labels, Name};
use pilot_model::{
    LoadBalancer, Locality, LocalityLb, MeshConfig, OutlierDetection, Resolution, Service,
    TrafficDistribution, TrafficPolicy, ZoneAwareLb,
};

use crate::policy::for_subset;
use crate::traffic::TrafficPlan;

/// Where a client is, as far as any rule asks for it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Place {
    pub locality: Locality,
    /// Its labels that some rule compares with those of endpoints.
    pub labels: Labels,
}

/// What is made of localities.
#[derive(Clone, PartialEq, Debug)]
pub enum LbSetting<'a> {
    Locality {
        setting: Cow<'a, LocalityLb>,
        /// Does failover need nobody who ejects endpoints?
        force: bool,
    },
    ZoneAware(&'a ZoneAwareLb),
}

/// The rule's word on localities, else the service's, else the mesh's; nothing where it is switched off.
pub fn effective_locality<'a>(
    lb: Option<&'a LoadBalancer>,
    service: &Service,
    mesh: &'a MeshConfig,
) -> Option<LbSetting<'a>> {
    let on = |setting: &'a LocalityLb| {
        let setting = setting.enabled.unwrap_or(true).then_some(setting)?;
        Some(LbSetting::Locality { setting: Cow::Borrowed(setting), force: false })
    };
    if let Some(lb) = lb {
        if let Some(setting) = &lb.zone_aware {
            return Some(LbSetting::ZoneAware(setting));
        }
        if let Some(setting) = &lb.locality {
            return on(setting);
        }
    }
    if let Some(setting) = preferred(service.traffic_distribution) {
        return Some(LbSetting::Locality { setting: Cow::Owned(setting), force: true });
    }
    match &mesh.zone_aware {
        Some(setting) => Some(LbSetting::ZoneAware(setting)),
        None => mesh.locality.as_ref().and_then(on),
    }
}

/// What a service's own preference means: near by these labels, the first ones counting most.
fn preferred(distribution: TrafficDistribution) -> Option<LocalityLb> {
    let labels = distribution_labels(distribution);
    (!labels.is_empty()).then(|| LocalityLb {
        enabled: Some(true),
        failover_priority: labels.iter().map(|label| Name::new(label)).collect(),
        ..LocalityLb::default()
    })
}

fn distribution_labels(distribution: TrafficDistribution) -> &'static [&'static str] {
    const NEAR: [&str; 5] = [
        "topology.istio.io/network",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "topology.istio.io/subzone",
        NODE,
    ];
    match distribution {
        TrafficDistribution::Any => &[],
        TrafficDistribution::PreferSameZone => &NEAR[..3],
        TrafficDistribution::PreferSameNode => &NEAR,
    }
}

/// The labels of clients that a setting asks for.
pub fn compared_labels(priority: &[Name]) -> impl Iterator<Item = Name> {
    // With a value of its own the client's does not matter.
    priority.iter().filter(|label| !label.contains('=')).cloned()
}

/// The labels of clients that a service's own preference asks for.
pub fn service_labels(service: &Service) -> impl Iterator<Item = Name> {
    let node = service.node_local.then_some(&NODE);
    distribution_labels(service.traffic_distribution).iter().chain(node).map(|label| Name::new(label))
}

/// The label that says on which node a client runs.
pub const NODE: &str = "kubernetes.io/hostname";

/// All labels of clients that a load balancer asks for.
pub fn lb_labels(lb: &LoadBalancer) -> impl Iterator<Item = Name> {
    let locality = lb.locality.iter().flat_map(|setting| compared_labels(&setting.failover_priority));
    locality.chain(lb.zone_aware.iter().flat_map(|setting| compared_labels(&setting.failover_priority)))
}

impl LbSetting<'_> {
    /// Does it matter where a client is? Failover needs somebody who finds out that a place is down.
    pub fn matters(&self, ejection: Option<&OutlierDetection>) -> bool {
        match self {
            Self::Locality { setting, force } => {
                !setting.distribute.is_empty() || ejection.is_some() || *force
            }
            Self::ZoneAware(setting) => setting.enabled.unwrap_or(true),
        }
    }
}

/// Does it matter to any cluster of a host where its client is?
pub(crate) fn matters(services: &[Arc<Service>], traffic: Option<&TrafficPlan>, mesh: &MeshConfig) -> bool {
    // Where traffic goes where it was going, nobody chooses.
    let choosing = services.iter().filter(|service| service.resolution != Resolution::DynamicDns);
    let mut ports = choosing.flat_map(|service| service.ports.iter().map(move |port| (service, port.number)));
    let Some(traffic) = traffic else {
        return ports.any(|(service, _)| matters_to(None, service, mesh));
    };
    let subsets = || std::iter::once("").chain(traffic.rule.subsets.iter().map(|s| s.name.as_str()));
    ports.any(|(service, port)| {
        subsets().any(|subset| {
            let policy = for_subset(&traffic.rule, subset, port);
            matters_to(policy.as_deref(), service, mesh)
        })
    })
}

fn matters_to(policy: Option<&TrafficPolicy>, service: &Service, mesh: &MeshConfig) -> bool {
    let setting = effective_locality(policy.and_then(|p| p.load_balancer.as_ref()), service, mesh);
    // The mesh's own ejection is part of clusters, and so are endpoints that are looked up; others are not told of it.
    let looked_up = matches!(service.resolution, Resolution::Dns | Resolution::DnsRoundRobin);
    let by_mesh = mesh.default_traffic_policy.outlier_detection.as_ref().filter(|_| looked_up);
    let ejection = policy.and_then(|p| p.outlier_detection.as_ref()).or(by_mesh);
    setting.is_some_and(|setting| setting.matters(ejection))
}
