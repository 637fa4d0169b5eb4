use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_model::{EgressListener, Features, MeshConfig, Resolution, Service, ServicePort, Visibility};

use crate::egress::{Ports, import, imports_rule};
use crate::locality;
use crate::routes::{
    RouteIndex, RouteRule, about_connections, destinations, destinations_for, l4_destinations,
    l4_source_namespaces, select_l4_routes, select_routes, source_namespaces, special_namespaces,
};
use crate::traffic::{Client, RuleIndex, Traffic, TrafficPlan, select_traffic};
use crate::{Layer, add_service, choose, ports};

/// What a host is to the proxies of one layer.
#[derive(Clone, PartialEq, Debug)]
pub struct HostPlan {
    pub host: Host,
    /// Every service object with this host that counts, the most important first. Empty for a host that only rules know.
    pub services: Vec<Arc<Service>>,
    /// Large, and most hosts have none.
    pub traffic: Option<Arc<TrafficPlan>>,
    /// The rule for those who serve it, if that is another than for those who call it.
    pub served: Option<Option<Arc<TrafficPlan>>>,
    /// How it can be called by its own name. Not at all, if only the rules of other hosts lead to it.
    pub views: Vec<View>,
    /// Do clients in different places call it differently?
    pub by_locality: bool,
}

/// A host as it is called through one egress listener.
#[derive(Clone, PartialEq, Debug)]
pub struct View {
    /// Which of the egress listeners; the first where there is no Sidecar.
    pub listener: usize,
    /// Its services, with the ports that the listener serves.
    pub services: Vec<Arc<Service>>,
    /// VirtualServices that may route its requests; the first that has a route counts.
    pub routes: Vec<Arc<RouteRule>>,
    /// VirtualServices that route its connections; all of them count, in order.
    pub l4_routes: Vec<Arc<RouteRule>>,
}

impl HostPlan {
    /// The service that gives the host its namespace and its rules.
    pub fn service(&self) -> Option<&Arc<Service>> {
        self.services.first()
    }

    /// The host that it is called by in the end: another one, if this is only another name.
    pub fn real_host(&self) -> &Host {
        self.service().and_then(|service| service.external_name.as_ref()).unwrap_or(&self.host)
    }

    /// The rule for those who serve it.
    pub fn served_traffic(&self) -> Option<&TrafficPlan> {
        self.served.as_ref().unwrap_or(&self.traffic).as_deref()
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

    pub fn view(&self, listener: usize) -> Option<&View> {
        self.views.iter().find(|view| view.listener == listener)
    }

    /// The port of a destination that does not name one: the only one there is, else the one that was called.
    pub fn default_port(&self, called: u16) -> u16 {
        match &self.ports()[..] {
            [(_, only)] => only.number,
            _ => called,
        }
    }
}

impl View {
    /// Every port, with the service that says what it is. For routes that is the last one that has it, though clusters
    /// are those of the first.
    pub fn ports(&self) -> Vec<(&Arc<Service>, &ServicePort)> {
        let numbers = ports(&self.services).into_iter().map(|(_, port)| port.number);
        numbers.filter_map(|number| self.last_with(number)).collect()
    }

    pub fn port(&self, number: u16) -> Option<&ServicePort> {
        self.last_with(number).map(|(_, port)| port)
    }

    fn last_with(&self, number: u16) -> Option<(&Arc<Service>, &ServicePort)> {
        self.services.iter().rev().find_map(|service| Some((service, service.port(number)?)))
    }

    /// Is it called with HTTP at this port, as far as anybody knows?
    pub fn serves_http(&self, port: u16) -> bool {
        self.port(port).is_some_and(|port| port.protocol.is_http_or_auto())
    }
}

/// A rule that was let through by a listener leads to a host, at some of its ports.
#[derive(Clone, PartialEq, Debug)]
pub struct LedTo {
    pub listener: usize,
    pub ports: Ports,
}

/// What can be asked about a host while its plan is made.
pub struct Outlook<'a, R, V> {
    pub mesh: &'a MeshConfig,
    pub features: &'a Features,
    /// All services with the host, in order of age.
    pub services: &'a [Arc<Service>],
    pub rules: R,
    pub routes: V,
    /// What a Sidecar lets through, where there is one.
    pub listeners: Option<&'a [EgressListener]>,
}

impl<R: RuleIndex, V: RouteIndex> Outlook<'_, R, V> {
    /// The plan for a host in a layer, or nothing if the layer does not see it.
    pub fn plan(&self, host: &Host, layer: &Layer, led_to: &[LedTo]) -> Option<HostPlan> {
        let mut services = Vec::new();
        let mut views = Vec::new();
        let everything = [EgressListener::default()];
        for (at, listener) in self.listeners.unwrap_or(&everything).iter().enumerate() {
            if let Some(view) = self.view(host, layer, at, listener) {
                view.services.iter().for_each(|service| add_service(&mut services, service));
                views.push(view);
            }
            for led in led_to.iter().filter(|led| led.listener == at) {
                let found = self.found_by_rules(layer);
                let ports = if listener.service_port().is_some() {
                    &Ports::of_listener(listener)
                } else {
                    &led.ports
                };
                let trimmed = found.iter().filter_map(|service| ports.trim(service));
                trimmed.for_each(|service| add_service(&mut services, &service));
            }
        }
        (!services.is_empty() || !views.is_empty()).then(|| self.of_services(host, layer, services, views))
    }

    /// Rules find services of the client's own namespace wherever these are exported to.
    fn found_by_rules(&self, layer: &Layer) -> Vec<Arc<Service>> {
        let is_own = |service: &&Arc<Service>| layer.client() == Some(&service.namespace);
        let own: Vec<_> = self.services.iter().filter(is_own).cloned().collect();
        if own.is_empty() {
            return choose(self.services.iter(), layer.client(), &self.mesh.service_export_to);
        }
        own
    }

    fn view(&self, host: &Host, layer: &Layer, at: usize, listener: &EgressListener) -> Option<View> {
        let client = layer.client();
        let let_through = |service: &Arc<Service>| match self.listeners {
            Some(_) => import(listener, service),
            None => Some(Arc::clone(service)),
        };
        let seen: Vec<Arc<Service>> = self.services.iter().filter_map(let_through).collect();
        let services = choose(seen.iter(), client, &self.mesh.service_export_to);
        let admitted = |rule: &RouteRule| self.listeners.is_none() || imports_rule(listener, rule);
        let routes = select_routes(host, client, self.mesh, admitted, &self.routes);
        if services.is_empty() && routes.is_empty() {
            return None;
        }
        let l4_routes = if services.is_empty() {
            Vec::new()
        } else {
            select_l4_routes(host, client, self.mesh, admitted, &self.routes)
        };
        Some(View { listener: at, services, routes, l4_routes })
    }

    fn of_services(
        &self,
        host: &Host,
        layer: &Layer,
        services: Vec<Arc<Service>>,
        views: Vec<View>,
    ) -> HostPlan {
        let client = Client { namespace: layer.client(), selective: layer.selective_rules() };
        let settings = (self.mesh, self.features);
        let found = services
            .first()
            .map(|service| select_traffic(host, &service.namespace, client, settings, &self.rules));
        let Traffic { plan: traffic, served } = found.unwrap_or_default();
        let by_locality = services.iter().any(|service| service.node_local)
            || locality::matters(&services, traffic.as_deref(), self.mesh);
        HostPlan { host: host.clone(), services, traffic, served, views, by_locality }
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
            for rule in self.routes.written_for(&host) {
                out.extend(special_namespaces(&rule, self.mesh));
            }
        }
        for rule in about_connections(host, &self.routes) {
            out.extend(special_namespaces(&rule, self.mesh));
        }
        out
    }

    /// Namespaces whose proxies are sent other routes though the plan is the same: those that call the host by a short
    /// name, and those that a rule speaks of.
    pub fn naming_namespaces(&self, host: &Host) -> BTreeSet<Name> {
        let mut out: BTreeSet<Name> = self.services.iter().map(|service| service.namespace.clone()).collect();
        out.extend(self.alias_namespaces());
        let in_kubernetes = host.as_str().split_once(".svc.").and_then(|(whole, _)| whole.split_once('.'));
        out.extend(in_kubernetes.map(|(_, namespace)| Name::new(namespace)));
        for host in written_for(host) {
            let rules = self.routes.written_for(&host);
            out.extend(rules.iter().flat_map(|rule| source_namespaces(&rule.spec)));
        }
        out
    }

    /// Namespaces whose proxies are sent other listeners though the plan is the same.
    pub fn connecting_namespaces(&self, host: &Host) -> BTreeSet<Name> {
        let rules = about_connections(host, &self.routes);
        let of_rules = rules.iter().flat_map(|rule| l4_source_namespaces(&rule.spec));
        of_rules.chain(self.alias_namespaces()).collect()
    }

    /// Namespaces that call the host by a short form of another name.
    fn alias_namespaces(&self) -> impl Iterator<Item = Name> {
        self.services
            .iter()
            .flat_map(|service| service.aliases.iter().map(|(namespace, _)| namespace.clone()))
    }

    /// Every host that some rule for this one leads to.
    pub fn possible_destinations(&self, host: &Host) -> BTreeSet<Host> {
        let rules: Vec<_> = written_for(host).flat_map(|host| self.routes.written_for(&host)).collect();
        others(host, rules.iter().flat_map(|rule| destinations(&rule.spec)))
    }

    /// Every host that some rule for connections to this one leads to.
    pub fn possible_l4_destinations(&self, host: &Host) -> BTreeSet<Host> {
        let rules = about_connections(host, &self.routes);
        others(host, rules.iter().flat_map(|rule| l4_destinations(&rule.spec)))
    }
}

fn others<'a>(
    host: &Host,
    destinations: impl Iterator<Item = &'a pilot_model::Destination>,
) -> BTreeSet<Host> {
    destinations.map(|to| &to.host).filter(|other| *other != host).cloned().collect()
}

/// The hosts that a rule leads the proxies of a namespace to, and at which ports.
pub fn rule_destinations(rule: &RouteRule, client: &Name) -> BTreeMap<Host, Ports> {
    let mut out: BTreeMap<Host, Ports> = BTreeMap::new();
    for to in destinations_for(&rule.spec, client) {
        let ports = out.entry(to.host.clone()).or_insert_with(|| Ports::These(BTreeSet::new()));
        match (ports, to.port) {
            (Ports::These(these), Some(port)) => {
                these.insert(port);
            }
            (ports, None) => *ports = Ports::All,
            (Ports::All, Some(_)) => (),
        }
    }
    out
}

/// The hosts that rules for a host are written for: itself, and every pattern that covers it.
fn written_for(host: &Host) -> impl Iterator<Item = Host> {
    let exact = (!host.is_wildcard()).then(|| host.clone());
    exact.into_iter().chain(host.covering_patterns())
}
