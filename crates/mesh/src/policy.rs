use std::borrow::Cow;

use pilot_model::{DestinationRule, MeshConfig, TlsMode, TrafficPolicy};

/// The policy for one port. What is said for a port replaces what is said in general, also where it is silent.
pub fn for_port(policy: &TrafficPolicy, port: u16) -> Cow<'_, TrafficPolicy> {
    match policy.ports.iter().find(|p| p.port == port) {
        None => Cow::Borrowed(policy),
        Some(port) => Cow::Owned(TrafficPolicy {
            load_balancer: port.load_balancer.clone(),
            connection_pool: port.connection_pool.clone(),
            outlier_detection: port.outlier_detection.clone(),
            tls: port.tls.clone(),
            ..TrafficPolicy::default()
        }),
    }
}

/// The policy of a rule for a port and, if one is named, a subset: the subset's words count over the rule's.
pub fn for_subset<'a>(rule: &'a DestinationRule, subset: &str, port: u16) -> Option<Cow<'a, TrafficPolicy>> {
    let general = rule.policy.as_ref().map(|policy| for_port(policy, port));
    overridden(general, rule, subset, port)
}

/// The same for a cluster, over the mesh's own limits and ejection.
pub fn for_cluster<'a>(
    rule: Option<&'a DestinationRule>,
    subset: &str,
    port: u16,
    mesh: &MeshConfig,
) -> Option<Cow<'a, TrafficPolicy>> {
    let general = rule.and_then(|rule| rule.policy.as_ref()).map(|policy| for_port(policy, port));
    let general = with_default(general, mesh);
    match rule {
        Some(rule) => overridden(general, rule, subset, port),
        None => general,
    }
}

fn overridden<'a>(
    general: Option<Cow<'a, TrafficPolicy>>,
    rule: &'a DestinationRule,
    subset: &str,
    port: u16,
) -> Option<Cow<'a, TrafficPolicy>> {
    let own =
        rule.subsets.iter().find(|s| !subset.is_empty() && s.name == subset).and_then(|s| s.policy.as_ref());
    let Some(own) = own else { return general };
    let replaces = own.ports.iter().any(|p| p.port == port);
    let own = for_port(own, port);
    let Some(general) = general else { return Some(own) };
    let mut merged = TrafficPolicy { ports: Vec::new(), ..general.into_owned() };
    macro_rules! take {
        ($field:ident, $always:expr) => {
            if own.$field.is_some() || $always {
                merged.$field.clone_from(&own.$field);
            }
        };
    }
    take!(load_balancer, replaces);
    take!(connection_pool, replaces);
    take!(outlier_detection, replaces);
    take!(tls, replaces);
    take!(tunnel, false);
    take!(proxy_protocol, false);
    take!(retry_budget, false);
    Some(Cow::Owned(merged))
}

/// A policy, with the mesh's own limits and ejection where it has none.
pub fn with_default<'a>(
    policy: Option<Cow<'a, TrafficPolicy>>,
    mesh: &MeshConfig,
) -> Option<Cow<'a, TrafficPolicy>> {
    let pool = mesh.default_traffic_policy.connection_pool.as_ref();
    let pool = pool.filter(|_| policy.as_ref().is_none_or(|p| p.connection_pool.is_none()));
    let outlier = mesh.default_traffic_policy.outlier_detection.as_ref();
    let outlier = outlier.filter(|_| policy.as_ref().is_none_or(|p| p.outlier_detection.is_none()));
    if pool.is_none() && outlier.is_none() {
        return policy;
    }
    let mut policy = policy.map(Cow::into_owned).unwrap_or_default();
    policy.connection_pool = policy.connection_pool.or_else(|| pool.cloned());
    policy.outlier_detection = policy.outlier_detection.or_else(|| outlier.cloned());
    Some(Cow::Owned(policy))
}

/// The TLS mode that a rule asks for, for an endpoint at a port. Other than in a cluster, a port that says nothing about
/// TLS leaves it to what is said in general.
pub fn declared_tls(rule: &DestinationRule, subset: &str, port: u16) -> Option<TlsMode> {
    let of = |policy: &TrafficPolicy| {
        let at_port = policy.ports.iter().find(|p| p.port == port && p.tls.is_some());
        at_port.and_then(|p| p.tls.as_ref()).or(policy.tls.as_ref()).map(|tls| tls.mode)
    };
    let general = || rule.policy.as_ref().and_then(of);
    if subset.is_empty() {
        return general();
    }
    let own = rule.subsets.iter().find(|s| s.name == subset)?;
    own.policy.as_ref().and_then(of).or_else(general)
}

#[cfg(test)]
mod tests {
    use super::for_subset;
    use pilot_model::{
        DestinationRule, LoadBalancer, OutlierDetection, PortPolicy, SimpleLb, Subset, TrafficPolicy,
    };

    fn lb(simple: SimpleLb) -> Option<LoadBalancer> {
        Some(LoadBalancer { simple, ..LoadBalancer::default() })
    }

    #[test]
    fn port_replaces_and_subset_overrides() {
        let outlier = Some(OutlierDetection::default());
        let rule = DestinationRule {
            policy: Some(TrafficPolicy {
                load_balancer: lb(SimpleLb::Random),
                outlier_detection: outlier,
                ports: vec![PortPolicy {
                    port: 81,
                    load_balancer: lb(SimpleLb::RoundRobin),
                    ..PortPolicy::default()
                }],
                ..TrafficPolicy::default()
            }),
            subsets: vec![Subset {
                name: "v1".into(),
                policy: Some(TrafficPolicy {
                    load_balancer: lb(SimpleLb::LeastRequest),
                    ..TrafficPolicy::default()
                }),
                ..Subset::default()
            }],
            ..DestinationRule::default()
        };
        let of = |subset, port| {
            let policy = for_subset(&rule, subset, port).unwrap();
            (policy.load_balancer.as_ref().unwrap().simple, policy.outlier_detection.is_some())
        };
        assert_eq!(of("", 80), (SimpleLb::Random, true));
        assert_eq!(of("", 81), (SimpleLb::RoundRobin, false), "a port says everything anew");
        assert_eq!(of("v1", 80), (SimpleLb::LeastRequest, true), "a subset changes what it names");
        assert_eq!(of("v1", 81), (SimpleLb::LeastRequest, false));
        assert_eq!(of("v2", 80), (SimpleLb::Random, true));
    }
}
