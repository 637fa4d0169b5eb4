//! The endpoints of a cluster.

mod locality;

use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::{Labels, Name};
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::config::endpoint::v3 as api;
use pilot_mesh::{ClusterName, HostPlan, effective_locality, for_subset};
use pilot_model::{
    Address, Endpoint, Health, LoadBalancer, Locality, Protocol, Resolution, Service, Subset, TlsMode,
    TlsSupport, TrafficPolicy,
};
use pilot_xds::{Encoded, EncodedList, TypeUrl};
use prost::Message as _;

use crate::convert::endpoint_address;
use crate::metadata::{fields_of, metadata, text};
use crate::settings::{EndpointTraits, Settings};

/// How localities are treated, where they are.
fn locality_of<'a>(
    policy: Option<&'a TrafficPolicy>,
    settings: Settings<'a>,
) -> Option<locality::Treatment<'a>> {
    let lb: Option<&LoadBalancer> = policy.and_then(|p| p.load_balancer.as_ref());
    let setting = effective_locality(lb, settings.mesh)?;
    // Without ejection Envoy never finds out that a locality is down, and would never leave it.
    let ejection = policy.and_then(|p| p.outlier_detection.as_ref());
    locality::Treatment::new(setting, ejection)
}

/// The endpoints for every cluster of a host. `place` is where the proxy is, if that matters to this host.
pub fn assignments(
    plan: &HostPlan,
    endpoints: &[&Endpoint],
    place: Option<&Locality>,
    traits: &EndpointTraits,
    settings: Settings<'_>,
) -> EncodedList {
    let mut out = EncodedList::new();
    let told = plan.ports().into_iter().filter(|(service, _)| service.resolution == Resolution::Static);
    for (service, port) in told.filter(|(_, port)| port.protocol != Protocol::Udp) {
        let of_port: Vec<&Endpoint> =
            endpoints.iter().copied().filter(|e| e.port_name == port.name).collect();
        let subsets = plan.traffic.iter().flat_map(|traffic| &traffic.rule.subsets).map(Some);
        for subset in std::iter::once(None).chain(subsets) {
            let maker = Maker { plan, service, port: port.number, subset, place, traits, settings };
            out.push(Arc::new(maker.assignment(&of_port)));
        }
    }
    out
}

struct Maker<'a> {
    plan: &'a HostPlan,
    service: &'a Service,
    port: u16,
    subset: Option<&'a Subset>,
    place: Option<&'a Locality>,
    traits: &'a EndpointTraits,
    settings: Settings<'a>,
}

impl Maker<'_> {
    fn assignment(&self, endpoints: &[&Endpoint]) -> Encoded {
        let subset = self.subset.map(|s| s.name.as_str()).unwrap_or_default();
        let name = ClusterName::outbound(self.port, subset, &self.service.host);
        let policy = self.plan.traffic.as_ref().and_then(|t| for_subset(&t.rule, subset, self.port));
        let none = Labels::default();
        let wanted = self.subset.map_or(&none, |s| &s.labels);
        let mut by_locality: BTreeMap<Name, api::LocalityLbEndpoints> = BTreeMap::new();
        for endpoint in
            endpoints.iter().filter(|e| wanted.subset_of(&e.labels) && self.is_sent(e, policy.as_deref()))
        {
            let label = Name::from(endpoint.locality.to_string());
            let group = by_locality.entry(label).or_insert_with(|| empty_group(&endpoint.locality));
            let weight = group.load_balancing_weight.unwrap_or(0).saturating_add(endpoint.weight);
            group.load_balancing_weight = Some(weight);
            group.lb_endpoints.push(self.endpoint(endpoint, policy.as_deref()));
        }
        let mut groups: Vec<api::LocalityLbEndpoints> = by_locality.into_values().collect();
        if let (Some(place), Some(treatment)) = (self.place, locality_of(policy.as_deref(), self.settings)) {
            treatment.apply(&mut groups, place);
        }
        let assignment = api::ClusterLoadAssignment {
            cluster_name: name.to_string(),
            endpoints: groups,
            ..api::ClusterLoadAssignment::default()
        };
        Encoded::new(TypeUrl::Endpoint, name, &assignment.encode_to_vec())
    }

    fn is_sent(&self, endpoint: &Endpoint, policy: Option<&TrafficPolicy>) -> bool {
        let features = &self.settings.options.features;
        // A panic threshold above zero would send traffic to endpoints that are not ready.
        let outlier = policy.and_then(|p| p.outlier_detection.as_ref());
        let panics = outlier.is_some_and(|outlier| outlier.min_health_percent > 0);
        let unhealthy = self.service.publish_not_ready || (features.send_unhealthy_endpoints && !panics);
        let reachable = self.traits.network.is_empty()
            || endpoint.network.is_empty()
            || self.traits.network == endpoint.network;
        let has_address = !matches!(&endpoint.address, Address::Host(_));
        reachable
            && has_address
            && match endpoint.health {
                Health::Healthy => true,
                Health::Unhealthy => unhealthy,
                Health::Draining | Health::Terminating => false,
            }
    }

    fn endpoint(&self, endpoint: &Endpoint, policy: Option<&TrafficPolicy>) -> api::LbEndpoint {
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
        let health = match endpoint.health {
            Health::Healthy => core::HealthStatus::Unknown,
            Health::Unhealthy => core::HealthStatus::Unhealthy,
            Health::Draining | Health::Terminating => core::HealthStatus::Draining,
        };
        api::LbEndpoint {
            host_identifier: Some(HostIdentifier::Endpoint(host)),
            health_status: health as i32,
            load_balancing_weight: Some(endpoint.weight),
            metadata: Some(self.metadata(endpoint, policy)),
        }
    }

    /// Whether the endpoint takes mutual TLS, and who it is, for telemetry when it cannot say so itself.
    fn metadata(&self, endpoint: &Endpoint, policy: Option<&TrafficPolicy>) -> core::Metadata {
        let mut out = core::Metadata::default();
        let declared = policy.and_then(|p| p.tls.as_ref()).map(|tls| tls.mode);
        let mutual = match declared {
            Some(mode) => mode == TlsMode::IstioMutual,
            None => endpoint.tls == TlsSupport::Istio,
        };
        if let Some(mode) = endpoint.tls.as_str().filter(|_| mutual) {
            let socket = metadata([("envoy.transport_socket_match", fields_of([("tlsMode", text(mode))]))]);
            out.filter_metadata.extend(socket.filter_metadata);
        }
        let features = &self.settings.options.features;
        if features.telemetry_label && features.endpoint_telemetry_label {
            let istio = metadata([("istio", fields_of([("workload", text(&workload(endpoint)))]))]);
            out.filter_metadata.extend(istio.filter_metadata);
        }
        out
    }
}

fn empty_group(locality: &Locality) -> api::LocalityLbEndpoints {
    api::LocalityLbEndpoints {
        locality: Some(core::Locality {
            region: locality.region.to_string(),
            zone: locality.zone.to_string(),
            sub_zone: locality.subzone.to_string(),
        }),
        ..api::LocalityLbEndpoints::default()
    }
}

/// `workload;namespace;canonical name;canonical revision;cluster`
fn workload(endpoint: &Endpoint) -> String {
    let label =
        |keys: [&str; 3]| keys.into_iter().find_map(|key| endpoint.labels.get(key)).map(|v| v.as_str());
    let name = label(["service.istio.io/canonical-name", "app.kubernetes.io/name", "app"]);
    let revision = label(["service.istio.io/canonical-revision", "app.kubernetes.io/version", "version"]);
    let Endpoint { workload, namespace, cluster, .. } = endpoint;
    let revision = revision.filter(|revision| *revision != "latest").unwrap_or_default();
    format!("{workload};{namespace};{};{revision};{cluster}", name.unwrap_or(workload))
}
