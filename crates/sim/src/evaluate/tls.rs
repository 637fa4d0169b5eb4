//! Who ends TLS, and who begins it.

use pilot_envoy_api::envoy::config::core::v3::{TransportSocket, transport_socket};
use pilot_envoy_api::envoy::config::listener::v3::FilterChain;
use pilot_envoy_api::envoy::extensions::transport_sockets::tls::v3::{
    DownstreamTlsContext, UpstreamTlsContext,
};
use pilot_envoy_api::envoy::extensions::upstreams::http::v3::HttpProtocolOptions;
use pilot_envoy_api::from_any;

use super::{Snapshot, TlsCall};

pub(super) enum Downstream {
    Refused,
    /// What was inside goes on in plain text.
    Ended,
    Untouched,
}

/// What a filter chain does with the TLS of a connection.
pub(super) fn downstream(chain: &FilterChain, call: Option<&TlsCall>) -> Result<Downstream, String> {
    let Some(socket) = &chain.transport_socket else { return Ok(Downstream::Untouched) };
    let Some(context) = config::<DownstreamTlsContext>(socket) else {
        return Err(format!("filter chain {} has an unknown transport socket {}", chain.name, socket.name));
    };
    let asks = context.require_client_certificate.unwrap_or(false);
    Ok(match call {
        Some(call) if call.shows_certificate || !asks => Downstream::Ended,
        _ => Downstream::Refused,
    })
}

/// The server name a cluster asks its servers for, if it speaks TLS with them. `authority` is what a request was for.
pub(super) fn upstream(snapshot: &Snapshot, cluster: &str, authority: Option<&str>) -> Option<String> {
    let cluster = snapshot.clusters.get(cluster)?;
    let context: UpstreamTlsContext = config(cluster.transport_socket.as_ref()?)?;
    let options = cluster.typed_extension_protocol_options.values().find_map(from_any::<HttpProtocolOptions>);
    let by_request = options.and_then(|o| o.upstream_http_protocol_options).is_some_and(|o| o.auto_sni);
    let host = |authority: &str| authority.split(':').next().unwrap_or_default().to_owned();
    Some(authority.filter(|_| by_request).map_or(context.sni, host))
}

fn config<M: prost::Message + prost::Name + Default>(socket: &TransportSocket) -> Option<M> {
    match &socket.config_type {
        Some(transport_socket::ConfigType::TypedConfig(any)) => from_any(any),
        None => None,
    }
}
