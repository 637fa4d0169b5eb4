use std::collections::BTreeSet;
use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_model::{EgressHost, MeshConfig, Resolution, Service, ServicePort, Visibility};

use crate::layer::lets_through;
use crate::locality;
use crate::routes::{RouteRule, destinations, select_routes, source_namespaces, special_namespaces};
use crate::traffic::{RuleIndex, TrafficPlan, select_traffic};
use crate::{Layer, choose, ports};

/// What a host is to the proxies of one layer.
#[derive(Clone, PartialEq, Debug)]
pub struct HostPlan {
    pub host: Host,
    /// Every service object with this host that counts, the most important first. Empty for a host that only rules know.
    pub services: Vec<Arc<Service>>,
    pub traffic: Option<TrafficPlan>,
    /// VirtualServices that may route it.
    pub routes: Vec<Arc<RouteRule>>,
    /// Do clients in different places call it differently?
    pub by_locality: bool,
    /// Can it be called by its own name? Not if only the rules of other hosts lead to it.
    pub by_name: bool,
}

impl HostPlan {
    /// The service that gives the host its namespace and its rules.
    pub fn service(&self) -> Option<&Arc<Service>> {
        self.services.first()
    }

    /// Every port, with the service that says what it is.
    pub fn ports(&self) -> Vec<(&Arc<Service>, &ServicePort)> {
        ports(&self.services)
    }

    /// Are its endpoints names that a proxy looks up, and part of its clusters?
    pub fn looks_up(&self) -> bool {
        let looks_up = |s: &Arc<Service>| matches!(s.resolution, Resolution::Dns | Resolution::DnsRoundRobin);
        self.services.iter().any(looks_up)
    }

    pub fn port(&self, number: u16) -> Option<&ServicePort> {
        self.services.iter().find_map(|service| service.port(number))
    }

    /// Is it called with HTTP at this port, as far as anybody knows?
    pub fn serves_http(&self, port: u16) -> bool {
        self.port(port).is_some_and(|port| port.protocol.is_http_or_auto())
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
        if services.is_empty() && routes.is_empty() {
            return None;
        }
        Some(HostPlan { routes, by_name: true, ..self.for_services(host, layer, services) })
    }

    /// The plan for a host that a Sidecar does not let through, but that a rule for one of its hosts leads to.
    pub fn destination_plan(&self, host: &Host, layer: &Layer) -> Option<HostPlan> {
        let services = choose(self.services.iter(), layer.client(), &self.mesh.service_export_to);
        (!services.is_empty()).then(|| self.for_services(host, layer, services))
    }

    fn for_services(&self, host: &Host, layer: &Layer, services: Vec<Arc<Service>>) -> HostPlan {
        let client = layer.client();
        let traffic = services
            .first()
            .and_then(|service| select_traffic(host, &service.namespace, client, self.mesh, &self.rules));
        let by_locality = locality::matters(&services, traffic.as_ref(), self.mesh);
        let host = host.clone();
        HostPlan { host, services, traffic, routes: Vec::new(), by_locality, by_name: false }
    }

    /// The hosts that the rules for a host lead the proxies of a layer to.
    pub fn destinations(&self, host: &Host, layer: &Layer) -> BTreeSet<Host> {
        let rules = select_routes(host, layer.client(), self.mesh, &self.routes);
        let all = rules.iter().flat_map(|rule| destinations(&rule.spec));
        all.map(|destination| destination.host.clone()).filter(|other| other != host).collect()
    }

    /// Namespaces for which the plan may differ from the base's: where the host is exported to, where several services
    /// claim it, where a rule for it is written or exported to.
    pub fn special_namespaces(&self, host: &Host) -> BTreeSet<Name> {
        let mut out = BTreeSet::new();
        for service in self.services {
            let export = service.export_to.or(&self.mesh.service_export_to);
            if !export.is_public() {
                out.extend(export.namespaces(&service.namespace));
            }
            // Each namespace prefers its own.
            if self.services.len() > 1 {
                out.insert(service.namespace.clone());
            }
        }
        for host in written_for(host) {
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

    /// Namespaces whose proxies are sent other routes though the plan is the same: those that call the host by a short
    /// name, and those that a rule speaks of.
    pub fn naming_namespaces(&self, host: &Host) -> BTreeSet<Name> {
        let mut out: BTreeSet<Name> = self.services.iter().map(|service| service.namespace.clone()).collect();
        for host in written_for(host) {
            out.extend((self.routes)(&host).iter().flat_map(|rule| source_namespaces(&rule.spec)));
        }
        out
    }

    /// Every host that some rule for this one leads to.
    pub fn possible_destinations(&self, host: &Host) -> BTreeSet<Host> {
        let rules = written_for(host).flat_map(|host| (self.routes)(&host));
        let mut out: BTreeSet<Host> = BTreeSet::new();
        for rule in rules {
            out.extend(destinations(&rule.spec).map(|destination| destination.host.clone()));
        }
        out.remove(host);
        out
    }
}

/// The hosts that rules for a host are written for: itself, and every pattern that covers it.
fn written_for(host: &Host) -> impl Iterator<Item = Host> {
    std::iter::once(host.clone()).chain(host.covering_patterns())
}
