//! What the rules mean. Plain functions from values to values: no table, no proxy, no protobuf.
//!
//! ```text
//!   ServiceEntry ─entry─► Service, Endpoint ◄─kube─ Service, EndpointSlice, Pod
//!   services of a host ─choose─► the one a client sees
//!   DestinationRules   ─traffic─► one TrafficPlan      VirtualServices ─routes─► those that apply
//!                        all three ─plan─► HostPlan, which `envoy` turns into resources
//! ```

mod attachment;
mod choose;
mod entry;
mod extensions;
mod gateway;
mod inbound;
mod kube;
mod layer;
mod locality;
mod names;
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
pub use choose::{choose, ports};
pub use entry::{EntryPlan, EntrySurroundings, expand_entry};
pub use extensions::{
    ChainKind, ExtensionUse, UsedCode, extension_name, plugin_extension_id, used_extensions,
};
pub use gateway::{
    GatewaySet, LeftOut, MergedGateway, MergedPort, MergedServer, Quic, ServedHost, gateway_rank,
    intersection, l4_applies, merge_gateways, more_specific, overlaps,
};
pub use inbound::{Target, order_targets};
pub use kube::kube_endpoints;
pub use layer::{EgressKey, Layer, egress_keys, imports};
pub use locality::{LbSetting, Place, compared_labels, effective_locality, lb_labels, service_labels};
pub use names::{ClusterName, Direction, fqdn, spiffe};
pub use peer::{NamespacePeers, PeerModes};
pub use plan::{HostPlan, Outlook};
pub use policy::{declared_tls, for_cluster, for_port, for_subset, with_default};
pub use routes::{RouteRule, applies_to_mesh, destinations, resolve_routes, select_routes};
pub use telemetry::{AccessLogs, LogTo, MetricPlan, StatsPlan, TelemetryScope, TraceTo, TracingPlan};
pub use traffic::{RuleIndex, TrafficPlan, resolve_rule, select_traffic};
pub use trust_domain::{domains_with_aliases, principals_with_aliases, trust_domains};
pub use workload::{Selectable, WorkloadId, WorkloadKey};
