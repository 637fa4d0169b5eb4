//! What the rules mean. Plain functions from values to values: no table, no proxy, no protobuf.
//!
//! ```text
//!   ServiceEntry ─entry─► Service, Endpoint ◄─kube─ Service, EndpointSlice, Pod
//!   services of a host ─choose─► the one a client sees
//!   DestinationRules   ─traffic─► one TrafficPlan      VirtualServices ─delegate, routes─► those that apply
//!   Sidecar            ─egress──► what its listeners let through
//!                       all of them ─plan─► HostPlan, which `envoy` turns into resources
//! ```

mod attachment;
mod choose;
mod cluster_local;
mod delegate;
mod egress;
mod entry;
mod extensions;
mod gateway;
mod inbound;
mod keys;
mod kube;
mod layer;
mod locality;
mod names;
mod network;
mod peer;
mod plan;
mod policy;
mod routes;
mod telemetry;
mod traffic;
mod trust_domain;
mod workload;

#[cfg(test)]
mod testing;

pub use attachment::Workload;
pub(crate) use choose::add_service;
pub use choose::{choose, ports};
pub use cluster_local::is_cluster_local;
pub use delegate::{DelegateProblem, check_delegate, delegate_id, merge_delegates};
pub use egress::{EgressKey, Ports, covering_keys, egress_keys, egress_listeners, imports_rule};
pub use entry::{EntryPlan, EntrySurroundings, expand_entry, namespace_distribution};
pub use extensions::{
    ChainKind, ExtensionUse, UsedCode, extension_name, plugin_extension_id, used_extensions,
};
pub use gateway::{
    GatewaySet, LeftOut, MergedGateway, MergedPort, MergedServer, ServedHost, gateway_rank, intersection,
    l4_applies, merge_gateways, more_specific, overlaps,
};
pub use inbound::{Ingress, Target, ingress_targets, order_targets, pool_for, stand_in};
pub use keys::{TokenKeys, key_host, token_keys};
pub use kube::{SliceSurroundings, kube_endpoints, outranks};
pub use layer::{Layer, SidecarScope};
pub use locality::{LbSetting, NODE, Place, compared_labels, effective_locality, lb_labels, service_labels};
pub use names::{ClusterName, Direction, fqdn, spiffe};
pub use network::{
    Declared, NetworkGateway, NetworkGateways, NetworkMap, ServiceGateways, declared_gateways,
    service_gateways,
};
pub use peer::{NamespacePeers, PeerModes};
pub use plan::{HostPlan, LedTo, Outlook, View, rule_destinations};
pub use policy::{declared_tls, for_cluster, for_port, for_subset, with_default};
pub use routes::{
    MESH, RouteIndex, RouteRule, applies_to_mesh, destinations, l4_destinations, l4_source_labels,
    mirror_destinations, resolve_routes, routes_connections, source_labels,
};
pub use telemetry::{AccessLogs, LogTo, MetricPlan, StatsPlan, TelemetryScope, TraceTo, TracingPlan};
pub use traffic::{Client, RuleIndex, Traffic, TrafficPlan, resolve_rule, select_traffic};
pub use trust_domain::{domains_with_aliases, principals_with_aliases, trust_domains};
pub use workload::{Selectable, WorkloadId, WorkloadKey, pod_locality, workload_endpoints};
