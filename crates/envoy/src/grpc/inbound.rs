use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::Name;
use pilot_envoy_api::envoy::config::listener::v3 as listener;
use pilot_envoy_api::envoy::config::route::v3 as route;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3 as manager;
use pilot_envoy_api::envoy::extensions::transport_sockets::tls::v3 as tls;
use pilot_envoy_api::to_any;
use pilot_model::{AuthorizationPolicy, Config, MtlsMode};
use pilot_xds::{Encoded, TypeUrl};
use prost::Message as _;

use super::{common_tls, rbac, router, tls_socket};
use crate::convert::socket_address;
use crate::network_filter::filter;

/// How servers ask for what they are to do at an address.
const PREFIX: &str = "xds.istio.io/grpc/lds/inbound/";
/// Where servers listen, as they write it.
const ADDRESSES: [(&str, &str); 2] = [("0.0.0.0", "0.0.0.0"), ("[::]", "::")];

/// What servers are told about their own ports: whether clients must show who they are, and who of them may call.
pub fn grpc_inbound(
    ports: &BTreeMap<u16, MtlsMode>,
    policies: &[&Config<AuthorizationPolicy>],
) -> Vec<Arc<Encoded>> {
    let mut out = Vec::new();
    let mut filters = rbac::filters(policies);
    filters.push(router());
    for (port, mode) in ports {
        for (written, address) in ADDRESSES {
            let name = format!("{PREFIX}{written}:{port}");
            let message = listener::Listener {
                name: name.clone(),
                address: Some(socket_address(address, *port)),
                filter_chains: vec![chain(*mode, &filters)],
                ..listener::Listener::default()
            };
            out.push(Arc::new(Encoded::new(TypeUrl::Listener, Name::from(name), &message.encode_to_vec())));
        }
    }
    out
}

/// A server cannot do both at one port, so only the strict mode asks for TLS.
fn chain(mode: MtlsMode, filters: &[manager::HttpFilter]) -> listener::FilterChain {
    let kind = if mode == MtlsMode::Strict { "mtls" } else { "plaintext" };
    let context = tls::DownstreamTlsContext {
        common_tls_context: Some(common_tls(&[])),
        require_client_certificate: Some(true),
        ..tls::DownstreamTlsContext::default()
    };
    listener::FilterChain {
        name: format!("inbound-{kind}"),
        filters: vec![filter(&format!("inbound-hcm{kind}"), to_any(&manager(filters)))],
        transport_socket: (mode == MtlsMode::Strict).then(|| tls_socket(&to_any(&context))),
        ..listener::FilterChain::default()
    }
}

/// Every request is for the server itself.
fn manager(filters: &[manager::HttpFilter]) -> manager::HttpConnectionManager {
    use manager::http_connection_manager::RouteSpecifier;
    use route::route::Action;
    use route::route_match::PathSpecifier;
    let every = route::Route {
        r#match: Some(route::RouteMatch {
            path_specifier: Some(PathSpecifier::Prefix("/".to_owned())),
            ..route::RouteMatch::default()
        }),
        action: Some(Action::NonForwardingAction(route::NonForwardingAction {})),
        ..route::Route::default()
    };
    let host = route::VirtualHost {
        domains: vec!["*".to_owned()],
        routes: vec![every],
        ..route::VirtualHost::default()
    };
    let routes = route::RouteConfiguration {
        name: "inbound".to_owned(),
        virtual_hosts: vec![host],
        ..route::RouteConfiguration::default()
    };
    manager::HttpConnectionManager {
        route_specifier: Some(RouteSpecifier::RouteConfig(routes)),
        http_filters: filters.to_vec(),
        ..manager::HttpConnectionManager::default()
    }
}
