//! The name under which statistics stand, where the mesh has a pattern for it.

use pilot_model::{Registry, Service};

/// What a pattern may speak of.
#[derive(Clone, Copy, Default)]
pub(crate) struct StatName<'a> {
    pub(crate) service: Option<&'a Service>,
    pub(crate) subset: &'a str,
    pub(crate) port: u16,
    pub(crate) port_name: &'a str,
    /// Left as it is written, where nobody knows it.
    pub(crate) target_port: Option<u16>,
}

impl StatName<'_> {
    /// The name, if there is a pattern.
    pub(crate) fn by(self, pattern: &str) -> Option<String> {
        if pattern.is_empty() {
            return None;
        }
        let host = self.service.map(|service| service.host.to_string()).unwrap_or_default();
        let (short, name) = match self.service {
            Some(service) if service.registry == Registry::Kubernetes => {
                (format!("{}.{}", service.name, service.namespace), service.name.to_string())
            }
            _ => (host.clone(), host.clone()),
        };
        let mut out = pattern
            .replace("%SERVICE%", &short)
            .replace("%SERVICE_NAME%", &name)
            .replace("%SERVICE_FQDN%", &host)
            .replace("%SUBSET_NAME%", self.subset);
        if let Some(port) = self.target_port {
            out = out.replace("%TARGET_PORT%", &port.to_string());
        }
        Some(
            out.replace("%SERVICE_PORT%", &self.port.to_string())
                .replace("%SERVICE_PORT_NAME%", self.port_name),
        )
    }
}
