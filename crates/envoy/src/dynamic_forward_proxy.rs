//! Names that a proxy looks up as they are called. Filters find them out and clusters connect to them; both must speak of
//! the same cache in the same words.

use pilot_base::Host;
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::config::listener::v3 as listener;
use pilot_envoy_api::envoy::extensions::common::dynamic_forward_proxy::v3::DnsCacheConfig;
use pilot_envoy_api::envoy::extensions::filters::http::dynamic_forward_proxy::v3 as http;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use pilot_envoy_api::envoy::extensions::filters::network::sni_dynamic_forward_proxy::v3 as sni;
use pilot_envoy_api::envoy::extensions::network::dns_resolver::cares::v3::CaresDnsResolverConfig;
use pilot_envoy_api::to_any;
use pilot_model::{IpMode, OutboundMode, Resolution, Service};

use crate::cluster::lookup_family;
use crate::convert::socket_address;
use crate::http_filter::http_filter;
use crate::network_filter::filter;
use crate::settings::{Outbound, Settings};

/// The cluster of hosts that nobody declared.
pub(crate) const ANY_CLUSTER: &str = "AllowAnyDynamicDNSCluster";
/// Its routes.
pub(crate) const ANY_ROUTE: &str = "allow_any_dynamic_dns";

/// The pattern whose hosts are found out as they are called.
pub(crate) fn dynamic_host(service: &Service) -> Option<&Host> {
    let is_dynamic = service.resolution == Resolution::DynamicDns && service.host.is_wildcard();
    is_dynamic.then_some(&service.host)
}

/// The names that a pattern stands for.
pub(crate) fn names_of(host: &Host, mode: IpMode, settings: Settings<'_>) -> DnsCacheConfig {
    DnsCacheConfig {
        name: format!("{host}_dfp_dns_cache"),
        dns_lookup_family: lookup_family(mode, settings) as i32,
        ..DnsCacheConfig::default()
    }
}

/// All other names, where the mesh lets anybody be called by name.
pub(crate) fn any_names(outbound: &Outbound, mode: IpMode, settings: Settings<'_>) -> Option<DnsCacheConfig> {
    let resolver = outbound.dns_proxy.as_ref().map(|(address, port)| CaresDnsResolverConfig {
        resolvers: vec![socket_address(address, *port)],
        ..CaresDnsResolverConfig::default()
    });
    (outbound.mode == OutboundMode::AllowAnyDynamicDns).then(|| DnsCacheConfig {
        name: "allow_any_dfp_dns_cache".to_owned(),
        dns_lookup_family: lookup_family(mode, settings) as i32,
        max_hosts: Some(settings.options.features.dynamic_dns_max_hosts),
        typed_dns_resolver_config: resolver.map(|resolver| core::TypedExtensionConfig {
            name: "envoy.network.dns_resolver.cares".to_owned(),
            typed_config: Some(to_any(&resolver)),
        }),
        ..DnsCacheConfig::default()
    })
}

/// Looks up the host of a request.
pub(crate) fn for_requests(names: &DnsCacheConfig) -> HttpFilter {
    use http::filter_config::ImplementationSpecifier;
    let config = http::FilterConfig {
        implementation_specifier: Some(ImplementationSpecifier::DnsCacheConfig(names.clone())),
        ..http::FilterConfig::default()
    };
    http_filter("envoy.filters.http.dynamic_forward_proxy", to_any(&config))
}

/// Looks up the server name that a TLS client asks for.
pub(crate) fn for_connections(names: DnsCacheConfig, port: u16) -> listener::Filter {
    let config = sni::FilterConfig {
        dns_cache_config: Some(names),
        port_specifier: Some(sni::filter_config::PortSpecifier::PortValue(u32::from(port))),
        ..sni::FilterConfig::default()
    };
    filter("envoy.extensions.filters.network.sni_dynamic_forward_proxy", to_any(&config))
}
