use std::collections::BTreeMap;
use std::fmt::Write as _;

use pilot_api::extensions as api;
use pilot_api::selector::{PortSelector, WorkloadMode as ApiMode};
use pilot_api::well_known::{Value, value::Kind};
use pilot_base::Name;
use pilot_model::{
    ExtensionCode, ExtensionPhase, FailStrategy, PullPolicy, TrafficExtension, TrafficSelector, Wasm,
    WasmUrl, WorkloadMode,
};

use crate::check::Check;

/// Envoy keeps the code of a filter in its configuration.
const MOST_LUA: usize = 64 * 1024;

pub(crate) fn decode(message: api::TrafficExtension, check: &mut Check<'_>) -> TrafficExtension {
    use api::traffic_extension::FilterConfig;
    let target = check.policy_target(message.selector, None, message.target_refs);
    let code = match message.filter_config {
        Some(FilterConfig::Wasm(wasm)) => ExtensionCode::Wasm(Box::new(self::wasm(wasm, "spec.wasm", check))),
        Some(FilterConfig::Lua(lua)) => {
            if lua.inline_code.is_empty() {
                check.reject("spec.lua.inlineCode", "is missing");
            }
            if lua.inline_code.len() > MOST_LUA {
                check.reject("spec.lua.inlineCode", "is longer than 64 KiB");
            }
            ExtensionCode::Lua(lua.inline_code.into())
        }
        None => {
            check.reject("spec", "needs one of wasm and lua");
            ExtensionCode::Lua(Name::empty())
        }
    };
    let matches = message.r#match.into_iter().map(|selector| (selector.mode, selector.ports)).collect();
    TrafficExtension {
        target,
        phase: phase(message.phase),
        priority: message.priority,
        matches: selectors(matches, check),
        code,
    }
}

/// The phases of both kinds have the same numbers.
pub(super) fn phase(phase: i32) -> ExtensionPhase {
    match api::PluginPhase::try_from(phase) {
        Ok(api::PluginPhase::Authn) => ExtensionPhase::Authn,
        Ok(api::PluginPhase::Authz) => ExtensionPhase::Authz,
        Ok(api::PluginPhase::Stats) => ExtensionPhase::Stats,
        _ => ExtensionPhase::Unspecified,
    }
}

pub(super) fn selectors(
    messages: Vec<(i32, Vec<PortSelector>)>,
    check: &mut Check<'_>,
) -> Vec<TrafficSelector> {
    let mut out = Vec::new();
    for (i, (mode, ports)) in messages.into_iter().enumerate() {
        let ports = ports.iter().enumerate();
        let ports = ports
            .map(|(j, port)| check.port(format!("spec.match[{i}].ports[{j}].number"), port.number))
            .collect();
        let mode = match ApiMode::try_from(mode) {
            Ok(ApiMode::Client) => WorkloadMode::Client,
            Ok(ApiMode::Server) => WorkloadMode::Server,
            _ => WorkloadMode::ClientAndServer,
        };
        out.push(TrafficSelector { mode, ports });
    }
    out
}

pub(super) fn wasm(message: api::WasmConfig, path: &str, check: &mut Check<'_>) -> Wasm {
    let url = url(&message.url, &format!("{path}.url"), check);
    let sha = &message.sha256;
    if !sha.is_empty() && (sha.len() != 64 || !sha.chars().all(|c| matches!(c, 'a'..='f' | '0'..='9'))) {
        check
            .reject(format!("{path}.sha256"), "is not a checksum: it needs 64 digits from 0 to 9 and a to f");
    }
    if message.image_pull_secret.len() > 253 {
        check.reject(format!("{path}.imagePullSecret"), "is longer than 253 characters");
    }
    if message.plugin_name.len() > 256 {
        check.reject(format!("{path}.pluginName"), "is longer than 256 characters");
    }
    let (env, host_env) = variables(message.vm_config.unwrap_or_default(), path, check);
    let config = message.plugin_config.filter(|config| !config.fields.is_empty());
    Wasm {
        url,
        sha256: message.sha256.into(),
        pull_policy: match api::PullPolicy::try_from(message.image_pull_policy) {
            Ok(api::PullPolicy::IfNotPresent) => Some(PullPolicy::IfNotPresent),
            Ok(api::PullPolicy::Always) => Some(PullPolicy::Always),
            _ => None,
        },
        pull_secret: Some(message.image_pull_secret).filter(|name| !name.is_empty()).map(Name::from),
        config: config.map(|config| {
            let mut out = String::new();
            write_fields(config.fields.iter(), &mut out);
            Name::from(out)
        }),
        plugin_name: message.plugin_name.into(),
        fail_strategy: match api::FailStrategy::try_from(message.fail_strategy) {
            Ok(api::FailStrategy::FailOpen) => FailStrategy::Open,
            Ok(api::FailStrategy::FailReload) => FailStrategy::Reload,
            _ => FailStrategy::Close,
        },
        env,
        host_env,
        network: message.r#type == api::PluginType::Network as i32,
    }
}

fn variables(message: api::VmConfig, path: &str, check: &mut Check<'_>) -> (BTreeMap<Name, Name>, Vec<Name>) {
    let (mut own, mut host) = (BTreeMap::new(), Vec::new());
    for (i, variable) in message.env.into_iter().enumerate() {
        let path = format!("{path}.vmConfig.env[{i}]");
        if variable.name.is_empty() {
            check.reject(format!("{path}.name"), "is missing");
        }
        if variable.name.len() > 256 {
            check.reject(format!("{path}.name"), "is longer than 256 characters");
        }
        let name = Name::from(variable.name);
        if own.contains_key(&name) || host.contains(&name) {
            check.reject(format!("{path}.name"), format!("{name} was given a value above"));
        }
        if variable.value_from == api::EnvValueSource::Host as i32 {
            if !variable.value.is_empty() {
                check.reject(format!("{path}.value"), "can only be given where valueFrom is INLINE");
            }
            host.push(name);
        } else {
            own.insert(name, variable.value.into());
        }
    }
    (own, host)
}

fn url(text: &str, path: &str, check: &mut Check<'_>) -> WasmUrl {
    if text.is_empty() {
        check.reject(path, "is missing");
    }
    if text.chars().any(|c| c.is_control() || c.is_whitespace() || matches!(c, '#' | '"' | '<' | '>')) {
        check.reject(path, format!("{text:?} is not a URL"));
    }
    match scheme(text) {
        "file" => WasmUrl::File(Name::new(text.strip_prefix("file://").unwrap_or(text))),
        "http" | "https" | "oci" => WasmUrl::Remote(Name::new(text)),
        // An image in a registry.
        "" => WasmUrl::Remote(Name::from(format!("oci://{text}"))),
        other => {
            check
                .reject(path, format!("has the scheme {other}: it must be one of oci, http, https and file"));
            WasmUrl::Remote(Name::new(text))
        }
    }
}

fn scheme(url: &str) -> &str {
    let Some((scheme, _)) = url.split_once(':') else { return "" };
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    let begins = scheme.starts_with(|c: char| c.is_ascii_alphabetic());
    if begins && scheme.chars().all(inner) { scheme } else { "" }
}

/// Writes JSON byte by byte as istiod does, so that proxies see no change when they move from one to the other.
fn write_json(value: &Value, out: &mut String) {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => out.push_str("null"),
        Some(Kind::BoolValue(value)) => out.push_str(if *value { "true" } else { "false" }),
        Some(Kind::NumberValue(number)) => write_number(*number, out),
        Some(Kind::StringValue(text)) => write_text(text, out),
        Some(Kind::ListValue(list)) => {
            out.push('[');
            for (i, value) in list.values.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_json(value, out);
            }
            out.push(']');
        }
        Some(Kind::StructValue(fields)) => write_fields(fields.fields.iter(), out),
    }
}

fn write_fields<'a>(fields: impl Iterator<Item = (&'a String, &'a Value)>, out: &mut String) {
    let fields: BTreeMap<&String, &Value> = fields.collect();
    out.push('{');
    for (i, (key, value)) in fields.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write_text(key, out);
        out.push(':');
        write_json(value, out);
    }
    out.push('}');
}

fn write_number(number: f64, out: &mut String) {
    let size = number.abs();
    let plain = size == 0.0 || (1e-6..1e21).contains(&size);
    // Writing to a string cannot fail.
    let _written = if plain {
        write!(out, "{number}")
    } else if size >= 1e21 {
        write!(out, "{}", format!("{number:e}").replace('e', "e+"))
    } else {
        write!(out, "{number:e}")
    };
}

/// Go escapes what could end a script in a web page.
fn write_text(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _written = write!(out, "\\u{:04x}", u32::from(c));
            }
            c if u32::from(c) < 0x20 => {
                let _written = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::{scheme, write_json};

    #[test]
    fn a_plugins_settings_are_written_as_istiod_writes_them() {
        let value = serde_json::from_str(
            r#"{"b": [1, 2.5, 1e21, 1e-7, -0.1], "a": {"x": "<\"&\\\n\u0001é"}, "c": null, "d": true}"#,
        );
        let mut out = String::new();
        write_json(&value.unwrap(), &mut out);
        let expected =
            r#"{"a":{"x":"\u003c\"\u0026\\\n\u0001é"},"b":[1,2.5,1e+21,1e-7,-0.1],"c":null,"d":true}"#;
        assert_eq!(out, expected);
    }

    #[test]
    fn an_image_may_stand_for_itself() {
        assert_eq!(scheme("ghcr.io/a/b:v1"), "");
        assert_eq!(scheme("oci://ghcr.io/a/b:v1"), "oci");
        assert_eq!(scheme("localhost:5000/a"), "localhost");
    }
}
