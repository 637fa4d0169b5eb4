//! Limits for clients, which a proxy's own settings can ask for.

use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3 as api;
use pilot_model::{ConnectionSettings, EscapedSlashes, Underscores};

use crate::convert::duration;

/// What is said there counts more than what the mesh says about paths.
pub(super) fn apply(manager: &mut api::HttpConnectionManager, settings: &ConnectionSettings) {
    set_common(manager, settings);
    set_http2(manager, settings);
    let spans = [
        (&mut manager.stream_idle_timeout, settings.stream_idle_timeout),
        (&mut manager.request_timeout, settings.request_timeout),
        (&mut manager.request_headers_timeout, settings.request_headers_timeout),
        (&mut manager.drain_timeout, settings.drain_timeout),
    ];
    for (field, span) in spans {
        *field = span.map(duration).or_else(|| field.take());
    }
    if let Some(merge) = settings.merge_slashes {
        manager.merge_slashes = merge;
    }
    if let Some(action) = settings.escaped_slashes {
        use api::http_connection_manager::PathWithEscapedSlashesAction as Api;
        manager.path_with_escaped_slashes_action = match action {
            EscapedSlashes::KeepUnchanged => Api::KeepUnchanged,
            EscapedSlashes::RejectRequest => Api::RejectRequest,
            EscapedSlashes::UnescapeAndRedirect => Api::UnescapeAndRedirect,
            EscapedSlashes::UnescapeAndForward => Api::UnescapeAndForward,
        } as i32;
    }
}

fn set_common(manager: &mut api::HttpConnectionManager, settings: &ConnectionSettings) {
    use core::http_protocol_options::HeadersWithUnderscoresAction as Api;
    let spans = [settings.idle_timeout, settings.max_connection_duration, settings.max_stream_duration];
    if spans.iter().all(Option::is_none) && settings.underscores.is_none() {
        return;
    }
    let common = manager.common_http_protocol_options.get_or_insert_default();
    common.idle_timeout = settings.idle_timeout.map(duration).or_else(|| common.idle_timeout.take());
    common.max_connection_duration = settings.max_connection_duration.map(duration);
    common.max_stream_duration = settings.max_stream_duration.map(duration);
    if let Some(action) = settings.underscores {
        common.headers_with_underscores_action = match action {
            Underscores::Allow => Api::Allow,
            Underscores::RejectRequest => Api::RejectRequest,
            Underscores::DropHeader => Api::DropHeader,
        } as i32;
    }
}

fn set_http2(manager: &mut api::HttpConnectionManager, settings: &ConnectionSettings) {
    let sizes = [settings.max_concurrent_streams, settings.stream_window, settings.connection_window];
    if sizes.iter().all(Option::is_none) {
        return;
    }
    let http2 = manager.http2_protocol_options.get_or_insert_default();
    http2.max_concurrent_streams = settings.max_concurrent_streams;
    http2.initial_stream_window_size = settings.stream_window;
    http2.initial_connection_window_size = settings.connection_window;
}
