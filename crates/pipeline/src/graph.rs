//! The one declaration of all tables and who reads whom.
//!
//! ```text
//!  services, slices, entries ─registry─► services and endpoints by host ┐
//!  virtual services, rules   ─rules────► rules by host                  ├─plans─► what a host is to a layer
//!  proxies, sidecars         ─audience─► who asks for what              ┘            │
//!      clusters · endpoints · listeners · routes · inbound · gateways ◄──────────────┘
//!                     └─patched, by EnvoyFilters─► manifests: layers of encoded resources for each audience
//! ```

mod audience;
mod census;
mod clusters;
mod endpoints;
mod envoy_filters;
mod gateways;
mod grpc;
mod inbound;
mod inputs;
mod issues;
mod keys;
mod layered;
mod listeners;
mod manifests;
mod names;
mod namespaces;
mod networks;
mod on_demand;
mod patched;
mod plans;
mod pods;
mod registry;
mod routes;
mod rules;
mod seats;
mod secrets;
mod security;
mod selecting;
mod serving;
mod slices;
mod telemetry;
mod workloads;

use pilot_base::{Keyed, Name, ObjectRef, SharedMap};
use pilot_incr::{Engine, Graph, Table};
use pilot_model::{ConfigId, KeySource, ProxyId, Span};

pub use audience::Audience;
pub use census::Census;
pub(crate) use census::{CensusTables, CensusTaker};
pub use inputs::Inputs;
pub(crate) use issues::IssueTables;
pub use manifests::Sent;

/// What the outside may read.
#[derive(Clone, Copy)]
pub(crate) struct Outputs {
    pub(crate) audiences: Table<ProxyId, Keyed<Audience>>,
    pub(crate) members: Table<Keyed<Audience>, SharedMap<ProxyId, ()>>,
    pub(crate) manifests: Table<Keyed<Audience>, Sent>,
    pub(crate) issues: IssueTables,
    pub(crate) census: CensusTables,
    pub(crate) wanted_keys: Table<KeySource, SharedMap<(ConfigId, usize), Span>>,
    pub(crate) wanted_names: Table<Name, SharedMap<ObjectRef, ()>>,
}

pub(crate) fn build() -> (Engine, Inputs, Outputs) {
    let graph = &mut Graph::new();
    let inputs = Inputs::declare(graph);
    let registry = registry::Registry::declare(graph, inputs);
    let rules = rules::Rules::declare(graph, inputs);
    let policies = security::Policies::declare(graph, inputs);
    let keys = keys::Keys::declare(graph, inputs, registry);
    let gateways = gateways::GatewayIndex::declare(graph, inputs);
    let envoy_filters = envoy_filters::EnvoyFilters::declare(graph, inputs);
    let telemetries = telemetry::Telemetries::declare(graph, inputs, registry);
    let choices = audience::Choices { rules, policies, gateways, envoy_filters, telemetries };
    let audiences = audience::Audiences::declare(graph, inputs, registry, choices);
    let plans = plans::Plans::declare(graph, inputs, registry, rules, (policies, audiences));
    let filters = policies.filters(graph, &audiences.policies, registry);
    let clusters = clusters::Clusters::declare(graph, plans, audiences);
    let parts = manifests::Parts {
        clusters,
        early: on_demand::declare(graph, plans, rules, (clusters, audiences)),
        endpoints: endpoints::Endpoints::declare(graph, plans, audiences),
        listeners: listeners::Listeners::declare(graph, plans, audiences),
        routes: routes::Routes::declare(graph, plans, audiences),
        inbound: inbound::declare(graph, plans, audiences, filters),
        grpc: grpc::Grpc::declare(graph, plans, audiences),
        gateways: gateways::Gateways::declare(graph, plans, rules, (audiences, filters)),
        names: names::declare(graph, plans, audiences),
        extensions: telemetries.code,
        secrets: secrets::Secrets::declare(graph, inputs),
    };
    let patched = patched::Patched::declare(graph, plans, audiences, parts);
    let manifests = manifests::declare(graph, audiences, parts, patched);
    let issues = IssueTables::declare(
        graph,
        inputs,
        registry,
        rules,
        (parts.gateways.issues, patched.faults, keys.issues),
    );
    let census = CensusTables::new(inputs, registry, rules);
    let outputs = Outputs {
        audiences: audiences.of_proxy,
        members: audiences.all,
        manifests,
        issues,
        census,
        wanted_keys: keys.wanted,
        wanted_names: registry.networks.wanted,
    };
    (std::mem::take(graph).build(), inputs, outputs)
}
