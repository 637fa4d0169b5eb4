//! Which Gateways a workload serves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilot_base::{Host, Name, SharedMap};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::GatewaySet;
use pilot_model::{Config, Gateway, MeshOptions, Protocol, Proxy, ProxyType};

use super::RuleKey;
use crate::graph::inputs::Inputs;
use crate::graph::registry::Registry;
use crate::graph::serving::Served;

/// A service with this label is called at the port that its workload listens at.
const NO_PORT_TRANSLATION: &str = "experimental.istio.io/disable-gateway-port-translation";

type Found = SharedMap<RuleKey, Arc<Config<Gateway>>>;

/// Gateways by one of the labels they ask for, so that a workload finds those for it without a look at the others.
#[derive(Clone, Copy)]
pub(in crate::graph) struct GatewayIndex {
    inputs: Inputs,
    by_label: Table<Option<(Name, Name)>, Found>,
}

impl GatewayIndex {
    pub(in crate::graph) fn declare(graph: &mut Graph, inputs: Inputs) -> Self {
        let by_label = graph.group("gateways by label", |feeds| {
            feeds.from(&inputs.gateways, |_, gateway: &Arc<Config<Gateway>>, out| {
                let label = gateway.spec.selector.iter().next();
                let label = label.map(|(key, value)| (key.clone(), value.clone()));
                out.emit(label, gateway.order(), Arc::clone(gateway));
            });
        });
        Self { inputs, by_label }
    }

    /// What a router serves; nothing for others.
    pub(in crate::graph) fn set_of(
        &self,
        proxy: &Proxy,
        served: &[Served],
        registry: Registry,
        reader: &Reader<'_>,
    ) -> Option<Arc<GatewaySet>> {
        if proxy.kind != ProxyType::Router {
            return None;
        }
        let options = reader.get(&self.inputs.options, &())?;
        let gateways = self.gateways(proxy, options, reader);
        let targets = registry.targets(reader, served);
        let called = |number: u16| {
            let targets = targets.iter().filter(|t| t.service.labels.get(NO_PORT_TRANSLATION).is_none());
            targets.into_iter().find(|t| t.port == number).map(|t| t.target_port)
        };
        let numbers = || gateways.iter().flat_map(|g| g.spec.servers.iter().map(|server| server.port));
        let ports: BTreeMap<u16, u16> = numbers()
            .filter_map(|number| Some((number, called(number)?)))
            .filter(|(number, target)| number != target)
            .collect();
        let over_udp = |number: &u16| {
            targets.iter().any(|target| target.port == *number && target.protocol == Protocol::Udp)
        };
        let udp_ports = if options.features.quic_listeners {
            numbers().filter(over_udp).collect()
        } else {
            BTreeSet::new()
        };
        let servers = gateways.iter().flat_map(|gateway| &gateway.spec.servers);
        let auto = servers.filter(|server| server.is_auto_passthrough()).flat_map(|server| &server.hosts);
        let mut auto_hosts: Vec<Host> = auto.map(|host| host.host.clone()).collect();
        auto_hosts.sort();
        auto_hosts.dedup();
        let gateways = gateways.iter().map(|gateway| gateway.id.clone()).collect();
        Some(Arc::new(GatewaySet { gateways, ports, udp_ports, auto_hosts }))
    }

    /// Those that select the workload, the oldest first.
    fn gateways<'a>(
        &self,
        proxy: &Proxy,
        options: &MeshOptions,
        reader: &Reader<'a>,
    ) -> Vec<&'a Arc<Config<Gateway>>> {
        let labels = proxy.labels.iter().map(|(key, value)| Some((key.clone(), value.clone())));
        let found = labels.chain([None]).filter_map(|label| reader.get(&self.by_label, &label));
        let mut out: Vec<&Arc<Config<Gateway>>> = found.flatten().map(|(_, gateway)| gateway).collect();
        let own = !options.features.scope_gateway_to_namespace;
        out.retain(|gateway| {
            gateway.spec.selector.subset_of(&proxy.labels) && (own || gateway.id.namespace == proxy.namespace)
        });
        out.sort_by_key(|gateway| gateway.order());
        out
    }
}
