//! What Eureka's REST interface answers.

use std::collections::BTreeMap;
use std::fmt;

use pilot_source_http::{Part, parts};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

#[derive(Deserialize)]
pub(crate) struct Answer {
    pub(crate) applications: Applications,
}

/// As much of a page as tells whether there is something that nobody has told us.
#[derive(Deserialize)]
pub(crate) struct Summary {
    pub(crate) applications: Hashed,
}

#[derive(Deserialize)]
pub(crate) struct Hashed {
    #[serde(default, rename = "apps__hashcode")]
    pub(crate) hash_code: String,
}

#[derive(Deserialize)]
pub(crate) struct Applications {
    #[serde(default, rename = "apps__hashcode")]
    pub(crate) hash_code: String,
    #[serde(default)]
    pub(crate) application: List,
}

/// All applications of a page. Each is read by itself and as soon as it comes: a page of very many would otherwise take
/// ten times its size.
#[derive(Default)]
pub(crate) struct List(pub(crate) Vec<Application>);

pub(crate) struct Application {
    pub(crate) name: String,
    pub(crate) instances: Vec<Listed>,
}

/// An instance in a page.
pub(crate) struct Listed {
    pub(crate) id: String,
    pub(crate) status: String,
    /// It is listed because it is no more.
    pub(crate) is_gone: bool,
    pub(crate) instance: Part<EurekaInstance>,
}

impl Application {
    /// What is no application has no name under which it could be reported.
    fn read(mut value: Value) -> Option<Self> {
        let instances = parts::<Value>(value["instance"].take()).into_iter().flatten().map(Listed::read);
        Some(Self { instances: instances.collect(), name: value["name"].as_str()?.to_owned() })
    }
}

impl Listed {
    fn read(value: Value) -> Self {
        let field = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let id = if field("instanceId").is_empty() { field("hostName") } else { field("instanceId") };
        let (status, is_gone) = (field("status"), field("actionType") == "DELETED");
        let instance = serde_json::from_value(value).map_err(|error| error.to_string());
        Self { id, status, is_gone, instance }
    }
}

impl<'de> Deserialize<'de> for List {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = List;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("applications")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<List, A::Error> {
                let mut list = Vec::new();
                while let Some(value) = all.next_element::<Value>()? {
                    list.extend(value.is_object().then(|| Application::read(value)).flatten());
                }
                Ok(List(list))
            }

            /// Some servers write a list of one as that one.
            fn visit_map<A: MapAccess<'de>>(self, one: A) -> Result<List, A::Error> {
                let value = Value::deserialize(MapAccessDeserializer::new(one))?;
                Ok(List(Application::read(value).into_iter().collect()))
            }

            fn visit_unit<E>(self) -> Result<List, E> {
                Ok(List::default())
            }
        }
        deserializer.deserialize_any(Each)
    }
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
