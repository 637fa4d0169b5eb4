//! Plans become Envoy's messages, and messages become bytes. Nothing here knows of tables or streams.
//!
//! One file per resource (`cluster`, `endpoint_group`, `listener`, `route_table`) and one per filter. What a resource may
//! depend on beyond the plan stands in its `…Traits`: two proxies with equal traits are sent the same bytes.

mod access_log;
mod authorization;
mod cluster;
mod compliance;
mod convert;
mod dynamic_forward_proxy;
mod endpoint_group;
mod ext_authz;
mod extension_config;
mod gateway;
mod grpc;
mod http_connection_manager;
mod http_filter;
mod listener;
mod metadata;
mod name_table;
mod network_filter;
mod patch;
mod provider;
mod rbac;
mod route;
mod route_table;
mod secret;
mod security;
mod server_tls;
mod settings;
mod stat_name;
mod tls_context;
mod tracing;
mod unserved;
mod virtual_host;

pub use cluster::{HostClusters, fixed_clusters, inbound_clusters, needs_endpoints, outbound_clusters};
pub use endpoint_group::{HostEndpoints, assignments};
pub use extension_config::wasm_extension;
pub use gateway::{
    AutoChain, AutoPassthrough, GatewayListener, GatewayPlace, GatewayRoutes, GatewayRules,
    GatewayVirtualHost, LeftOutChain, RoutedHost, auto_chains, gateway_listener, gateway_places,
    gateway_routes, gateway_table, gateway_virtual_hosts,
};
pub use grpc::{GrpcTraits, grpc_clusters, grpc_endpoints, grpc_inbound, grpc_listeners, grpc_routes};
pub use listener::{
    Guard, HttpPart, L4Part, OutboundListener, Part, PartKey, PartKind, Place, Surroundings,
    http_proxy_listener, inbound_listeners, merge_parts, outbound_listener, outbound_parts, virtual_outbound,
};
pub use name_table::{NameEntry, NameTraits, name_entries, name_table};
pub use patch::{
    Fault, Faults, Outcome, Patch, PatchSet, Patches, ProxyPatches, RouteSide, TablePatches, added_clusters,
    added_extensions, added_listeners, patch_cluster, patch_listener, patch_route_configuration,
};
pub use route_table::{RouteTable, route_table};
pub use secret::{CA_SUFFIX, authority_secret, key_pair_secret, secret_names};
pub use security::{SecurityFilters, SecurityPolicies, security_filters};
pub use settings::{
    ChainTraits, ClusterTraits, EndpointTraits, FixedTraits, HttpTraits, ListenerTraits, Outbound,
    PolicyTraits, RouteTraits, SecretServer, Settings, TracingTraits,
};
pub use unserved::{unserved_clusters, unserved_endpoints, unserved_gateway_routes, unserved_routes};
pub use virtual_host::{Neighbours, VirtualHost, virtual_hosts};
