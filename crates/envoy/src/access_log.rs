//! Access logs, as the mesh configuration asks for them.

use pilot_envoy_api::envoy::config::accesslog::v3 as api;
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::extensions::access_loggers::file::v3::{FileAccessLog, file_access_log};
use pilot_envoy_api::to_any;
use pilot_model::{AccessLog, LogFormat};
use prost_types::Struct;

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

/// Requests and connections that were served or refused.
pub(crate) fn of_traffic(settings: Settings<'_>) -> Vec<api::AccessLog> {
    Some(&settings.mesh.access_log)
        .filter(|log| !log.path.is_empty())
        .into_iter()
        .map(|log| file(log, None))
        .collect()
}

/// Connections that no filter chain wanted, which no other log would mention.
pub(crate) fn of_listener(settings: Settings<'_>) -> Vec<api::AccessLog> {
    use api::access_log_filter::FilterSpecifier;
    if !settings.mesh.listener_access_log {
        return Vec::new();
    }
    let no_route = api::ResponseFlagFilter { flags: vec!["NR".to_owned()] };
    let filter =
        api::AccessLogFilter { filter_specifier: Some(FilterSpecifier::ResponseFlagFilter(no_route)) };
    Some(&settings.mesh.access_log)
        .filter(|log| !log.path.is_empty())
        .into_iter()
        .map(|log| file(log, Some(filter.clone())))
        .collect()
}

fn file(log: &AccessLog, filter: Option<api::AccessLogFilter>) -> api::AccessLog {
    use api::access_log::ConfigType;
    use core::substitution_format_string::Format;
    let format = match &log.format {
        LogFormat::Text(format) => Format::TextFormatSource(core::DataSource {
            specifier: Some(core::data_source::Specifier::InlineString(text_format(format))),
            ..core::DataSource::default()
        }),
        LogFormat::Labels(labels) if labels.is_empty() => Format::JsonFormat(json_format()),
        LogFormat::Labels(labels) => Format::JsonFormat(json_struct(labels)),
    };
    let json = matches!(log.format, LogFormat::Labels(_));
    let format = core::SubstitutionFormatString {
        format: Some(format),
        json_format_options: json.then(core::JsonFormatOptions::default),
        ..core::SubstitutionFormatString::default()
    };
    let config = FileAccessLog {
        path: log.path.to_string(),
        access_log_format: Some(file_access_log::AccessLogFormat::LogFormat(format)),
    };
    api::AccessLog {
        name: "envoy.access_loggers.file".to_owned(),
        filter,
        config_type: Some(ConfigType::TypedConfig(to_any(&config))),
    }
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
