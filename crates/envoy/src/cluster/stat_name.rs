//! The name under which a cluster's statistics stand, where the mesh has a pattern for it.

use pilot_model::{Registry, Service, ServicePort};

pub(super) fn stat_name(
    pattern: &str,
    service: &Service,
    subset: &str,
    port: &ServicePort,
    target_port: u16,
) -> String {
    let host = service.host.as_str();
    let (short, name) = match service.registry {
        Registry::Kubernetes => (format!("{}.{}", service.name, service.namespace), service.name.to_string()),
        Registry::External => (host.to_owned(), host.to_owned()),
    };
    pattern
        .replace("%SERVICE%", &short)
        .replace("%SERVICE_NAME%", &name)
        .replace("%SERVICE_FQDN%", host)
        .replace("%SUBSET_NAME%", subset)
        .replace("%TARGET_PORT%", &target_port.to_string())
        .replace("%SERVICE_PORT%", &port.number.to_string())
        .replace("%SERVICE_PORT_NAME%", &port.name)
}
