//! Code of the user's as a resource of its own, which filters ask for by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::extensions::filters::{http::wasm::v3 as http, network::wasm::v3 as network};
use pilot_envoy_api::envoy::extensions::wasm::v3 as api;
use pilot_envoy_api::to_any;
use pilot_mesh::extension_name;
use pilot_model::{ConfigId, FailStrategy, PullPolicy, Wasm, WasmUrl};
use pilot_xds::{Encoded, TypeUrl};
use prost::Message as _;
use prost_types::Any;

use crate::convert::{ads_source, seconds};

/// Notes for the agent, which takes them out before Envoy sees them.
const PULL_SECRET: &str = "ISTIO_META_WASM_IMAGE_PULL_SECRET";
const PULL_POLICY: &str = "ISTIO_META_WASM_IMAGE_PULL_POLICY";
const RESOURCE_VERSION: &str = "ISTIO_META_WASM_PLUGIN_RESOURCE_VERSION";

/// Where a filter finds its configuration, which is of one of these types.
pub(crate) fn discovery(types: [&str; 2]) -> core::ExtensionConfigSource {
    core::ExtensionConfigSource {
        config_source: Some(ads_source()),
        type_urls: types.map(str::to_owned).to_vec(),
        ..core::ExtensionConfigSource::default()
    }
}

/// The bytes of an extension that runs WebAssembly.
pub fn wasm_extension(id: &ConfigId, wasm: &Wasm) -> Arc<Encoded> {
    let config = Some(plugin(id, wasm));
    let filter =
        if wasm.network { to_any(&network::Wasm { config }) } else { to_any(&http::Wasm { config }) };
    let name = extension_name(id);
    let extension = core::TypedExtensionConfig { name: name.to_string(), typed_config: Some(filter) };
    Arc::new(Encoded::new(TypeUrl::ExtensionConfig, name, &extension.encode_to_vec()))
}

fn plugin(id: &ConfigId, wasm: &Wasm) -> api::PluginConfig {
    let vm = api::VmConfig {
        runtime: "envoy.wasm.runtime.v8".to_owned(),
        code: Some(code(wasm)),
        environment_variables: Some(api::EnvironmentVariables {
            host_env_keys: wasm.host_env.iter().map(ToString::to_string).collect(),
            key_values: variables(wasm),
        }),
        ..api::VmConfig::default()
    };
    api::PluginConfig {
        name: format!("{}.{}", id.namespace, id.name),
        root_id: wasm.plugin_name.to_string(),
        configuration: Some(wasm.config.as_ref().map_or_else(Any::default, |text| string_value(text))),
        vm: Some(api::plugin_config::Vm::VmConfig(vm)),
        failure_policy: match wasm.fail_strategy {
            FailStrategy::Close => api::FailurePolicy::FailClosed as i32,
            FailStrategy::Open => api::FailurePolicy::FailOpen as i32,
            FailStrategy::Reload => api::FailurePolicy::FailReload as i32,
        },
        ..api::PluginConfig::default()
    }
}

fn string_value(text: &str) -> Any {
    Any {
        type_url: "type.googleapis.com/google.protobuf.StringValue".to_owned(),
        value: text.to_owned().encode_to_vec(),
    }
}

fn code(wasm: &Wasm) -> core::AsyncDataSource {
    use core::async_data_source::Specifier;
    let specifier = match &wasm.url {
        WasmUrl::File(path) => Specifier::Local(core::DataSource {
            specifier: Some(core::data_source::Specifier::Filename(path.to_string())),
            ..core::DataSource::default()
        }),
        WasmUrl::Remote(url) => Specifier::Remote(core::RemoteDataSource {
            http_uri: Some(core::HttpUri {
                uri: url.to_string(),
                // The agent fetches it, so that there is no cluster to fetch it from.
                http_upstream_type: Some(core::http_uri::HttpUpstreamType::Cluster("_".to_owned())),
                timeout: Some(seconds(30)),
            }),
            sha256: wasm.sha256.to_string(),
            ..core::RemoteDataSource::default()
        }),
    };
    core::AsyncDataSource { specifier: Some(specifier) }
}

fn variables(wasm: &Wasm) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    // The secret itself would stand here; it is only given to proxies that have shown who they are.
    if wasm.pull_secret.is_some() {
        out.insert(PULL_SECRET.to_owned(), String::new());
    }
    if let Some(policy) = wasm.pull_policy {
        let policy = match policy {
            PullPolicy::IfNotPresent => "IfNotPresent",
            PullPolicy::Always => "Always",
        };
        out.insert(PULL_POLICY.to_owned(), policy.to_owned());
    }
    out.insert(RESOURCE_VERSION.to_owned(), String::new());
    out.extend(wasm.env.iter().map(|(name, value)| (name.to_string(), value.to_string())));
    out
}
