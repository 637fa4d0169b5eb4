//! Access logs, as Telemetry objects and the mesh configuration ask for them.

mod service;

use std::collections::BTreeMap;

use pilot_base::Name;
use pilot_envoy_api::envoy::config::accesslog::v3 as api;
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::extensions::access_loggers::file::v3::{FileAccessLog, file_access_log};
use pilot_envoy_api::envoy::extensions::access_loggers::filters::cel::v3::ExpressionFilter;
use pilot_envoy_api::envoy::extensions::formatter::req_without_query::v3::ReqWithoutQuery;
use pilot_envoy_api::to_any;
use pilot_mesh::{AccessLogs, LogTo};
use pilot_model::{ExtensionProvider, FileLogProvider, Json, LogFormat, ProviderKind};
use prost_types::{Any, Struct};

use crate::metadata::{fields_of, json_struct, text};
use crate::settings::Settings;

/// What Istio's users are used to reading.
const TEXT_FORMAT: &str = concat!(
    "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" %RESPONSE_CODE% %RESPONSE_FLAGS% ",
    "%RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% \"%UPSTREAM_TRANSPORT_FAILURE_REASON%\" %BYTES_RECEIVED% ",
    "%BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" ",
    "\"%REQ(X-REQUEST-ID)%\" \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\" %UPSTREAM_CLUSTER_RAW% %UPSTREAM_LOCAL_ADDRESS% ",
    "%DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%\n"
);

/// What is logged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Requests,
    Connections,
    /// Connections that no filter chain wanted, which no other log would mention.
    Listener,
}

/// Requests that were served or refused.
pub(crate) fn of_requests(settings: Settings<'_>) -> Vec<api::AccessLog> {
    logs(Of::Requests, settings)
}

/// Connections that were served or refused.
pub(crate) fn of_connections(settings: Settings<'_>) -> Vec<api::AccessLog> {
    logs(Of::Connections, settings)
}

/// Connections that no filter chain wanted.
pub(crate) fn of_listener(settings: Settings<'_>) -> Vec<api::AccessLog> {
    if settings.mesh.listener_access_log { logs(Of::Listener, settings) } else { Vec::new() }
}

fn logs(of: Of, settings: Settings<'_>) -> Vec<api::AccessLog> {
    match &settings.chain.logs {
        AccessLogs::To(list) => list.iter().filter_map(|to| provided(to, of, settings)).collect(),
        AccessLogs::OfMesh => {
            let mesh = settings.mesh;
            let own = (!mesh.access_log.path.is_empty()).then(|| mesh_file(&mesh.access_log.path, settings));
            let service = mesh.access_log_service.then(|| service::of_bootstrap(of));
            let filter = (of == Of::Listener).then(no_route);
            own.into_iter()
                .chain(service)
                .map(|log| api::AccessLog { filter: filter.clone(), ..log })
                .collect()
        }
    }
}

fn provided(to: &LogTo, of: Of, settings: Settings<'_>) -> Option<api::AccessLog> {
    let log = match &to.provider.kind {
        ProviderKind::FileLog(log) => provided_file(&to.provider, log, settings),
        ProviderKind::HttpLogService(log) => service::http(log),
        ProviderKind::TcpLogService(log) => service::tcp(log),
        ProviderKind::OpenTelemetryLog(log) => service::open_telemetry(log),
        _ => return None,
    };
    let no_route = (of == Of::Listener).then(no_route);
    let filters = no_route.into_iter().chain(to.filter.as_ref().map(expression)).collect();
    Some(api::AccessLog { filter: all_of(filters), ..log })
}

fn no_route() -> api::AccessLogFilter {
    use api::access_log_filter::FilterSpecifier;
    let no_route = api::ResponseFlagFilter { flags: vec!["NR".to_owned()] };
    api::AccessLogFilter { filter_specifier: Some(FilterSpecifier::ResponseFlagFilter(no_route)) }
}

fn expression(expression: &Name) -> api::AccessLogFilter {
    use api::access_log_filter::FilterSpecifier;
    let config =
        to_any(&ExpressionFilter { expression: expression.to_string(), ..ExpressionFilter::default() });
    let filter = api::ExtensionFilter {
        name: "envoy.access_loggers.extension_filters.cel".to_owned(),
        config_type: Some(api::extension_filter::ConfigType::TypedConfig(config)),
    };
    api::AccessLogFilter { filter_specifier: Some(FilterSpecifier::ExtensionFilter(filter)) }
}

fn all_of(mut filters: Vec<api::AccessLogFilter>) -> Option<api::AccessLogFilter> {
    use api::access_log_filter::FilterSpecifier;
    match filters.len() {
        0 | 1 => filters.pop(),
        _ => Some(api::AccessLogFilter {
            filter_specifier: Some(FilterSpecifier::AndFilter(api::AndFilter { filters })),
        }),
    }
}

fn log(name: &str, config: Any) -> api::AccessLog {
    api::AccessLog {
        name: name.to_owned(),
        filter: None,
        config_type: Some(api::access_log::ConfigType::TypedConfig(config)),
    }
}

/// Istio's own provider is formatted as the mesh says, unless it says something itself.
fn provided_file(
    provider: &ExtensionProvider,
    log: &FileLogProvider,
    settings: Settings<'_>,
) -> api::AccessLog {
    if provider.name == "envoy" && log.format.is_none() && !log.omit_empty_values {
        return mesh_file(&log.path, settings);
    }
    let default = LogFormat::Text(Name::empty());
    let format = core::SubstitutionFormatString {
        omit_empty_values: log.omit_empty_values,
        ..format(log.format.as_ref().unwrap_or(&default))
    };
    let stdout = Name::new("/dev/stdout");
    file(if log.path.is_empty() { &stdout } else { &log.path }, format)
}

fn mesh_file(path: &Name, settings: Settings<'_>) -> api::AccessLog {
    file(path, format(&settings.mesh.access_log.format))
}

fn file(path: &Name, format: core::SubstitutionFormatString) -> api::AccessLog {
    let config = FileAccessLog {
        path: path.to_string(),
        access_log_format: Some(file_access_log::AccessLogFormat::LogFormat(format)),
    };
    log("envoy.access_loggers.file", to_any(&config))
}

fn format(format: &LogFormat) -> core::SubstitutionFormatString {
    use core::substitution_format_string::Format;
    match format {
        LogFormat::Text(format) => {
            let text = text_format(format);
            core::SubstitutionFormatString {
                formatters: formatters(&text, &BTreeMap::new()),
                format: Some(Format::TextFormatSource(core::DataSource {
                    specifier: Some(core::data_source::Specifier::InlineString(text)),
                    ..core::DataSource::default()
                })),
                ..core::SubstitutionFormatString::default()
            }
        }
        LogFormat::Labels(labels) => core::SubstitutionFormatString {
            formatters: formatters("", labels),
            format: Some(Format::JsonFormat(if labels.is_empty() {
                json_format()
            } else {
                json_struct(labels)
            })),
            json_format_options: Some(core::JsonFormatOptions::default()),
            ..core::SubstitutionFormatString::default()
        },
    }
}

/// A command of Envoy's that must be asked for.
fn formatters(text: &str, labels: &BTreeMap<Name, Json>) -> Vec<core::TypedExtensionConfig> {
    const COMMAND: &str = "%REQ_WITHOUT_QUERY";
    let in_label = |label: &Json| matches!(label, Json::Text(text) if text.contains(COMMAND));
    let wanted = text.contains(COMMAND) || labels.values().any(in_label);
    let formatter = || core::TypedExtensionConfig {
        name: "envoy.formatter.req_without_query".to_owned(),
        typed_config: Some(to_any(&ReqWithoutQuery {})),
    };
    wanted.then(formatter).into_iter().collect()
}

/// The user's format, with the line break that users forget.
fn text_format(format: &str) -> String {
    match format {
        "" => TEXT_FORMAT.to_owned(),
        format if format.ends_with('\n') => format.to_owned(),
        format => format!("{format}\n"),
    }
}

fn json_format() -> Struct {
    fields_of([
        ("start_time", text("%START_TIME%")),
        ("route_name", text("%ROUTE_NAME%")),
        ("method", text("%REQ(:METHOD)%")),
        ("path", text("%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%")),
        ("protocol", text("%PROTOCOL%")),
        ("response_code", text("%RESPONSE_CODE%")),
        ("response_flags", text("%RESPONSE_FLAGS%")),
        ("response_code_details", text("%RESPONSE_CODE_DETAILS%")),
        ("connection_termination_details", text("%CONNECTION_TERMINATION_DETAILS%")),
        ("bytes_received", text("%BYTES_RECEIVED%")),
        ("bytes_sent", text("%BYTES_SENT%")),
        ("duration", text("%DURATION%")),
        ("upstream_service_time", text("%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%")),
        ("x_forwarded_for", text("%REQ(X-FORWARDED-FOR)%")),
        ("user_agent", text("%REQ(USER-AGENT)%")),
        ("request_id", text("%REQ(X-REQUEST-ID)%")),
        ("authority", text("%REQ(:AUTHORITY)%")),
        ("upstream_host", text("%UPSTREAM_HOST%")),
        ("upstream_cluster", text("%UPSTREAM_CLUSTER_RAW%")),
        ("upstream_local_address", text("%UPSTREAM_LOCAL_ADDRESS%")),
        ("downstream_local_address", text("%DOWNSTREAM_LOCAL_ADDRESS%")),
        ("downstream_remote_address", text("%DOWNSTREAM_REMOTE_ADDRESS%")),
        ("requested_server_name", text("%REQUESTED_SERVER_NAME%")),
        ("upstream_transport_failure_reason", text("%UPSTREAM_TRANSPORT_FAILURE_REASON%")),
    ])
}
