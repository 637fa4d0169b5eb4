//! Which policies are for a workload.

use pilot_base::{Labels, Name};
use pilot_model::{ConfigId, PolicyTarget};

const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";
const GATEWAY_API: &str = "gateway.networking.k8s.io";

/// A workload, as policies see it.
#[derive(Clone, Copy)]
pub struct Workload<'a> {
    pub namespace: &'a Name,
    pub labels: &'a Labels,
    /// Do policies with a selector count for gateways of the Gateway API?
    pub gateways_are_selected: bool,
}

impl Workload<'_> {
    /// Is a policy, which stands in the workload's namespace or in the root namespace, for it?
    pub fn is_target(&self, id: &ConfigId, target: &PolicyTarget) -> bool {
        let selected = || target.selector.as_ref().is_none_or(|selector| selector.subset_of(self.labels));
        match self.labels.get(GATEWAY_NAME) {
            None => target.refs.is_empty() && selected(),
            Some(_) if target.refs.is_empty() => self.gateways_are_selected && selected(),
            Some(gateway) => {
                id.namespace == *self.namespace
                    && target.refs.iter().any(|to| {
                        (to.group.as_str(), to.kind.as_str()) == (GATEWAY_API, "Gateway")
                            && to.name == *gateway
                            && (to.namespace.is_empty() || to.namespace == *self.namespace)
                    })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Workload;
    use pilot_base::{Labels, Name};
    use pilot_model::{ConfigId, PolicyTarget, TargetRef};

    #[test]
    fn workloads_are_selected_and_gateways_are_referred_to() {
        let (namespace, id) = (Name::new("ns"), ConfigId::new("ns", "policy"));
        let is_target = |labels: &[(&str, &str)], target: &PolicyTarget| {
            let labels = Labels::new(labels.iter().copied());
            Workload { namespace: &namespace, labels: &labels, gateways_are_selected: true }
                .is_target(&id, target)
        };
        let selector = PolicyTarget { selector: Some(Labels::new([("app", "a")])), refs: vec![] };
        let gateway = TargetRef {
            group: "gateway.networking.k8s.io".into(),
            kind: "Gateway".into(),
            name: "gw".into(),
            namespace: Name::empty(),
        };
        let attached = PolicyTarget { selector: None, refs: vec![gateway] };
        assert!(is_target(&[("app", "a")], &selector));
        assert!(!is_target(&[("app", "b")], &selector));
        assert!(is_target(&[("app", "b")], &PolicyTarget::default()));
        assert!(!is_target(&[("app", "a")], &attached));
        assert!(is_target(&[("gateway.networking.k8s.io/gateway-name", "gw")], &attached));
        assert!(!is_target(&[("gateway.networking.k8s.io/gateway-name", "other")], &attached));
    }
}
