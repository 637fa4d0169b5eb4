use pilot_api::extensions as api;
use pilot_model::{ExtensionCode, TrafficExtension, WasmPlugin};

use super::traffic_extension::{phase, selectors, wasm};
use crate::check::Check;

pub(crate) fn decode(message: api::WasmPlugin, check: &mut Check<'_>) -> WasmPlugin {
    let target = check.policy_target(message.selector, message.target_ref, message.target_refs);
    let matches = message.r#match.into_iter().map(|selector| (selector.mode, selector.ports)).collect();
    let config = api::WasmConfig {
        url: message.url,
        sha256: message.sha256,
        image_pull_policy: message.image_pull_policy,
        image_pull_secret: message.image_pull_secret,
        verification_key: message.verification_key,
        plugin_config: message.plugin_config,
        plugin_name: message.plugin_name,
        fail_strategy: message.fail_strategy,
        vm_config: message.vm_config,
        r#type: message.r#type,
    };
    WasmPlugin(TrafficExtension {
        target,
        phase: phase(message.phase),
        priority: message.priority,
        matches: selectors(matches, check),
        code: ExtensionCode::Wasm(Box::new(wasm(config, "spec", check))),
    })
}
