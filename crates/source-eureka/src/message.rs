//! What Eureka's REST interface answers.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
pub(crate) struct Answer {
    pub(crate) applications: Applications,
}

#[derive(Deserialize)]
pub(crate) struct Applications {
    #[serde(default, rename = "apps__hashcode")]
    pub(crate) hash_code: String,
    /// Each is read by itself.
    #[serde(default)]
    pub(crate) application: Value,
}

#[derive(Deserialize)]
pub(crate) struct Application {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) instance: Value,
}

#[derive(Clone, Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct EurekaInstance {
    pub(crate) host_name: String,
    pub(crate) ip_addr: String,
    pub(crate) status: String,
    pub(crate) port: EurekaPort,
    pub(crate) secure_port: EurekaPort,
    pub(crate) vip_address: Option<String>,
    pub(crate) secure_vip_address: Option<String>,
    pub(crate) metadata: BTreeMap<String, Value>,
    pub(crate) data_center_info: DataCenter,
}

/// Numbers and flags are texts in what some clients send, and servers pass them on.
#[derive(Clone, Deserialize, Debug, Default)]
#[serde(default)]
pub(crate) struct EurekaPort {
    #[serde(rename = "$")]
    number: Value,
    #[serde(rename = "@enabled")]
    enabled: Value,
}

#[derive(Clone, Deserialize, Debug, Default)]
#[serde(default)]
pub(crate) struct DataCenter {
    pub(crate) metadata: BTreeMap<String, Value>,
}

impl EurekaPort {
    /// The port, if it is used. What is no number at all is port zero, which is reported as wrong.
    pub(crate) fn used(&self) -> Option<u32> {
        let enabled = match &self.enabled {
            Value::Bool(on) => *on,
            Value::String(text) => text == "true",
            _ => false,
        };
        let number = match &self.number {
            Value::Number(number) => number.as_u64().and_then(|number| u32::try_from(number).ok()),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        enabled.then(|| number.unwrap_or_default())
    }
}

/// A value of metadata; other than texts there are numbers and flags.
pub(crate) fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}
