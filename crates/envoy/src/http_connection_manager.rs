//! What reads requests from a connection.

mod connection_settings;

use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::config::listener::v3 as listener;
use pilot_envoy_api::envoy::config::route::v3::RouteConfiguration;
use pilot_envoy_api::envoy::extensions::common::dynamic_forward_proxy::v3::DnsCacheConfig;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3 as api;
use pilot_envoy_api::envoy::extensions::request_id::uuid::v3::UuidRequestIdConfig;
use pilot_envoy_api::to_any;
use pilot_model::{ForwardClientCert, GatewayTopology, PathNormalization, Protocol, ServerHeader, Span};

use crate::access_log;
use crate::cluster::preserve_case;
use crate::convert::{ads_source, duration, seconds};
use crate::http_filter::{ChainContext, Direction, http_filters};
use crate::network_filter::filter;
use crate::security::SecurityFilters;
use crate::settings::{HttpTraits, Settings, TracingTraits};
use crate::tracing::{tracing, uses_request_id};

/// Where the routes come from.
pub(crate) enum Routes {
    /// Over the stream, under this name.
    Named(String),
    Here(Box<RouteConfiguration>),
}

pub(crate) struct Manager<'a> {
    pub(crate) direction: Direction,
    pub(crate) stat_prefix: String,
    pub(crate) routes: Routes,
    /// Of the application, or of the listener in front of somebody else's.
    pub(crate) port: u16,
    /// What the port was declared to speak.
    pub(crate) protocol: Protocol,
    pub(crate) idle_timeout: Option<Span>,
    pub(crate) traits: &'a HttpTraits,
    /// Policies of the workload, on the way to it or at a gateway.
    pub(crate) security: Option<&'a SecurityFilters>,
    /// Names that are looked up as they are called.
    pub(crate) names: Vec<DnsCacheConfig>,
}

impl Manager<'_> {
    pub(crate) fn build(self, settings: Settings<'_>) -> listener::Filter {
        of_message(&self.message(settings))
    }

    /// The same for requests over QUIC.
    pub(crate) fn build_http3(self, settings: Settings<'_>) -> listener::Filter {
        let mut manager = self.message(settings);
        manager.codec_type = api::http_connection_manager::CodecType::Http3 as i32;
        manager.http3_protocol_options = Some(core::Http3ProtocolOptions::default());
        of_message(&manager)
    }

    fn message(self, settings: Settings<'_>) -> api::HttpConnectionManager {
        use api::http_connection_manager::{CodecType, RouteSpecifier, UpgradeConfig};
        let features = &settings.options.features;
        let headers = &self.traits.headers;
        let upgrade = UpgradeConfig { upgrade_type: "websocket".to_owned(), ..UpgradeConfig::default() };
        let mut manager = api::HttpConnectionManager {
            codec_type: CodecType::Auto as i32,
            stat_prefix: self.stat_prefix,
            access_log: access_log::of_requests(settings),
            append_x_forwarded_port: headers.x_forwarded_port,
            use_remote_address: Some(match self.direction {
                Direction::Inbound => false,
                Direction::Outbound => features.use_remote_address,
                Direction::Gateway => true,
            }),
            upgrade_configs: vec![upgrade],
            stream_idle_timeout: Some(seconds(0)),
            http_filters: http_filters(ChainContext {
                direction: self.direction,
                port: self.port,
                protocol: self.protocol,
                traits: self.traits,
                security: self.security,
                names: &self.names,
                settings,
            }),
            tracing: tracing(&self.traits.tracing, settings),
            request_id_extension: Some(request_id(&self.traits.tracing)),
            proxy_100_continue: features.continue_headers,
            generate_request_id: headers.no_request_id.then_some(false),
            route_specifier: Some(match self.routes {
                Routes::Named(route_config_name) => {
                    RouteSpecifier::Rds(api::Rds { config_source: Some(ads_source()), route_config_name })
                }
                Routes::Here(config) => RouteSpecifier::RouteConfig(*config),
            }),
            ..api::HttpConnectionManager::default()
        };
        if let Some(idle) = self.idle_timeout {
            let idle_timeout = Some(duration(idle));
            manager.common_http_protocol_options =
                Some(core::HttpProtocolOptions { idle_timeout, ..core::HttpProtocolOptions::default() });
        }
        if self.protocol.is_http2() && self.direction == Direction::Inbound {
            manager.http2_protocol_options = Some(core::Http2ProtocolOptions::default());
        }
        if self.direction == Direction::Gateway {
            manager.http_protocol_options.get_or_insert_default();
        }
        set_http1(&mut manager, self.traits, settings);
        // Applications tell a forward proxy in full where requests are going.
        if self.protocol == Protocol::HttpProxy && self.direction == Direction::Outbound {
            manager.http_protocol_options.get_or_insert_default().allow_absolute_url = Some(true);
        }
        set_server(&mut manager, &headers.server, self.direction);
        set_paths(&mut manager, settings.mesh.path_normalization);
        if let Some(connections) = &self.traits.connections {
            connection_settings::apply(&mut manager, connections);
        }
        match self.direction {
            Direction::Inbound => set_client_certificate(&mut manager, self.traits),
            Direction::Outbound => (),
            Direction::Gateway => set_topology(&mut manager, self.traits.topology),
        }
        manager
    }
}

fn of_message(manager: &api::HttpConnectionManager) -> listener::Filter {
    filter("envoy.filters.network.http_connection_manager", to_any(manager))
}

fn set_http1(manager: &mut api::HttpConnectionManager, traits: &HttpTraits, settings: Settings<'_>) {
    if settings.options.features.http10 || traits.http10 {
        manager.http_protocol_options.get_or_insert_default().accept_http_10 = true;
    }
    if traits.headers.preserve_case {
        manager.http_protocol_options.get_or_insert_default().header_key_format =
            preserve_case().header_key_format;
    }
}

fn set_server(manager: &mut api::HttpConnectionManager, server: &ServerHeader, direction: Direction) {
    use api::http_connection_manager::ServerHeaderTransformation;
    match server {
        ServerHeader::Untouched => {
            manager.server_header_transformation = ServerHeaderTransformation::PassThrough as i32;
        }
        ServerHeader::Value(value) => manager.server_name = value.to_string(),
        // Outbound has always been plain "envoy", which is what Envoy says by itself.
        ServerHeader::Default if direction != Direction::Outbound => {
            manager.server_name = "istio-envoy".to_owned();
        }
        ServerHeader::Default => (),
    }
}

fn set_paths(manager: &mut api::HttpConnectionManager, normalization: PathNormalization) {
    use api::http_connection_manager::PathWithEscapedSlashesAction as Slashes;
    manager.normalize_path = Some(normalization != PathNormalization::None);
    manager.merge_slashes =
        matches!(normalization, PathNormalization::MergeSlashes | PathNormalization::DecodeAndMergeSlashes);
    manager.path_with_escaped_slashes_action = match normalization {
        PathNormalization::DecodeAndMergeSlashes => Slashes::UnescapeAndForward as i32,
        _ => Slashes::KeepUnchanged as i32,
    };
}

/// Who called, for the application to read.
fn set_client_certificate(manager: &mut api::HttpConnectionManager, traits: &HttpTraits) {
    use api::http_connection_manager::SetCurrentClientCertDetails;
    let forward = traits.headers.forwarded_client_cert.unwrap_or(ForwardClientCert::AppendForward);
    let details = traits.headers.cert_details;
    manager.forward_client_cert_details = forward_client_cert(forward);
    manager.set_current_client_cert_details = Some(SetCurrentClientCertDetails {
        subject: Some(details.subject.unwrap_or(true)),
        uri: details.uri.unwrap_or(true),
        dns: details.dns.unwrap_or(true),
        cert: details.cert.unwrap_or(false),
        chain: details.chain.unwrap_or(false),
        ..SetCurrentClientCertDetails::default()
    });
}

fn forward_client_cert(forward: ForwardClientCert) -> i32 {
    use api::http_connection_manager::ForwardClientCertDetails as Api;
    let forward = match forward {
        ForwardClientCert::Sanitize => Api::Sanitize,
        ForwardClientCert::ForwardOnly => Api::ForwardOnly,
        ForwardClientCert::AppendForward => Api::AppendForward,
        ForwardClientCert::SanitizeSet => Api::SanitizeSet,
        ForwardClientCert::AlwaysForwardOnly => Api::AlwaysForwardOnly,
    };
    forward as i32
}

/// Whom a gateway believes about where a request comes from: nobody, unless it is said what stands in front of it.
fn set_topology(manager: &mut api::HttpConnectionManager, topology: GatewayTopology) {
    use api::http_connection_manager::SetCurrentClientCertDetails;
    let forward = topology.forward_client_cert.unwrap_or(ForwardClientCert::SanitizeSet);
    manager.xff_num_trusted_hops = topology.num_trusted_proxies;
    manager.forward_client_cert_details = forward_client_cert(forward);
    if matches!(forward, ForwardClientCert::AppendForward | ForwardClientCert::SanitizeSet) {
        manager.set_current_client_cert_details = Some(SetCurrentClientCertDetails {
            subject: Some(true),
            uri: true,
            dns: true,
            cert: true,
            ..SetCurrentClientCertDetails::default()
        });
    }
}

/// The id by which a request is known to all who touch it may also decide whether it is traced.
fn request_id(traits: &TracingTraits) -> api::RequestIdExtension {
    let config = UuidRequestIdConfig {
        use_request_id_for_trace_sampling: Some(uses_request_id(traits)),
        ..UuidRequestIdConfig::default()
    };
    api::RequestIdExtension { typed_config: Some(to_any(&config)) }
}
