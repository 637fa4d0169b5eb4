use std::sync::Arc;

use pilot_base::Name;
use pilot_envoy_api::envoy::config::core::v3::{address, socket_address::PortSpecifier};
use pilot_envoy_api::envoy::config::listener::v3::listener_filter::ConfigType;
use pilot_envoy_api::envoy::config::listener::v3::{Filter, FilterChain, Listener, ListenerFilter, filter};
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3 as manager;
use pilot_envoy_api::{from_any, to_any};
use pilot_model::{ApplyTo, ChainMatch, ListenerMatch, ObjectMatch, PatchOperation};
use pilot_xds::{Encoded, TypeUrl};
use prost::Message as _;

use super::cluster::merge_socket;
use super::list::{arrange, merge, merge_config};
use super::network::patch_filters;
use super::route::{RouteSide, patch_routes};
use super::{Faults, Outcome, Patch, Patches};

/// `routes` are for the routes that a listener has in itself, as those of the workload's own ports.
pub fn patch_listener(
    encoded: &Encoded,
    patches: Option<&Patches>,
    routes: Option<&Patches>,
    faults: &mut Faults,
) -> Outcome {
    let Ok(before) = Listener::decode(encoded.message().as_slice()) else { return Outcome::Same };
    let mut listener = before.clone();
    if let Some(routes) = routes {
        patch_own_routes(&mut listener, routes, faults);
    }
    if let Some(patches) = patches {
        let place = Place::of(&listener);
        let matching: Vec<&Patch> = patches.iter().filter(|patch| place.matches(patch)).collect();
        if !matching.is_empty() {
            let scope = Scope { place, patches: matching };
            if !scope.patch(&mut listener, faults) {
                return Outcome::Removed;
            }
        }
    }
    if listener == before {
        return Outcome::Same;
    }
    let bytes = listener.encode_to_vec();
    Outcome::Changed(Arc::new(Encoded::new(TypeUrl::Listener, encoded.name().clone(), &bytes)))
}

/// Listeners that patches bring.
pub fn added_listeners(patches: &Patches, faults: &mut Faults) -> Vec<Arc<Encoded>> {
    let mut out = Vec::new();
    for patch in patches.to(ApplyTo::Listener).filter(|patch| patch.spec.operation == PatchOperation::Add) {
        let listener: Listener = patch.value();
        if listener.name.is_empty() {
            faults.add(patch, "a listener needs a name");
        } else {
            let name = Name::new(&listener.name);
            out.push(Arc::new(Encoded::new(TypeUrl::Listener, name, &listener.encode_to_vec())));
        }
    }
    out
}

fn patch_own_routes(listener: &mut Listener, patches: &Patches, faults: &mut Faults) {
    use manager::http_connection_manager::RouteSpecifier;
    let chains = listener.filter_chains.iter_mut().chain(&mut listener.default_filter_chain);
    for filter in chains.flat_map(|chain| &mut chain.filters) {
        let Some(filter::ConfigType::TypedConfig(any)) = &mut filter.config_type else { continue };
        let Some(mut manager) = from_any::<manager::HttpConnectionManager>(any) else { continue };
        if let Some(RouteSpecifier::RouteConfig(routes)) = &mut manager.route_specifier {
            patch_routes(routes, patches, RouteSide::Inbound, faults);
            *any = to_any(&manager);
        }
    }
}

/// Where a listener stands, as far as patches ask for it.
pub(super) struct Place {
    name: String,
    port: u32,
    /// The listeners to which everything is redirected: their ports are those of their chains.
    is_virtual: bool,
}

impl Place {
    fn of(listener: &Listener) -> Self {
        let address = listener.address.as_ref().and_then(|address| address.address.as_ref());
        let port = match address {
            Some(address::Address::SocketAddress(socket)) => match socket.port_specifier {
                Some(PortSpecifier::PortValue(port)) => port,
                _ => 0,
            },
            _ => 0,
        };
        let is_virtual = listener.name == "virtualInbound" || listener.name == "virtualOutbound";
        Self { name: listener.name.clone(), port, is_virtual }
    }

    fn matches(&self, patch: &Patch) -> bool {
        let Some(matching) = listener_match(patch) else { return true };
        if !matching.name.is_empty() && matching.name.as_str() != self.name {
            return false;
        }
        let by_chain = patch.spec.apply_to != ApplyTo::Listener && self.is_virtual;
        by_chain || matching.port.is_none_or(|port| port == self.port)
    }

    pub(super) fn matches_chain(&self, chain: &FilterChain, patch: &Patch) -> bool {
        let Some(matching) = listener_match(patch) else { return true };
        let traffic = chain.filter_chain_match.as_ref();
        let port = traffic.and_then(|traffic| traffic.destination_port);
        if self.is_virtual && matching.port.is_some_and(|wanted| port.unwrap_or(0) != wanted) {
            return false;
        }
        let Some(wanted) = &matching.filter_chain else { return true };
        let ChainMatch { name, sni, transport_protocol, application_protocols, destination_port, .. } =
            wanted;
        let has = |list: &[String], text: &Name| list.iter().any(|item| item == text.as_str());
        let protocols = traffic.map(|traffic| traffic.application_protocols.as_slice()).unwrap_or_default();
        (name.is_empty() || name.as_str() == chain.name)
            && (sni.is_empty() || traffic.is_some_and(|traffic| has(&traffic.server_names, sni)))
            && (transport_protocol.is_empty()
                || traffic.is_some_and(|t| t.transport_protocol == transport_protocol.as_str()))
            && application_protocols.iter().all(|protocol| has(protocols, protocol))
            && destination_port.is_none_or(|wanted| port == Some(wanted))
    }
}

pub(super) fn listener_match(patch: &Patch) -> Option<&ListenerMatch> {
    match &patch.spec.object {
        ObjectMatch::Listener(matching) => Some(matching),
        _ => None,
    }
}

/// A listener, and the patches that are for it.
pub(super) struct Scope<'a> {
    pub(super) place: Place,
    patches: Vec<&'a Patch>,
}

impl Scope<'_> {
    pub(super) fn to(&self, apply_to: ApplyTo) -> impl Iterator<Item = &Patch> {
        self.patches.iter().copied().filter(move |patch| patch.spec.apply_to == apply_to)
    }

    /// `false`: the listener is to be removed.
    fn patch(&self, listener: &mut Listener, faults: &mut Faults) -> bool {
        for patch in self.to(ApplyTo::Listener) {
            match patch.spec.operation {
                PatchOperation::Remove => return false,
                operation if operation.is_merge() => {
                    merge(listener, patch, faults);
                    if listener.name != self.place.name {
                        faults.add(patch, "must not give a listener another name: its own is kept");
                        listener.name.clone_from(&self.place.name);
                    }
                }
                _ => (),
            }
        }
        for patch in self.to(ApplyTo::ListenerFilter) {
            patch_listener_filters(&mut listener.listener_filters, patch, faults);
        }
        self.patch_chains(listener, faults);
        true
    }

    fn patch_chains(&self, listener: &mut Listener, faults: &mut Faults) {
        listener.filter_chains.retain_mut(|chain| self.patch_chain(chain, faults));
        if let Some(mut chain) = listener.default_filter_chain.take()
            && (chain.filters.is_empty() || self.patch_chain(&mut chain, faults))
        {
            listener.default_filter_chain = Some(chain);
        }
        for patch in self.to(ApplyTo::FilterChain).filter(|p| p.spec.operation == PatchOperation::Add) {
            let chain: FilterChain = patch.value();
            if chain.filters.is_empty() {
                faults.add(patch, "a filter chain without filters is not added");
            } else {
                listener.filter_chains.push(chain);
            }
        }
    }

    /// `false`: the chain is to be removed, as is one that has nothing to do.
    fn patch_chain(&self, chain: &mut FilterChain, faults: &mut Faults) -> bool {
        if chain.filters.is_empty() {
            return false;
        }
        for patch in self.to(ApplyTo::FilterChain) {
            if !self.place.matches_chain(chain, patch) {
                continue;
            }
            match patch.spec.operation {
                PatchOperation::Remove => return false,
                operation if operation.is_merge() => merge_chain(chain, patch, faults),
                _ => (),
            }
        }
        patch_filters(self, chain, faults);
        true
    }
}

/// A patch for the transport socket that is there changes that and nothing else.
fn merge_chain(chain: &mut FilterChain, patch: &Patch, faults: &mut Faults) {
    let over: FilterChain = patch.value();
    match (&mut chain.transport_socket, &over.transport_socket) {
        (Some(there), Some(over)) if there.name == over.name => merge_socket(there, over, patch, faults),
        _ => merge(chain, patch, faults),
    }
}

fn patch_listener_filters(filters: &mut Vec<ListenerFilter>, patch: &Patch, faults: &mut Faults) {
    let wanted = listener_match(patch).map(|matching| &matching.listener_filter).filter(|n| !n.is_empty());
    let is_wanted = |filter: &ListenerFilter| wanted.is_some_and(|name| filter.name == name.as_str());
    let finds: Option<&dyn Fn(&ListenerFilter) -> bool> = wanted.map(|_| &is_wanted as _);
    if patch.spec.operation != PatchOperation::Merge {
        return arrange(filters, patch.spec.operation, || patch.value(), finds);
    }
    let over: ListenerFilter = patch.value();
    for filter in filters.iter_mut().filter(|filter| is_wanted(filter)) {
        if let (Some(ConfigType::TypedConfig(base)), Some(ConfigType::TypedConfig(over))) =
            (&mut filter.config_type, &over.config_type)
        {
            merge_config(base, over, patch, faults);
        }
    }
}

pub(super) fn typed_config(filter: &mut Filter) -> Option<&mut prost_types::Any> {
    match &mut filter.config_type {
        Some(filter::ConfigType::TypedConfig(any)) => Some(any),
        _ => None,
    }
}
