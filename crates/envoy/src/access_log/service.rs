//! Logs that are sent to a service.

use pilot_base::Name;
use pilot_envoy_api::envoy::config::accesslog::v3 as api;
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::extensions::access_loggers::grpc::v3::{
    CommonGrpcAccessLogConfig, HttpGrpcAccessLogConfig, TcpGrpcAccessLogConfig,
};
use pilot_envoy_api::envoy::extensions::access_loggers::open_telemetry::v3::OpenTelemetryAccessLogConfig;
use pilot_envoy_api::opentelemetry::proto::common::v1::{AnyValue, KeyValue, KeyValueList, any_value};
use pilot_envoy_api::to_any;
use pilot_model::{HttpLogProvider, Json, OtelLogProvider, ProviderService, TcpLogProvider};

use super::{Of, TEXT_FORMAT, formatters, log};
use crate::provider::grpc_service;

const HTTP: &str = "envoy.access_loggers.http_grpc";
const TCP: &str = "envoy.tcp_grpc_access_log";
const HTTP_NAME: &str = "http_envoy_accesslog";
const TCP_NAME: &str = "tcp_envoy_accesslog";
/// What metadata exchange finds out about both ends, under its names of today and of long ago.
const PEERS: [&str; 6] = [
    "upstream_peer",
    "downstream_peer",
    "wasm.upstream_peer",
    "wasm.upstream_peer_id",
    "wasm.downstream_peer",
    "wasm.downstream_peer_id",
];

/// The service in a proxy's bootstrap.
pub(super) fn of_bootstrap(of: Of) -> api::AccessLog {
    let service = core::GrpcService {
        target_specifier: Some(core::grpc_service::TargetSpecifier::EnvoyGrpc(
            core::grpc_service::EnvoyGrpc {
                cluster_name: "envoy_accesslog_service".to_owned(),
                ..core::grpc_service::EnvoyGrpc::default()
            },
        )),
        ..core::GrpcService::default()
    };
    let name = match of {
        Of::Requests => HTTP_NAME,
        Of::Connections => TCP_NAME,
        Of::Listener => "listener_envoy_accesslog",
    };
    let common_config = Some(common(name, service, PEERS.map(str::to_owned).to_vec()));
    if of == Of::Requests {
        let config = HttpGrpcAccessLogConfig { common_config, ..HttpGrpcAccessLogConfig::default() };
        return log(HTTP, to_any(&config));
    }
    log(TCP, to_any(&TcpGrpcAccessLogConfig { common_config }))
}

pub(super) fn http(provider: &HttpLogProvider) -> api::AccessLog {
    let texts = |names: &[Name]| names.iter().map(Name::to_string).collect();
    let config = HttpGrpcAccessLogConfig {
        common_config: Some(provided(
            or(&provider.log_name, HTTP_NAME),
            &provider.service,
            &provider.filter_state,
        )),
        additional_request_headers_to_log: texts(&provider.request_headers),
        additional_response_headers_to_log: texts(&provider.response_headers),
        additional_response_trailers_to_log: texts(&provider.response_trailers),
    };
    log(HTTP, to_any(&config))
}

pub(super) fn tcp(provider: &TcpLogProvider) -> api::AccessLog {
    let common = provided(or(&provider.log_name, TCP_NAME), &provider.service, &provider.filter_state);
    log(TCP, to_any(&TcpGrpcAccessLogConfig { common_config: Some(common) }))
}

pub(super) fn open_telemetry(provider: &OtelLogProvider) -> api::AccessLog {
    let text = or(&provider.text, TEXT_FORMAT);
    let label = |value: &Json| match value {
        Json::Text(text) => text.to_string(),
        _ => String::new(),
    };
    let value = |text: String| AnyValue { value: Some(any_value::Value::StringValue(text)) };
    let attributes: Vec<KeyValue> = provider
        .labels
        .iter()
        .map(|(key, text)| KeyValue {
            key: key.to_string(),
            value: Some(value(label(text))),
            ..KeyValue::default()
        })
        .collect();
    let service = grpc_service(&provider.service);
    let name = or(&provider.log_name, "otel_envoy_accesslog");
    #[allow(deprecated, reason = "what replaces it is unknown to older proxies")]
    let config = OpenTelemetryAccessLogConfig {
        common_config: Some(common(name, service, PEERS.map(str::to_owned).to_vec())),
        disable_builtin_labels: true,
        body: Some(value(text.to_owned())),
        attributes: (!attributes.is_empty()).then_some(KeyValueList { values: attributes }),
        formatters: formatters(text, &provider.labels),
        ..OpenTelemetryAccessLogConfig::default()
    };
    log("envoy.access_loggers.open_telemetry", to_any(&config))
}

fn provided(name: &str, service: &ProviderService, filter_state: &[Name]) -> CommonGrpcAccessLogConfig {
    let mut state: Vec<String> = filter_state.iter().map(Name::to_string).collect();
    if state.is_empty() {
        state.extend(PEERS[..2].iter().map(|peer| (*peer).to_owned()));
    }
    common(name, grpc_service(service), state)
}

fn common(name: &str, service: core::GrpcService, filter_state: Vec<String>) -> CommonGrpcAccessLogConfig {
    CommonGrpcAccessLogConfig {
        log_name: name.to_owned(),
        grpc_service: Some(service),
        transport_api_version: core::ApiVersion::V3 as i32,
        filter_state_objects_to_log: filter_state,
        ..CommonGrpcAccessLogConfig::default()
    }
}

fn or<'a>(text: &'a Name, default: &'a str) -> &'a str {
    if text.is_empty() { default } else { text.as_str() }
}
