//! The endpoints of a cluster.

mod locality;
mod network;
mod priority;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::config::endpoint::v3 as api;
use pilot_mesh::{
    ClusterName, HostPlan, LbSetting, NODE, NetworkGateways, Place, declared_tls, effective_locality,
    for_subset, is_cluster_local,
};
use pilot_model::{
    Address, Endpoint, Health, Locality, OutlierDetection, Protocol, ProxyType, Registry, Resolution,
    Service, Subset, TlsMode, TlsSupport, TrafficDistribution, TrafficPolicy,
};
use pilot_xds::{Encoded, EncodedList, TypeUrl};
use prost::Message as _;

use crate::convert::endpoint_address;
use crate::metadata::{fields_of, metadata, text};
use crate::settings::{EndpointTraits, Settings};

/// Where an endpoint says how it is to be called.
const SOCKET_MATCH: &str = "envoy.transport_socket_match";

/// What is known about the endpoints of a host.
#[derive(Clone, Copy)]
pub struct HostEndpoints<'a> {
    pub all: &'a [&'a Endpoint],
    /// Where the proxy is, if that matters to this host.
    pub place: Option<&'a Place>,
    /// Do the policies for an endpoint let mutual TLS in?
    pub takes_mtls: &'a dyn Fn(&Endpoint) -> bool,
    /// How other networks are reached, if not directly.
    pub gateways: Option<&'a NetworkGateways>,
}

/// The endpoints for every cluster of a host.
pub fn assignments(
    plan: &HostPlan,
    endpoints: HostEndpoints<'_>,
    traits: &EndpointTraits,
    settings: Settings<'_>,
) -> EncodedList {
    let mut out = EncodedList::new();
    let told = plan.ports().into_iter().filter(|(service, _)| is_told(service, traits.kind));
    for (service, port) in told.filter(|(_, port)| port.protocol != Protocol::Udp) {
        let subsets = plan.traffic.iter().flat_map(|traffic| &traffic.rule.subsets).map(Some);
        let of_port = || endpoints.all.iter().copied().filter(|e| e.port_name == port.name && !is_name(e));
        for subset in std::iter::once(None).chain(subsets) {
            let HostEndpoints { takes_mtls, gateways, .. } = endpoints;
            let reached = Reached::Plainly;
            let maker = GroupMaker {
                plan,
                service,
                port: port.number,
                subset,
                takes_mtls,
                gateways,
                traits,
                settings,
                reached,
            };
            out.push(Arc::new(maker.assignment(of_port(), endpoints.place)));
            if Reached::by_name(service, traits) {
                let maker = GroupMaker { reached: Reached::ByName, ..maker };
                out.push(Arc::new(maker.assignment(of_port(), endpoints.place)));
            }
        }
    }
    out
}

fn takes_tls(endpoint: &api::LbEndpoint) -> bool {
    endpoint.metadata.as_ref().is_some_and(|told| told.filter_metadata.contains_key(SOCKET_MATCH))
}

/// Is a proxy told the endpoints of a service, instead of finding them itself?
pub(crate) fn is_told(service: &Service, kind: ProxyType) -> bool {
    // Libraries without a proxy ask for them too.
    let headless = service.registry == Registry::Kubernetes;
    match service.resolution {
        _ if service.is_alias() => false,
        Resolution::Static => true,
        // A gateway has no original destination to go to.
        Resolution::Passthrough => kind == ProxyType::Router || headless,
        // Only what a wildcard stands for is looked up as it is called.
        Resolution::DynamicDns => !service.host.is_wildcard(),
        Resolution::Dns | Resolution::DnsRoundRobin => false,
    }
}

/// Names are for clusters that look them up. An endpoint without any address stands behind a gateway of its network.
fn is_name(endpoint: &Endpoint) -> bool {
    matches!(&endpoint.address, Address::Host(name) if !name.is_empty())
}

/// How connections find a cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reached {
    Plainly,
    /// Encrypted, by a server name that spells the cluster out. What is inside cannot be seen, so only endpoints that take
    /// mutual TLS may be reached.
    ByName,
}

impl Reached {
    /// Has a service clusters of both kinds?
    pub(crate) fn by_name(service: &Service, traits: &EndpointTraits) -> bool {
        traits.passes_tls && !service.mesh_external
    }

    pub(crate) fn cluster(self, port: u16, subset: &str, host: &Host) -> Name {
        match self {
            Self::Plainly => ClusterName::outbound(port, subset, host),
            Self::ByName => ClusterName::sni(port, subset, host),
        }
    }
}

/// Makes the endpoints of one cluster.
pub(crate) struct GroupMaker<'a> {
    pub(crate) plan: &'a HostPlan,
    pub(crate) service: &'a Service,
    pub(crate) port: u16,
    pub(crate) subset: Option<&'a Subset>,
    pub(crate) takes_mtls: &'a dyn Fn(&Endpoint) -> bool,
    pub(crate) gateways: Option<&'a NetworkGateways>,
    pub(crate) traits: &'a EndpointTraits,
    pub(crate) settings: Settings<'a>,
    pub(crate) reached: Reached,
}

/// Endpoints in one place.
#[derive(Clone)]
pub(crate) struct Group<'a> {
    pub(crate) message: api::LocalityLbEndpoints,
    members: Vec<Cow<'a, Endpoint>>,
}

impl GroupMaker<'_> {
    fn assignment<'e>(
        &self,
        endpoints: impl Iterator<Item = &'e Endpoint>,
        place: Option<&Place>,
    ) -> Encoded {
        let subset = self.subset.map(|s| s.name.as_str()).unwrap_or_default();
        let name = self.reached.cluster(self.port, subset, &self.service.host);
        let rule = self.plan.traffic.as_ref().map(|traffic| &traffic.rule);
        let policy = rule.and_then(|rule| for_subset(rule, subset, self.port));
        let policy = policy.as_deref();
        let node = place.and_then(|place| place.labels.get(NODE)).map(Name::as_str).unwrap_or_default();
        // Nodes of several clusters may have one name.
        let is_near = |endpoint: &&Endpoint| {
            !self.service.node_local || (endpoint.node == node && endpoint.cluster == self.traits.cluster)
        };
        let mut groups = self.groups(endpoints.filter(is_near), policy);
        let lb = policy.and_then(|p| p.load_balancer.as_ref());
        let setting = effective_locality(lb, self.service, self.settings.mesh);
        if let (Some(place), Some(setting)) = (place, &setting) {
            let ejection = policy.and_then(|p| p.outlier_detection.as_ref());
            groups = arrange(groups, setting, place, ejection);
        }
        let assignment = api::ClusterLoadAssignment {
            cluster_name: name.to_string(),
            endpoints: groups.into_iter().map(|group| group.message).collect(),
            ..api::ClusterLoadAssignment::default()
        };
        Encoded::new(TypeUrl::Endpoint, name, &assignment.encode_to_vec())
    }

    /// Endpoints by where they are, in the order of their localities' names.
    pub(crate) fn groups<'e>(
        &self,
        endpoints: impl Iterator<Item = &'e Endpoint>,
        policy: Option<&TrafficPolicy>,
    ) -> Vec<Group<'e>> {
        let mut by_locality: BTreeMap<Name, Group<'e>> = BTreeMap::new();
        let (mesh, options) = (self.settings.mesh, self.settings.options);
        let only_here = is_cluster_local(&self.service.host, mesh, &options.domain);
        let view = &self.traits.view;
        let reaches = |endpoint: &&Endpoint| {
            let seen = view.is_empty() || endpoint.network.is_empty() || view.contains(&endpoint.network);
            seen && (!only_here || endpoint.cluster == self.traits.cluster)
        };
        for endpoint in endpoints.filter(reaches) {
            let wanted = self.subset.is_none_or(|subset| endpoint.is_selected_by(&subset.labels));
            if !wanted || !self.is_sent(endpoint, policy) {
                continue;
            }
            let label = Name::from(endpoint.locality.to_string());
            let group = by_locality.entry(label).or_insert_with(|| Group::at(&endpoint.locality));
            let member = self.endpoint(endpoint);
            if self.reached == Reached::ByName && !takes_tls(&member) {
                continue;
            }
            let weight = group.message.load_balancing_weight.unwrap_or(0).saturating_add(endpoint.weight);
            group.message.load_balancing_weight = Some(weight);
            group.message.lb_endpoints.push(member);
            group.members.push(Cow::Borrowed(endpoint));
        }
        let groups = by_locality.into_values().collect();
        // What must be near needs no way into another network.
        let gateways = self.gateways.filter(|_| !self.service.node_local);
        match (gateways, &self.traits.network) {
            (Some(gateways), Some((network, ip_mode))) => {
                let client = network::Client { network, ip_mode: *ip_mode };
                network::over_gateways(groups, gateways, &client, self.settings)
            }
            _ => groups,
        }
    }

    fn is_sent(&self, endpoint: &Endpoint, policy: Option<&TrafficPolicy>) -> bool {
        let features = &self.settings.options.features;
        let forced = features.force_unhealthy_endpoints
            || self.service.traffic_distribution != TrafficDistribution::Any;
        // A panic threshold above zero would send traffic to endpoints that are not ready.
        let outlier = policy.and_then(|p| p.outlier_detection.as_ref());
        let panics = outlier.is_some_and(|outlier| outlier.min_health_percent > 0);
        let unhealthy =
            self.service.publish_not_ready || forced || (features.send_unhealthy_endpoints && !panics);
        // Who has none is reached over a gateway.
        let has_address =
            self.gateways.is_some() || !matches!(&endpoint.address, Address::Host(name) if name.is_empty());
        has_address
            && match self.health(endpoint) {
                Health::Healthy | Health::Unknown => true,
                Health::Unhealthy => unhealthy,
                Health::Draining => self.is_persistent(),
                Health::Terminating => false,
            }
    }

    fn health(&self, endpoint: &Endpoint) -> Health {
        let label = &self.settings.options.features.draining_label;
        let draining = !label.is_empty() && endpoint.labels.get(label).is_some_and(|value| !value.is_empty());
        if draining && endpoint.health != Health::Terminating { Health::Draining } else { endpoint.health }
    }

    /// Clients of a service with persistent sessions go on talking to an endpoint that is about to leave.
    fn is_persistent(&self) -> bool {
        let label = &self.settings.options.features.persistent_session_label;
        !label.is_empty() && self.service.labels.get(label).is_some_and(|value| !value.is_empty())
    }

    fn endpoint(&self, endpoint: &Endpoint) -> api::LbEndpoint {
        use api::lb_endpoint::HostIdentifier;
        let additional =
            if self.settings.options.features.dual_stack { &endpoint.more_addresses[..] } else { &[] };
        let host = api::Endpoint {
            address: Some(endpoint_address(&endpoint.address, endpoint.port)),
            additional_addresses: additional
                .iter()
                .map(|address| api::endpoint::AdditionalAddress {
                    address: Some(endpoint_address(address, endpoint.port)),
                })
                .collect(),
            ..api::Endpoint::default()
        };
        let health = match self.health(endpoint) {
            Health::Unknown => core::HealthStatus::Unknown,
            Health::Healthy => core::HealthStatus::Healthy,
            Health::Unhealthy => core::HealthStatus::Unhealthy,
            Health::Draining | Health::Terminating => core::HealthStatus::Draining,
        };
        api::LbEndpoint {
            host_identifier: Some(HostIdentifier::Endpoint(host)),
            health_status: health as i32,
            load_balancing_weight: Some(endpoint.weight),
            metadata: Some(self.metadata(endpoint)),
        }
    }

    /// Whether the endpoint takes mutual TLS, and who it is, for telemetry when it cannot say so itself.
    fn metadata(&self, endpoint: &Endpoint) -> core::Metadata {
        let mut out = core::Metadata::default();
        let subset = self.subset.map(|s| s.name.as_str()).unwrap_or_default();
        let rule = self.plan.traffic.as_ref().map(|traffic| &traffic.rule);
        let mutual = match rule.and_then(|rule| declared_tls(rule, subset, self.port)) {
            Some(mode) => mode == TlsMode::IstioMutual,
            None => endpoint.tls == TlsSupport::Istio && (self.takes_mtls)(endpoint),
        };
        if let Some(mode) = endpoint.tls.as_str().filter(|_| mutual) {
            let socket = metadata([(SOCKET_MATCH, fields_of([("tlsMode", text(mode))]))]);
            out.filter_metadata.extend(socket.filter_metadata);
        }
        let features = &self.settings.options.features;
        if features.telemetry_label && features.endpoint_telemetry_label {
            let istio = metadata([("istio", fields_of([("workload", text(&self.workload(endpoint)))]))]);
            out.filter_metadata.extend(istio.filter_metadata);
        }
        out
    }

    /// `workload;namespace;canonical name;canonical revision;cluster`
    fn workload(&self, endpoint: &Endpoint) -> String {
        // What an external service is called stands in its own labels, where that is switched on.
        let external =
            self.settings.options.features.canonical_external_services && self.service.mesh_external;
        let labels = if external { &self.service.labels } else { &endpoint.labels };
        let label = |keys: [&str; 3]| keys.into_iter().find_map(|key| labels.get(key)).map(|v| v.as_str());
        let name = label(["service.istio.io/canonical-name", "app.kubernetes.io/name", "app"]);
        let revision = label(["service.istio.io/canonical-revision", "app.kubernetes.io/version", "version"]);
        let Endpoint { workload, namespace, cluster, .. } = endpoint;
        let namespace = if external { &self.service.namespace } else { namespace };
        let revision = revision.filter(|revision| *revision != "latest").unwrap_or_default();
        let name = name.unwrap_or(if external { &self.service.object.name } else { workload });
        format!("{workload};{namespace};{name};{revision};{cluster}")
    }
}

impl Group<'_> {
    fn at(locality: &Locality) -> Self {
        let message = api::LocalityLbEndpoints {
            locality: Some(core::Locality {
                region: locality.region.to_string(),
                zone: locality.zone.to_string(),
                sub_zone: locality.subzone.to_string(),
            }),
            ..api::LocalityLbEndpoints::default()
        };
        Self { message, members: Vec::new() }
    }

    /// All together weigh what each of them does.
    fn weigh(&mut self) {
        let told = &self.message.lb_endpoints;
        let weights = told.iter().map(|endpoint| endpoint.load_balancing_weight.unwrap_or(0));
        let sum = weights.fold(0, u32::saturating_add);
        self.message.load_balancing_weight = (!told.is_empty()).then_some(sum);
    }
}

/// Near endpoints first, as a setting says. Without ejection Envoy would not find out that a place is down.
pub(crate) fn arrange<'e>(
    groups: Vec<Group<'e>>,
    setting: &LbSetting<'_>,
    place: &Place,
    ejection: Option<&OutlierDetection>,
) -> Vec<Group<'e>> {
    match setting {
        LbSetting::Locality { setting, .. } if !setting.distribute.is_empty() => {
            locality::distribute(groups, &place.locality, setting)
        }
        LbSetting::Locality { setting, force } if ejection.is_some() || *force => {
            if setting.failover_priority.is_empty() {
                return locality::failover(groups, &place.locality, &setting.failover);
            }
            let groups = priority::by_labels(groups, &place.labels, &setting.failover_priority);
            if setting.failover.is_empty() {
                groups
            } else {
                locality::failover(groups, &place.locality, &setting.failover)
            }
        }
        LbSetting::Locality { .. } => groups,
        LbSetting::ZoneAware(setting) if setting.enabled.unwrap_or(true) => {
            let groups = if setting.failover_priority.is_empty() {
                groups
            } else {
                priority::by_labels(groups, &place.labels, &setting.failover_priority)
            };
            locality::regional_failover(groups, &place.locality, &setting.failover)
        }
        LbSetting::ZoneAware(_) => groups,
    }
}
