//! What clients and servers are told that are gRPC themselves, without an Envoy: the few messages that its libraries
//! read, by the names they ask for.
//!
//! ```text
//!   xds:///host:port ─► listener host:port ─► routes outbound|port||host ─► clusters ─► endpoints
//! ```

mod inbound;
mod rbac;

pub use inbound::grpc_inbound;

use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_envoy_api::envoy::config::cluster::v3 as cluster;
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::config::endpoint::v3 as endpoint;
use pilot_envoy_api::envoy::config::listener::v3 as listener;
use pilot_envoy_api::envoy::config::route::v3 as route;
use pilot_envoy_api::envoy::extensions::filters::http::fault::v3::HttpFault;
use pilot_envoy_api::envoy::extensions::filters::http::router::v3::Router;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3 as manager;
use pilot_envoy_api::envoy::extensions::transport_sockets::tls::v3 as tls;
use pilot_envoy_api::to_any;
use pilot_mesh::{ClusterName, HostPlan, for_subset};
use pilot_model::{Caller, ProxyType, Service, ServicePort, SimpleLb, TlsMode, TrafficPolicy};
use pilot_xds::{ChildMap, Children, Encoded, Summary, TypeUrl};
use prost::Message as _;

use crate::cluster::{apply_consistent_hash, discovery_type};
use crate::convert::{exact_matcher, socket_address, stat_prefix};
use crate::endpoint_group::is_told;
use crate::http_filter::stateful_session::{self, STATEFUL_SESSION};
use crate::http_filter::{FAULT, http_filter};
use crate::route_table::RouteTable;
use crate::settings::Settings;
use crate::tls_context::{DEFAULT, ROOT, TLS_SOCKET};
use crate::virtual_host::VirtualHost;

/// What of a gRPC client can shape what it is told.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GrpcTraits {
    pub caller: Caller,
    /// `namespace.svc.cluster.local`: shorter names are looked for there.
    pub dns_domain: Name,
    pub namespace: Name,
}

/// Configuration that comes over the stream this came over. Libraries refuse more than that.
fn ads() -> core::ConfigSource {
    use core::config_source::ConfigSourceSpecifier;
    core::ConfigSource {
        config_source_specifier: Some(ConfigSourceSpecifier::Ads(core::AggregatedConfigSource {})),
        ..core::ConfigSource::default()
    }
}

// --- clusters

/// One for each port and, for each port, one for each subset.
pub fn grpc_clusters(plan: &HostPlan, accounts: &[Name]) -> Vec<Arc<Encoded>> {
    let rule = plan.traffic.as_ref().map(|traffic| &traffic.rule);
    let mut out = Vec::new();
    for (service, port) in plan.ports() {
        let subsets = rule.into_iter().flat_map(|rule| &rule.subsets).map(|subset| &subset.name);
        for subset in std::iter::once(&Name::empty()).chain(subsets) {
            let policy = rule.and_then(|rule| for_subset(rule, subset, port.number));
            let name = ClusterName::outbound(port.number, subset, &service.host);
            let message = self::cluster(&name, policy.as_deref(), accounts);
            out.push(Arc::new(Encoded::new(TypeUrl::Cluster, name, &message.encode_to_vec())));
        }
    }
    out
}

/// For clusters whose endpoints an Envoy would look for itself, which libraries cannot do: none.
pub fn grpc_endpoints(plan: &HostPlan) -> Vec<Arc<Encoded>> {
    let subsets = plan.traffic.iter().flat_map(|traffic| &traffic.rule.subsets).map(|subset| &subset.name);
    let subsets: Vec<Name> = std::iter::once(Name::empty()).chain(subsets.cloned()).collect();
    let untold = |(service, _): &(&Arc<Service>, _)| !is_told(service, ProxyType::Sidecar);
    let ports = plan.ports().into_iter().filter(untold);
    let clusters = ports.flat_map(|(service, port)| {
        subsets.iter().map(|subset| ClusterName::outbound(port.number, subset, &service.host))
    });
    let empty = |name: Name| {
        let message = endpoint::ClusterLoadAssignment {
            cluster_name: name.to_string(),
            ..endpoint::ClusterLoadAssignment::default()
        };
        Arc::new(Encoded::new(TypeUrl::Endpoint, name, &message.encode_to_vec()))
    };
    clusters.map(empty).collect()
}

fn cluster(name: &Name, policy: Option<&TrafficPolicy>, accounts: &[Name]) -> cluster::Cluster {
    use cluster::cluster::{DiscoveryType, EdsClusterConfig, LbPolicy};
    let mut out = cluster::Cluster {
        name: name.to_string(),
        alt_stat_name: stat_prefix(name),
        cluster_discovery_type: Some(discovery_type(DiscoveryType::Eds)),
        eds_cluster_config: Some(EdsClusterConfig {
            eds_config: Some(ads()),
            service_name: name.to_string(),
        }),
        ..cluster::Cluster::default()
    };
    let Some(policy) = policy else { return out };
    if let Some(lb) = &policy.load_balancer {
        match &lb.consistent_hash {
            Some(hash) => apply_consistent_hash(&mut out, hash),
            None if lb.simple == SimpleLb::LeastRequest => out.lb_policy = LbPolicy::LeastRequest as i32,
            None => (),
        }
    }
    // Of all limits this is the only one that libraries know.
    let pool = policy.connection_pool.as_ref().and_then(|pool| pool.http.as_ref());
    let most = pool.map_or(0, |pool| pool.max_requests);
    if most > 0 {
        use cluster::circuit_breakers::Thresholds;
        let threshold = Thresholds { max_requests: Some(most), ..Thresholds::default() };
        out.circuit_breakers = Some(cluster::CircuitBreakers {
            thresholds: vec![threshold],
            ..cluster::CircuitBreakers::default()
        });
    }
    // Whether a client could speak TLS at all is not known, so it is only asked to where a rule says so.
    if policy.tls.as_ref().is_some_and(|tls| tls.mode == TlsMode::IstioMutual) {
        let context = tls::UpstreamTlsContext {
            common_tls_context: Some(common_tls(accounts)),
            ..tls::UpstreamTlsContext::default()
        };
        out.transport_socket = Some(tls_socket(&to_any(&context)));
    }
    out
}

fn tls_socket(context: &prost_types::Any) -> core::TransportSocket {
    use core::transport_socket::ConfigType;
    core::TransportSocket {
        name: TLS_SOCKET.to_owned(),
        config_type: Some(ConfigType::TypedConfig(context.clone())),
    }
}

/// Certificates come from the library's own bootstrap. Older ones read one form of that, newer ones the other.
#[allow(deprecated, reason = "older libraries read nothing else")]
fn common_tls(accounts: &[Name]) -> tls::CommonTlsContext {
    use tls::common_tls_context::{
        CertificateProviderInstance, CombinedCertificateValidationContext, ValidationContextType,
    };
    let old = |name: &str| CertificateProviderInstance {
        instance_name: DEFAULT.to_owned(),
        certificate_name: name.to_owned(),
    };
    let new = |name: &str| tls::CertificateProviderPluginInstance {
        instance_name: DEFAULT.to_owned(),
        certificate_name: name.to_owned(),
    };
    let validation = CombinedCertificateValidationContext {
        validation_context_certificate_provider_instance: Some(old(ROOT)),
        default_validation_context: Some(tls::CertificateValidationContext {
            match_subject_alt_names: accounts.iter().map(exact_matcher).collect(),
            ca_certificate_provider_instance: Some(new(ROOT)),
            ..tls::CertificateValidationContext::default()
        }),
        ..CombinedCertificateValidationContext::default()
    };
    tls::CommonTlsContext {
        tls_certificate_provider_instance: Some(new(DEFAULT)),
        tls_certificate_certificate_provider_instance: Some(old(DEFAULT)),
        validation_context_type: Some(ValidationContextType::CombinedValidationContext(validation)),
        ..tls::CommonTlsContext::default()
    }
}

// --- listeners

/// One for each port, under each name by which the host may be called.
pub fn grpc_listeners(plan: &HostPlan, traits: &GrpcTraits, settings: Settings<'_>) -> Vec<Arc<Encoded>> {
    let mut out = Vec::new();
    for (service, port) in plan.ports() {
        let session = stateful_session::of_service(service, settings);
        let session = session.map(|session| http_filter(STATEFUL_SESSION, to_any(&session)));
        let fault = http_filter(FAULT, to_any(&HttpFault::default()));
        let filters: Vec<_> = session.into_iter().chain([fault, router()]).collect();
        for name in names(&plan.host, traits) {
            let name = format!("{name}:{}", port.number);
            let message = self::listener(&name, (service, port), &filters, traits);
            out.push(Arc::new(Encoded::new(TypeUrl::Listener, Name::from(name), &message.encode_to_vec())));
        }
    }
    out
}

/// The host, and what is enough of its name in the client's own domain.
fn names(host: &Host, traits: &GrpcTraits) -> Vec<String> {
    let mut out = vec![host.to_string()];
    let domain = format!(".{}", traits.dns_domain);
    if let Some(short) = host.as_str().strip_suffix(&domain) {
        let namespace = &traits.namespace;
        if !short.contains('.') {
            out.push(short.to_owned());
        }
        let within = [format!("{namespace}"), format!("{namespace}.svc")];
        let known = within.into_iter().filter(|suffix| traits.dns_domain.starts_with(suffix.as_str()));
        out.extend(known.map(|suffix| format!("{short}.{suffix}")));
    }
    out
}

fn listener(
    name: &str,
    (service, port): (&Service, &ServicePort),
    filters: &[manager::HttpFilter],
    traits: &GrpcTraits,
) -> listener::Listener {
    use manager::http_connection_manager::RouteSpecifier;
    let addresses = service.addresses_from(&traits.caller);
    let first = addresses.first().map_or("0.0.0.0", Name::as_str);
    let manager = manager::HttpConnectionManager {
        http_filters: filters.to_vec(),
        route_specifier: Some(RouteSpecifier::Rds(manager::Rds {
            config_source: Some(ads()),
            route_config_name: ClusterName::outbound(port.number, "", &service.host).to_string(),
        })),
        ..manager::HttpConnectionManager::default()
    };
    listener::Listener {
        name: name.to_owned(),
        address: Some(socket_address(first, port.number)),
        api_listener: Some(listener::ApiListener { api_listener: Some(to_any(&manager)) }),
        ..listener::Listener::default()
    }
}

fn router() -> manager::HttpFilter {
    http_filter("envoy.filters.http.router", to_any(&Router::default()))
}

// --- routes

/// A table for each port of a host, with that host alone in it; empty where it does not speak HTTP.
pub fn grpc_routes(plan: &HostPlan, hosts: &[VirtualHost]) -> Vec<Arc<Encoded>> {
    let table = |(service, port): (&Arc<Service>, &ServicePort)| {
        let name = ClusterName::outbound(port.number, "", &service.host);
        let here = hosts.iter().filter(|host| host.table == RouteTable::Port(port.number));
        let entries: ChildMap = here.map(|host| (host.name.clone(), host.entry.clone())).collect();
        let header =
            route::RouteConfiguration { name: name.to_string(), ..route::RouteConfiguration::default() };
        let children = Children::new(entries.clone(), Summary::of(&entries), ChildMap::new(), None);
        Arc::new(Encoded::assemble(TypeUrl::Route, name, &header.encode_to_vec(), children))
    };
    plan.ports().into_iter().map(table).collect()
}
