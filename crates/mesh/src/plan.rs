use std::collections::BTreeSet;
use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_model::{EgressHost, MeshConfig, Service, Visibility};

use crate::layer::lets_through;
use crate::routes::{RouteRule, destinations, select_routes, special_namespaces};
use crate::traffic::{RuleIndex, TrafficPlan, select_traffic};
use crate::{Layer, choose, merge};

/// What a host is to the proxies of one layer.
#[derive(Clone, PartialEq, Debug)]
pub struct HostPlan {
    pub host: Host,
    /// Every service object with this host that counts, in order of age. Empty for a host that only rules know.
    pub services: Vec<Arc<Service>>,
    /// The same as one service.
    pub service: Option<Arc<Service>>,
    pub traffic: Option<TrafficPlan>,
    /// VirtualServices that may route it.
    pub routes: Vec<Arc<RouteRule>>,
}

impl HostPlan {
    /// Other hosts that this one's routes lead to.
    pub fn destinations(&self) -> BTreeSet<Host> {
        let all = self.routes.iter().flat_map(|rule| destinations(&rule.spec)).map(|d| d.host.clone());
        all.filter(|host| *host != self.host).collect()
    }
}

/// What can be asked about a host while its plan is made.
pub struct Outlook<'a, R, V> {
    pub mesh: &'a MeshConfig,
    /// All services with the host, in order of age.
    pub services: &'a [Arc<Service>],
    pub rules: R,
    pub routes: V,
    /// What a Sidecar lets through, where there is one.
    pub imports: Option<&'a [EgressHost]>,
}

impl<R: RuleIndex, V: Fn(&Host) -> Vec<Arc<RouteRule>>> Outlook<'_, R, V> {
    /// The plan for a host in a layer, or nothing if the layer does not see it.
    pub fn plan(&self, host: &Host, layer: &Layer) -> Option<HostPlan> {
        let client = layer.client();
        let let_through =
            |service: &&Arc<Service>| self.imports.is_none_or(|imports| lets_through(imports, service));
        let seen = self.services.iter().filter(let_through);
        let services = choose(seen, client, &self.mesh.service_export_to);
        let routes = select_routes(host, client, self.mesh, &self.routes);
        let service = merge(&services);
        if service.is_none() && routes.is_empty() {
            return None;
        }
        let traffic = service
            .as_ref()
            .and_then(|service| select_traffic(host, &service.namespace, client, self.mesh, &self.rules));
        Some(HostPlan { host: host.clone(), services, service, traffic, routes })
    }

    /// Namespaces for which the plan may differ from the base's: where the host is exported to, where it lives, where a
    /// rule for it is written or exported to.
    pub fn special_namespaces(&self, host: &Host) -> BTreeSet<Name> {
        let mut out = BTreeSet::new();
        for service in self.services {
            out.insert(service.namespace.clone());
            let export = service.export_to.or(&self.mesh.service_export_to);
            if !export.is_public() {
                out.extend(export.namespaces(&service.namespace));
            }
        }
        let written_for = std::iter::once(host.clone()).chain(host.covering_patterns());
        for host in written_for {
            for rule in self.rules.rules(&host) {
                out.insert(rule.id.namespace.clone());
                out.extend(rule.spec.export_to.iter().filter_map(|entry| match entry {
                    Visibility::Namespace(namespace) => Some(namespace.clone()),
                    _ => None,
                }));
            }
            for rule in (self.routes)(&host) {
                out.extend(special_namespaces(&rule, self.mesh));
            }
        }
        out
    }
}
