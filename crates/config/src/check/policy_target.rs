//! Which workloads a policy is for: a part of many kinds.

use std::collections::BTreeMap;

use pilot_api::selector as api;
use pilot_base::Labels;
use pilot_model::{PolicyTarget, TargetRef};

use super::Check;

/// What a policy can be attached to.
const TARGETS: [(&str, &str); 4] = [
    ("", "Service"),
    ("networking.istio.io", "ServiceEntry"),
    ("gateway.networking.k8s.io", "Gateway"),
    ("gateway.networking.k8s.io", "GatewayClass"),
];

impl Check<'_> {
    /// The fields `selector`, `targetRef` and `targetRefs`, of which only one can be there.
    pub(crate) fn policy_target(
        &mut self,
        selector: Option<api::WorkloadSelector>,
        target_ref: Option<api::PolicyTargetReference>,
        target_refs: Vec<api::PolicyTargetReference>,
    ) -> PolicyTarget {
        let given = [selector.is_some(), target_ref.is_some(), !target_refs.is_empty()];
        if given.into_iter().filter(|given| *given).count() > 1 {
            self.reject("spec", "only one of selector, targetRef and targetRefs can be given");
        }
        let one = target_ref.into_iter().map(|target| ("spec.targetRef".to_owned(), target));
        let many =
            target_refs.into_iter().enumerate().map(|(i, target)| (format!("spec.targetRefs[{i}]"), target));
        PolicyTarget {
            selector: selector.map(|selector| self.selector(selector.match_labels)),
            refs: one.chain(many).map(|(path, target)| self.target_ref(&path, target)).collect(),
        }
    }

    /// The labels of `spec.selector`.
    pub(crate) fn selector(&mut self, labels: BTreeMap<String, String>) -> Labels {
        let path = "spec.selector.matchLabels";
        if labels.is_empty() {
            self.warn("spec.selector", "has no labels, so that it selects every workload");
        }
        for (key, value) in &labels {
            if key.is_empty() {
                self.reject(path, format!("{value:?} stands under an empty key"));
            }
            if key.contains('*') || value.contains('*') {
                self.reject(path, format!("{key}={value} has a wildcard, which labels cannot have"));
            }
        }
        Labels::new(labels)
    }

    fn target_ref(&mut self, path: &str, target: api::PolicyTargetReference) -> TargetRef {
        if target.name.is_empty() {
            self.reject(format!("{path}.name"), "is missing");
        }
        if !target.namespace.is_empty() {
            let message = "must not be given: a policy can only be attached to what is in its own namespace";
            self.reject(format!("{path}.namespace"), message);
        }
        let group = if target.group == "core" { "" } else { target.group.as_str() };
        if !TARGETS.contains(&(group, target.kind.as_str())) {
            let message = format!(
                "{}/{} is nothing a policy can be attached to: use a Service, a ServiceEntry, a Gateway or a \
                 GatewayClass of Kubernetes' Gateway API",
                target.group, target.kind
            );
            self.reject(format!("{path}.kind"), message);
        }
        TargetRef {
            group: group.into(),
            kind: target.kind.into(),
            name: target.name.into(),
            namespace: target.namespace.into(),
        }
    }
}
