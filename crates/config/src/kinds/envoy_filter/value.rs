//! What a patch brings: one of Envoy's messages.

use pilot_envoy_api::reflect::{Json, Unknown};
use pilot_model::ApplyTo;

use crate::check::Check;
use crate::de;

fn message(apply_to: ApplyTo) -> &'static str {
    match apply_to {
        ApplyTo::Listener => "envoy.config.listener.v3.Listener",
        ApplyTo::FilterChain => "envoy.config.listener.v3.FilterChain",
        ApplyTo::NetworkFilter => "envoy.config.listener.v3.Filter",
        ApplyTo::ListenerFilter => "envoy.config.listener.v3.ListenerFilter",
        ApplyTo::HttpFilter => "envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter",
        ApplyTo::RouteConfiguration => "envoy.config.route.v3.RouteConfiguration",
        ApplyTo::VirtualHost => "envoy.config.route.v3.VirtualHost",
        ApplyTo::HttpRoute => "envoy.config.route.v3.Route",
        ApplyTo::Cluster => "envoy.config.cluster.v3.Cluster",
        ApplyTo::ExtensionConfig => "envoy.config.core.v3.TypedExtensionConfig",
        ApplyTo::Bootstrap => "envoy.config.bootstrap.v3.Bootstrap",
    }
}

/// The encoded message. Nothing, if it is none; fields that Envoy's message does not have are left out.
pub(super) fn read(path: &str, apply_to: ApplyTo, check: &mut Check<'_>) -> Option<Vec<u8>> {
    let node = check.node(path)?;
    let message = message(apply_to);
    let read = |unknown| de::read_with(node, path, Json { message, unknown });
    let typed = match read(Unknown::Skip) {
        Ok(typed) => typed,
        Err(error) => {
            check.leave_out(error.path, explain(error.message));
            return None;
        }
    };
    for unknown in &typed.unknown {
        check.warn(&unknown.path, "is not a field of Envoy's message and is left out");
    }
    // What is left out without a word are values that an enum does not have.
    if typed.unknown.is_empty()
        && let Err(error) = read(Unknown::Refuse)
    {
        check.warn(error.path, format!("{}; it is left out", error.message));
    }
    let by_name = typed.value.without_typed_config();
    if !by_name.is_empty() {
        let message = format!("asks for {} by name only, without a typed_config", by_name.join(", "));
        check.warn(path, message);
    }
    Some(typed.value.encode())
}

fn explain(message: String) -> String {
    let Some(name) = message.strip_prefix("message '").and_then(|rest| rest.strip_suffix("' not found"))
    else {
        return message;
    };
    if name.contains(".v2.") || name.contains(".v2alpha") {
        return format!("{name} is a type of Envoy's old API: use its v3");
    }
    format!(
        "{name} is not a type of Envoy's; one that only another build has can be given as a \
         udpa.type.v1.TypedStruct"
    )
}
