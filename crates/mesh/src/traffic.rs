use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_model::{Config, ConfigId, DestinationRule, ExportTo, Features, MeshConfig, Visibility};

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

/// For whom rules are looked for.
#[derive(Clone, Copy)]
pub struct Client<'a> {
    /// `None` for the view that all namespaces share.
    pub namespace: Option<&'a Name>,
    /// Rules for some workloads only that are for this one.
    pub selective: &'a [ConfigId],
}

/// What rules there are for a service.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Traffic {
    pub plan: Option<Arc<TrafficPlan>>,
    /// What counts for those who serve it, if that is not the same: rules for some workloads are about whom they call.
    pub served: Option<Option<Arc<TrafficPlan>>>,
}

/// The rules for a service: those of the client's namespace, else those that the service's namespace exports, else those
/// that the root namespace exports. Within each the most specific host wins, and what is written for the same host is
/// merged.
pub fn select_traffic(
    host: &Host,
    service_namespace: &Name,
    client: Client<'_>,
    settings: (&MeshConfig, &Features),
    index: &impl RuleIndex,
) -> Traffic {
    let (mesh, features) = settings;
    let root = &mesh.root_namespace;
    let own = client.namespace.map(|own| if own == root { Pool::RootPrivate } else { Pool::Own(own) });
    let pools = own.into_iter().chain([Pool::Exported(service_namespace), Pool::Exported(root)]);
    let written: Vec<Vec<Arc<Config<DestinationRule>>>> =
        specific_first(host).map(|host| index.rules(&host)).filter(|rules| !rules.is_empty()).collect();
    for pool in pools {
        // The most specific host that this pool has a rule for hides the others, even if the rule is not for this client.
        let found = written.iter().map(|rules| in_pool(rules, pool, mesh)).find(|rules| !rules.is_empty());
        let Some(found) = found else { continue };
        let mut merged = merge(&found, features);
        if let Pool::Exported(_) = pool {
            merged.retain(|plan| visible_to(&plan.exported, client.namespace));
        }
        if !merged.is_empty() {
            return chosen(&merged, client);
        }
    }
    Traffic::default()
}

/// A rule that selects the client counts alone; else the last that is for everyone.
fn chosen(merged: &[Merged], client: Client<'_>) -> Traffic {
    let plan = |merged: &Merged| Arc::new(merged.plan.clone());
    let everyone = merged.iter().rfind(|m| m.plan.rule.workload_selector.is_none()).map(plan);
    let selects = |m: &&Merged| m.plan.from.first().is_some_and(|id| client.selective.contains(id));
    match merged.iter().filter(|m| m.plan.rule.workload_selector.is_some()).find(selects) {
        Some(own) => Traffic { plan: Some(plan(own)), served: Some(everyone) },
        None => Traffic { plan: everyone, served: None },
    }
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
        let (export, namespace) = (&exported(&rule.spec), &rule.id.namespace);
        match pool {
            Pool::Own(client) => namespace == client && used_at_home(export, namespace),
            Pool::RootPrivate => *namespace == mesh.root_namespace && is_private(export, namespace, mesh),
            Pool::Exported(owner) => namespace == owner && !is_private(export, namespace, mesh),
        }
    };
    let mut found: Vec<Arc<Config<DestinationRule>>> = rules.iter().filter(belongs).cloned().collect();
    // Rules for some workloads come first; otherwise the order is that of age.
    found.sort_by_key(|rule| rule.spec.workload_selector.is_none());
    found
}

/// A rule for some workloads is for nobody outside its namespace.
fn exported(rule: &DestinationRule) -> ExportTo {
    match rule.workload_selector {
        Some(_) => ExportTo::parse(["."]),
        None => rule.export_to.clone(),
    }
}

fn used_at_home(export: &ExportTo, namespace: &Name) -> bool {
    export.is_empty() || export.visible_in(namespace, namespace)
}

fn is_private(export: &ExportTo, namespace: &Name, mesh: &MeshConfig) -> bool {
    if export.is_empty() {
        return mesh.destination_rule_export_to.contains(&Visibility::Private);
    }
    let own = |entry: &Visibility| {
        *entry == Visibility::Private || *entry == Visibility::Namespace(namespace.clone())
    };
    let mut entries = export.iter();
    entries.next().is_some_and(own) && entries.next().is_none()
}

fn visible_to(export: &ExportTo, client: Option<&Name>) -> bool {
    let named = client.is_some_and(|client| export.contains(&Visibility::Namespace(client.clone())));
    export.is_empty() || export.is_public() || named
}

/// Rules that have become one, and for whom that is.
struct Merged {
    plan: TrafficPlan,
    exported: ExportTo,
}

/// Each rule joins those before it that are for the same clients, or for fewer; one that joined none stands for itself.
fn merge(rules: &[Arc<Config<DestinationRule>>], features: &Features) -> Vec<Merged> {
    let mut out: Vec<Merged> = Vec::new();
    for rule in rules {
        let export = exported(&rule.spec);
        let mut alone = true;
        for known in &mut out {
            let wider = !known.exported.is_empty() && known.exported.iter().all(|e| export.contains(e));
            if features.enhanced_rule_merge {
                alone = export != known.exported;
                if alone && !wider {
                    continue;
                }
            }
            match (&known.plan.rule.workload_selector, &rule.spec.workload_selector) {
                (Some(known), Some(own)) if known != own => {
                    alone = true;
                    continue;
                }
                (Some(_), Some(_)) | (None, None) => alone = false,
                // What is for everyone becomes part of what is for some.
                _ => (),
            }
            join(&mut known.plan, rule);
        }
        if alone {
            let plan = TrafficPlan { rule: rule.spec.clone(), from: vec![rule.id.clone()] };
            out.push(Merged { plan, exported: export });
        }
    }
    out
}

/// The first rule counts; later ones add subsets that it does not have, and a policy if it has none.
fn join(plan: &mut TrafficPlan, rule: &Config<DestinationRule>) {
    plan.from.push(rule.id.clone());
    for subset in &rule.spec.subsets {
        if !plan.rule.subsets.iter().any(|s| s.name == subset.name) {
            plan.rule.subsets.push(subset.clone());
        }
    }
    if plan.rule.policy.is_none() {
        plan.rule.policy.clone_from(&rule.spec.policy);
    }
    if plan.rule.health_check.is_none() {
        plan.rule.health_check.clone_from(&rule.spec.health_check);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pilot_base::{Host, Labels, Name};
    use pilot_model::{Config, ConfigId, Created, DestinationRule, ExportTo, Features, MeshConfig, Subset};

    use super::{Client, RuleIndex, select_traffic};

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
        let client = Client { namespace: client.as_ref(), selective: &[] };
        let settings = (&MeshConfig::default(), &Features::default());
        let plan = select_traffic(&host, &service, client, settings, index).plan;
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
