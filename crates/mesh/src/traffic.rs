use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_model::{Config, ConfigId, DestinationRule, ExportTo, MeshConfig, Visibility};

use crate::names::fqdn;

/// The DestinationRules that count for a host, as one.
#[derive(Clone, PartialEq, Debug)]
pub struct TrafficPlan {
    pub rule: DestinationRule,
    /// The rules it was made of. The first gives it its name.
    pub from: Vec<ConfigId>,
}

/// Finds rules by the host they are written for, in the order in which they claim it.
pub trait RuleIndex {
    fn rules(&self, host: &Host) -> Vec<Arc<Config<DestinationRule>>>;
}

/// A rule with its host made whole.
pub fn resolve_rule(rule: &Config<DestinationRule>, domain: &Name) -> Config<DestinationRule> {
    let mut rule = rule.clone();
    rule.spec.host = fqdn(&rule.spec.host, &rule.id.namespace, domain);
    rule
}

/// Where rules are looked for, the nearest first.
#[derive(Clone, Copy)]
enum Pool<'a> {
    /// All rules of the client's own namespace that it may use itself.
    Own(&'a Name),
    /// Rules of the root namespace that only the root namespace uses.
    RootPrivate,
    /// Rules that a namespace exports.
    Exported(&'a Name),
}

/// The rules for a service: those of the client's namespace, else those that the service's namespace exports, else those
/// that the root namespace exports. Within each the most specific host wins, and what is written for the same host is
/// merged. `client` is `None` for the view that all namespaces share.
pub fn select_traffic(
    host: &Host,
    service_namespace: &Name,
    client: Option<&Name>,
    mesh: &MeshConfig,
    index: &impl RuleIndex,
) -> Option<TrafficPlan> {
    let root = &mesh.root_namespace;
    let own = client.map(|client| if client == root { Pool::RootPrivate } else { Pool::Own(client) });
    let pools = own.into_iter().chain([Pool::Exported(service_namespace), Pool::Exported(root)]);
    let written: Vec<Vec<Arc<Config<DestinationRule>>>> =
        specific_first(host).map(|host| index.rules(&host)).filter(|rules| !rules.is_empty()).collect();
    for pool in pools {
        // The most specific host that this pool has a rule for hides the others, even if the rule is not for this client.
        let found = written.iter().map(|rules| in_pool(rules, pool, mesh)).find(|rules| !rules.is_empty());
        let Some(found) = found else { continue };
        let visible: Vec<_> = match pool {
            Pool::Own(_) | Pool::RootPrivate => found,
            Pool::Exported(_) => found.into_iter().filter(|rule| visible_to(rule, client, mesh)).collect(),
        };
        if let Some(plan) = merge(&visible) {
            return Some(plan);
        }
    }
    None
}

fn specific_first(host: &Host) -> impl Iterator<Item = Host> {
    let exact = (!host.is_wildcard()).then(|| host.clone());
    exact.into_iter().chain(host.covering_patterns())
}

fn in_pool(
    rules: &[Arc<Config<DestinationRule>>],
    pool: Pool<'_>,
    mesh: &MeshConfig,
) -> Vec<Arc<Config<DestinationRule>>> {
    let belongs = |rule: &&Arc<Config<DestinationRule>>| {
        let (spec, namespace) = (&rule.spec, &rule.id.namespace);
        // A rule for some workloads only is not part of what a whole namespace shares.
        if spec.workload_selector.is_some() {
            return false;
        }
        match pool {
            Pool::Own(client) => namespace == client && used_at_home(&spec.export_to, namespace),
            Pool::RootPrivate => {
                *namespace == mesh.root_namespace && is_private(&spec.export_to, namespace, mesh)
            }
            Pool::Exported(owner) => namespace == owner && !is_private(&spec.export_to, namespace, mesh),
        }
    };
    rules.iter().filter(belongs).cloned().collect()
}

fn used_at_home(export: &ExportTo, namespace: &Name) -> bool {
    export.is_empty() || export.visible_in(namespace, namespace)
}

fn is_private(export: &ExportTo, namespace: &Name, mesh: &MeshConfig) -> bool {
    if export.is_empty() {
        return mesh.destination_rule_export_to.contains(&Visibility::Private);
    }
    export
        .iter()
        .all(|entry| *entry == Visibility::Private || *entry == Visibility::Namespace(namespace.clone()))
}

fn visible_to(rule: &Config<DestinationRule>, client: Option<&Name>, _mesh: &MeshConfig) -> bool {
    let export = &rule.spec.export_to;
    let named = client.is_some_and(|client| export.contains(&Visibility::Namespace(client.clone())));
    export.is_empty() || export.is_public() || named
}

/// The first rule counts; later ones add subsets that it does not have, and a policy if it has none.
fn merge(rules: &[Arc<Config<DestinationRule>>]) -> Option<TrafficPlan> {
    let (first, rest) = rules.split_first()?;
    let mut plan = TrafficPlan { rule: first.spec.clone(), from: vec![first.id.clone()] };
    for rule in rest.iter().filter(|rule| rule.spec.export_to == first.spec.export_to) {
        plan.from.push(rule.id.clone());
        for subset in &rule.spec.subsets {
            if !plan.rule.subsets.iter().any(|s| s.name == subset.name) {
                plan.rule.subsets.push(subset.clone());
            }
        }
        if plan.rule.policy.is_none() {
            plan.rule.policy.clone_from(&rule.spec.policy);
        }
    }
    Some(plan)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pilot_base::{Host, Labels, Name};
    use pilot_model::{Config, ConfigId, Created, DestinationRule, ExportTo, MeshConfig, Subset};

    use super::{RuleIndex, select_traffic};

    struct Rules(Vec<Arc<Config<DestinationRule>>>);

    impl RuleIndex for Rules {
        fn rules(&self, host: &Host) -> Vec<Arc<Config<DestinationRule>>> {
            self.0.iter().filter(|rule| rule.spec.host == *host).cloned().collect()
        }
    }

    /// `namespace/name host [exportTo]`, each with a subset named after itself
    fn rules(lines: &[(&str, &str, &[&str])]) -> Rules {
        let rule = |(id, host, export): &(&str, &str, &[&str])| {
            let (namespace, name) = id.split_once('/').unwrap();
            let spec = DestinationRule {
                host: Host::new(host),
                subsets: vec![Subset { name: name.into(), ..Subset::default() }],
                export_to: ExportTo::parse(export.iter().copied()),
                ..DestinationRule::default()
            };
            let (labels, annotations) = (Labels::default(), Labels::default());
            Arc::new(Config {
                id: ConfigId::new(namespace, name),
                created: Created(0),
                labels,
                annotations,
                spec,
            })
        };
        Rules(lines.iter().map(rule).collect())
    }

    fn chosen(index: &Rules, client: Option<&str>) -> Vec<String> {
        let client = client.map(Name::new);
        let (host, service) = (Host::new("a.svc.local"), Name::new("service"));
        let plan = select_traffic(&host, &service, client.as_ref(), &MeshConfig::default(), index);
        plan.map(|plan| plan.from.iter().map(ToString::to_string).collect()).unwrap_or_default()
    }

    #[test]
    fn the_clients_namespace_comes_before_the_services_and_the_root() {
        let all = rules(&[
            ("client/c", "a.svc.local", &[]),
            ("service/s", "a.svc.local", &[]),
            ("istio-system/r", "*.local", &[]),
        ]);
        assert_eq!(chosen(&all, Some("client")), ["client/c"]);
        assert_eq!(chosen(&all, Some("other")), ["service/s"]);
        assert_eq!(chosen(&all, None), ["service/s"]);
        let root = rules(&[("istio-system/r", "*.local", &[]), ("istio-system/p", "*.svc.local", &["."])]);
        assert_eq!(chosen(&root, Some("other")), ["istio-system/r"]);
        assert_eq!(chosen(&root, Some("istio-system")), ["istio-system/p"]);
    }

    #[test]
    fn specific_hosts_win_and_equal_ones_are_merged() {
        let all = rules(&[
            ("service/w", "*.svc.local", &[]),
            ("service/e", "a.svc.local", &[]),
            ("service/f", "a.svc.local", &[]),
        ]);
        assert_eq!(chosen(&all, None), ["service/e", "service/f"]);
    }

    #[test]
    fn exports_are_kept() {
        let all = rules(&[("service/p", "a.svc.local", &["."]), ("service/x", "a.svc.local", &["friend"])]);
        assert!(chosen(&all, Some("other")).is_empty());
        assert_eq!(chosen(&all, Some("friend")), ["service/x"]);
        assert_eq!(chosen(&all, Some("service")), ["service/p"], "an export list that differs is not merged");
        assert!(chosen(&all, None).is_empty());
    }
}
