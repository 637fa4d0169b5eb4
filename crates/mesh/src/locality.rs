use std::sync::Arc;

use pilot_model::{LoadBalancer, LocalityLb, MeshConfig, Service, TrafficPolicy};

use crate::policy::for_subset;
use crate::traffic::TrafficPlan;

/// The rule's word on localities, or else the mesh's; nothing where it is switched off.
pub fn effective_locality<'a>(lb: Option<&'a LoadBalancer>, mesh: &'a MeshConfig) -> Option<&'a LocalityLb> {
    let locality = lb.and_then(|lb| lb.locality.as_ref()).or(mesh.locality.as_ref())?;
    locality.enabled.unwrap_or(true).then_some(locality)
}

/// Does it matter to any cluster of a host where its client is?
pub(crate) fn matters(services: &[Arc<Service>], traffic: &TrafficPlan, mesh: &MeshConfig) -> bool {
    let subsets = std::iter::once("").chain(traffic.rule.subsets.iter().map(|s| s.name.as_str()));
    subsets.into_iter().any(|subset| {
        let ports = services.iter().flat_map(|service| &service.ports);
        let policies = ports.map(|port| for_subset(&traffic.rule, subset, port.number));
        policies.flatten().any(|policy| matters_to(&policy, mesh))
    })
}

fn matters_to(policy: &TrafficPolicy, mesh: &MeshConfig) -> bool {
    let Some(setting) = effective_locality(policy.load_balancer.as_ref(), mesh) else { return false };
    // Without ejection Envoy never finds out that a locality is down, and would never leave it.
    !setting.distribute.is_empty() || policy.outlier_detection.is_some()
}
