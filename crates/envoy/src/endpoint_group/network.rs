//! Endpoints of other networks, which are reached over gateways.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use pilot_base::{Labels, Name};
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::config::endpoint::v3 as api;
use pilot_mesh::{NetworkGateway, NetworkGateways};
use pilot_model::{Address, Endpoint, Health, IpMode, Locality, TlsSupport};

use super::{Group, SOCKET_MATCH};
use crate::convert::endpoint_address;
use crate::metadata::{fields_of, metadata, text};
use crate::settings::Settings;

/// From where endpoints are called.
pub(super) struct Client<'a> {
    pub(super) network: &'a Name,
    pub(super) ip_mode: IpMode,
}

/// Puts gateways in the place of endpoints that are not in the client's network. They pass on nothing but mutual TLS.
pub(super) fn over_gateways<'e>(
    groups: Vec<Group<'e>>,
    gateways: &NetworkGateways,
    client: &Client<'_>,
    settings: Settings<'_>,
) -> Vec<Group<'e>> {
    groups.into_iter().map(|group| over(group, gateways, client, settings)).collect()
}

fn over<'e>(
    group: Group<'e>,
    gateways: &NetworkGateways,
    client: &Client<'_>,
    settings: Settings<'_>,
) -> Group<'e> {
    let Group { message, members } = group;
    let mut out = Group {
        message: api::LocalityLbEndpoints { lb_endpoints: Vec::new(), ..message },
        members: Vec::new(),
    };
    let mut weights: BTreeMap<&NetworkGateway, u32> = BTreeMap::new();
    for (member, mut told) in members.into_iter().zip(message.lb_endpoints) {
        let weight = told.load_balancing_weight.unwrap_or(1).max(1).saturating_mul(gateways.scale);
        told.load_balancing_weight = Some(weight);
        let towards = gateways.towards(&member);
        if client.reaches(&member, &towards) {
            if !matches!(&member.address, Address::Host(name) if name.is_empty()) {
                out.message.lb_endpoints.push(told);
                out.members.push(member);
            }
            continue;
        }
        let usable: Vec<_> = towards.into_iter().filter(|gateway| client.connects_to(gateway)).collect();
        if !is_mutual(&told) {
            continue;
        }
        let share = weight / u32::try_from(usable.len()).unwrap_or(u32::MAX).max(1);
        for gateway in usable {
            let sum = weights.entry(gateway).or_default();
            *sum = sum.saturating_add(share);
        }
    }
    for (gateway, weight) in weights {
        out.message.lb_endpoints.push(endpoint(gateway, weight.max(1), settings));
        out.members.push(Cow::Owned(member(gateway)));
    }
    out.weigh();
    out
}

impl Client<'_> {
    /// Is an endpoint called directly? A client that does not know where it is goes over gateways where there are some.
    fn reaches(&self, endpoint: &Endpoint, towards: &[&NetworkGateway]) -> bool {
        let has_gateways = !towards.is_empty();
        let network = &endpoint.network;
        let lost = self.network.is_empty() && !network.is_empty() && has_gateways;
        let same = network.is_empty() || self.network.is_empty() || network == self.network;
        !lost && (same || !has_gateways)
    }

    fn connects_to(&self, gateway: &NetworkGateway) -> bool {
        match (gateway.address.parse(), self.ip_mode) {
            (Ok(IpAddr::V4(_)), IpMode::V6) | (Ok(IpAddr::V6(_)), IpMode::V4) => false,
            (address, _) => address.is_ok(),
        }
    }
}

fn is_mutual(told: &api::LbEndpoint) -> bool {
    let matched = told.metadata.as_ref().and_then(|m| m.filter_metadata.get(SOCKET_MATCH));
    matched.is_some_and(|fields| *fields == fields_of([("tlsMode", text("istio"))]))
}

fn endpoint(gateway: &NetworkGateway, weight: u32, settings: Settings<'_>) -> api::LbEndpoint {
    use api::lb_endpoint::HostIdentifier;
    let features = &settings.options.features;
    let told = features.telemetry_label && features.endpoint_telemetry_label;
    let workload = fields_of([("workload", text(&format!(";;;;{}", gateway.cluster)))]);
    let mut about: core::Metadata = metadata([(SOCKET_MATCH, fields_of([("tlsMode", text("istio"))]))]);
    if told {
        about.filter_metadata.extend(metadata([("istio", workload)]).filter_metadata);
    }
    let address = Address::parse(&gateway.address);
    api::LbEndpoint {
        host_identifier: Some(HostIdentifier::Endpoint(api::Endpoint {
            address: Some(endpoint_address(&address, gateway.port)),
            ..api::Endpoint::default()
        })),
        load_balancing_weight: Some(weight),
        metadata: Some(about),
        ..api::LbEndpoint::default()
    }
}

/// A gateway as somebody whose labels are compared.
fn member(gateway: &NetworkGateway) -> Endpoint {
    Endpoint {
        address: Address::parse(&gateway.address),
        more_addresses: Vec::new(),
        port: gateway.port,
        port_name: Name::empty(),
        entry_port: None,
        labels: Labels::default(),
        service_account: Name::empty(),
        locality: Locality::default(),
        network: gateway.network.clone(),
        cluster: gateway.cluster.clone(),
        weight: 1,
        tls: TlsSupport::Istio,
        health: Health::Unknown,
        workload: Name::empty(),
        namespace: Name::empty(),
        node: Name::empty(),
        dns_name: None,
    }
}
