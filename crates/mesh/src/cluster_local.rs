//! Services that are called only where their client is.

use pilot_base::{Host, Name};
use pilot_model::MeshConfig;

/// Is a host served only in the cluster of its client? What the mesh says of the most specific name counts. A cluster's
/// own services are local unless the mesh says otherwise: its API server, what belongs to it, and this server.
pub fn is_cluster_local(host: &Host, mesh: &MeshConfig, domain: &Name) -> bool {
    let exact = (!host.is_wildcard()).then(|| host.clone());
    let names = exact.into_iter().chain(host.covering_patterns());
    let said = |name: &Host| {
        let settings = mesh.service_settings.iter().filter(|setting| setting.hosts.contains(name));
        settings.map(|setting| setting.cluster_local).next_back()
    };
    let defaults = defaults(mesh, domain);
    names
        .into_iter()
        .find_map(|name| defaults.contains(&name).then_some(true).or_else(|| said(&name)))
        .unwrap_or(false)
}

fn defaults(mesh: &MeshConfig, domain: &Name) -> Vec<Host> {
    let discovery = &mesh.discovery_host;
    let discovery = if discovery.ends_with(domain.as_str()) {
        Host::from(discovery.clone())
    } else {
        Host::new(&format!("{discovery}.{domain}"))
    };
    let api = Host::new(&format!("kubernetes.default.svc.{domain}"));
    let mut out = vec![Host::new(&format!("*.kube-system.svc.{domain}")), api, discovery];
    // One host of them that is served everywhere is enough.
    let everywhere = mesh.service_settings.iter().filter(|setting| !setting.cluster_local);
    for host in everywhere.flat_map(|setting| &setting.hosts) {
        let suffix = |default: &Host| default.as_str().strip_prefix('*').map(str::to_owned);
        out.retain(|default| {
            default != host && !suffix(default).is_some_and(|suffix| host.as_str().ends_with(&suffix))
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::is_cluster_local;
    use pilot_base::{Host, Name};
    use pilot_model::{MeshConfig, ServiceSettings};

    fn local(host: &str, settings: &[(bool, &str)]) -> bool {
        let settings = settings.iter().map(|(cluster_local, host)| ServiceSettings {
            cluster_local: *cluster_local,
            hosts: vec![Host::new(host)],
        });
        let mesh = MeshConfig { service_settings: settings.collect(), ..MeshConfig::default() };
        is_cluster_local(&Host::new(host), &mesh, &Name::new("cluster.local"))
    }

    #[test]
    fn a_clusters_own_services_are_local() {
        assert!(local("dns.kube-system.svc.cluster.local", &[]));
        assert!(local("kubernetes.default.svc.cluster.local", &[]));
        assert!(local("istiod.istio-system.svc.cluster.local", &[]));
        assert!(!local("reviews.default.svc.cluster.local", &[]));
    }

    #[test]
    fn the_most_specific_setting_counts() {
        let settings = [(true, "*.shop.svc.cluster.local"), (false, "cart.shop.svc.cluster.local")];
        assert!(local("pay.shop.svc.cluster.local", &settings));
        assert!(!local("cart.shop.svc.cluster.local", &settings));
        let last = [(true, "a.b"), (false, "a.b")];
        assert!(!local("a.b", &last), "what is said last of the same name counts");
    }

    #[test]
    fn one_host_that_is_served_everywhere_lifts_the_default() {
        let settings = [(false, "dns.kube-system.svc.cluster.local")];
        assert!(!local("dns.kube-system.svc.cluster.local", &settings));
        assert!(!local("other.kube-system.svc.cluster.local", &settings));
        assert!(local("kubernetes.default.svc.cluster.local", &settings));
    }
}
