use std::sync::Arc;

use pilot_base::Name;
use pilot_model::{ExportTo, Registry, Service, ServicePort};

/// Of all services with one host, those that a client sees: one namespace's, because a host means one thing.
///
/// `services` are in order of age. A client sees what is exported to its namespace before what is public; its own
/// namespace wins over others; Kubernetes wins over what a ServiceEntry claims. `client` is `None` for the view that all
/// namespaces share.
pub fn choose<'a>(
    services: impl Iterator<Item = &'a Arc<Service>> + Clone,
    client: Option<&Name>,
    default_export: &ExportTo,
) -> Vec<Arc<Service>> {
    let export = |service: &Service| service.export_to.or(default_export).clone();
    let to_client = services.clone().filter(|service| {
        let export = export(service);
        !export.is_public() && client.is_some_and(|client| export.visible_in(&service.namespace, client))
    });
    let public = services.filter(|service| export(service).is_public());
    let seen: Vec<&Arc<Service>> = to_client.chain(public).collect();
    let mut winner: Option<&Arc<Service>> = None;
    for service in &seen {
        let better = match winner {
            None => true,
            Some(_) if Some(&service.namespace) == client => true,
            Some(old) => {
                old.registry != Registry::Kubernetes
                    && service.registry == Registry::Kubernetes
                    && Some(&old.namespace) != client
            }
        };
        if better {
            winner = Some(service);
        }
    }
    let Some(namespace) = winner.map(|service| &service.namespace) else { return Vec::new() };
    let mut chosen: Vec<Arc<Service>> = seen
        .iter()
        .filter(|service| service.namespace == *namespace)
        .map(|service| Arc::clone(service))
        .collect();
    chosen.sort_by_key(|service| service.registry);
    chosen
}

/// Adds a service of the same host that was found in another way: one from Kubernetes takes the place of others, and of
/// two that are alike each adds its ports.
pub(crate) fn add_service(services: &mut Vec<Arc<Service>>, service: &Arc<Service>) {
    let Some(first) = services.first() else {
        services.push(Arc::clone(service));
        return;
    };
    match (first.registry, service.registry) {
        (Registry::External, Registry::Kubernetes) => *services = vec![Arc::clone(service)],
        _ if services.contains(service) || !alike(first, service) => (),
        _ => services.push(Arc::clone(service)),
    }
}

fn alike(a: &Service, b: &Service) -> bool {
    let key = |s: &Service| (s.namespace.clone(), s.registry, s.resolution, s.export_to.clone());
    key(a) == key(b) && a.labels == b.labels && a.selector == b.selector
}

/// The ports of services that share a host. The first service that has a port says what it is.
pub fn ports(services: &[Arc<Service>]) -> Vec<(&Arc<Service>, &ServicePort)> {
    let mut out: Vec<(&Arc<Service>, &ServicePort)> = Vec::new();
    for service in services {
        for port in &service.ports {
            if !out.iter().any(|(_, known)| known.number == port.number) {
                out.push((service, port));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{choose, ports};
    use crate::testing::service;
    use pilot_base::Name;
    use pilot_model::{ExportTo, Registry};

    fn chosen(services: &[std::sync::Arc<pilot_model::Service>], client: Option<&str>) -> Vec<String> {
        let public = ExportTo::parse(["*"]);
        let client = client.map(Name::new);
        choose(services.iter(), client.as_ref(), &public).iter().map(|s| s.namespace.to_string()).collect()
    }

    #[test]
    fn the_own_namespace_wins_then_kubernetes_then_age() {
        let (a, b) = (service("h", "a", |_| ()), service("h", "b", |_| ()));
        assert_eq!(chosen(&[a.clone(), b.clone()], None), ["a"]);
        assert_eq!(chosen(&[a.clone(), b], Some("b")), ["b"]);
        let kube = service("h", "k", |s| s.registry = Registry::Kubernetes);
        assert_eq!(chosen(&[a.clone(), kube.clone()], None), ["k"]);
        assert_eq!(chosen(&[a, kube], Some("a")), ["a"]);
    }

    #[test]
    fn visibility_is_kept() {
        let private = service("h", "a", |s| s.export_to = ExportTo::parse(["."]));
        assert!(chosen(std::slice::from_ref(&private), None).is_empty());
        assert!(chosen(std::slice::from_ref(&private), Some("b")).is_empty());
        assert_eq!(chosen(&[private], Some("a")), ["a"]);
        let to_b = service("h", "a", |s| s.export_to = ExportTo::parse(["b"]));
        let public = service("h", "c", |_| ());
        assert_eq!(
            chosen(&[public.clone(), to_b.clone()], Some("b")),
            ["a"],
            "what is exported to me comes first"
        );
        assert_eq!(chosen(&[public, to_b], None), ["c"]);
    }

    #[test]
    fn services_of_one_host_add_their_ports() {
        let one = service("h", "a", |s| s.ports[0].number = 80);
        let two = service("h", "a", |s| s.ports[0].number = 81);
        let kube = service("h", "a", |s| {
            s.ports[0].number = 81;
            s.registry = Registry::Kubernetes;
        });
        let services = [one, two, kube];
        let chosen = choose(services.iter(), None, &ExportTo::parse(["*"]));
        let ports: Vec<_> = ports(&chosen).iter().map(|(s, p)| (p.number, s.registry)).collect();
        assert_eq!(ports, [(81, Registry::Kubernetes), (80, Registry::External)]);
    }
}
