use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::extensions::filters::http::lua::v3::Lua;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpFilter, http_filter::ConfigType,
};
use pilot_envoy_api::to_any;
use pilot_mesh::{ExtensionUse, UsedCode};

use crate::extension_config::discovery;

/// The agent may replace code that it cannot fetch by a filter that refuses everything.
const WASM_OR_REFUSAL: [&str; 2] = [
    "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
    "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
];

/// Code of the user's: here if it is short, by name if it is not.
pub(super) fn filter(extension: &ExtensionUse) -> HttpFilter {
    let config = match &extension.code {
        UsedCode::Wasm => ConfigType::ConfigDiscovery(discovery(WASM_OR_REFUSAL)),
        UsedCode::Lua(code) => ConfigType::TypedConfig(to_any(&Lua {
            default_source_code: Some(core::DataSource {
                specifier: Some(core::data_source::Specifier::InlineString(code.to_string())),
                ..core::DataSource::default()
            }),
            ..Lua::default()
        })),
    };
    HttpFilter { name: extension.name.to_string(), config_type: Some(config), ..HttpFilter::default() }
}
