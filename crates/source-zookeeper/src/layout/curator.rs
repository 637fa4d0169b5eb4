//! Curator's service discovery, also as Spring Cloud writes it.

use std::collections::BTreeMap;

use pilot_source::{Instance, InstancePort};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServiceInstance {
    #[serde(default)]
    id: String,
    address: String,
    port: Option<u32>,
    ssl_port: Option<u32>,
    #[serde(default)]
    payload: Value,
    enabled: Option<bool>,
}

pub(super) fn instance(name: &str, data: &[u8]) -> Result<Instance, String> {
    let read: ServiceInstance =
        serde_json::from_str(&String::from_utf8_lossy(data)).map_err(|error| error.to_string())?;
    let port = |name: &str, number: u32, protocol: &str| {
        let (name, protocol) = (name.to_owned(), protocol.to_owned());
        InstancePort { name, number, protocol, service_port: None }
    };
    let plain = read.port.map(|number| port("", number, ""));
    let secure = read.ssl_port.filter(|number| *number != 0).map(|number| port("secure", number, "https"));
    let ports: Vec<InstancePort> = plain.into_iter().chain(secure).collect();
    if ports.is_empty() {
        return Err("it has neither port nor sslPort".to_owned());
    }
    Ok(Instance {
        id: if read.id.is_empty() { name.to_owned() } else { read.id },
        address: read.address,
        ports,
        metadata: metadata(&read.payload),
        is_unhealthy: read.enabled == Some(false),
        ..Instance::default()
    })
}

/// Spring Cloud has metadata in the payload; others have it as the payload.
pub(super) fn metadata(payload: &Value) -> BTreeMap<String, String> {
    let object = payload.get("metadata").filter(|inner| inner.is_object()).unwrap_or(payload);
    let all = object.as_object().into_iter().flatten().filter(|(key, _)| !key.starts_with('@'));
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    };
    all.filter_map(|(key, value)| Some((key.clone(), text(value)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::instance;

    #[test]
    fn springs_metadata_and_others_payload_are_metadata() {
        for payload in [r#"{"@class":"x","metadata":{"version":"v1"}}"#, r#"{"@class":"x","version":"v1"}"#] {
            let data = format!(
                r#"{{"name":"shop","id":"1","address":"10.0.0.1","port":80,"sslPort":null,"payload":{payload},"enabled":true}}"#
            );
            let read = instance("node", data.as_bytes()).unwrap();
            assert_eq!(
                (read.id.as_str(), read.metadata["version"].as_str(), read.is_unhealthy),
                ("1", "v1", false)
            );
        }
        assert!(instance("node", b"{").unwrap_err().contains("EOF"));
        assert!(instance("node", br#"{"address":"x"}"#).unwrap_err().contains("neither port"));
    }
}
