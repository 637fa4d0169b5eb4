//! What Nomad's HTTP interface answers, as far as it is used.

use std::collections::BTreeMap;

use pilot_source::{Instance, InstancePort};
use serde::Deserialize;

/// The services of a namespace, in the list of all.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Listed {
    pub(crate) namespace: String,
    #[serde(default)]
    pub(crate) services: Vec<Named>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Named {
    pub(crate) service_name: String,
}

/// One registration.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Registered {
    #[serde(rename = "ID")]
    id: String,
    address: String,
    port: u32,
    #[serde(default)]
    tags: Option<Vec<String>>,
    #[serde(default)]
    datacenter: String,
}

/// A line of the event stream; one without events says that it is alive.
#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Line {
    pub(crate) index: u64,
    pub(crate) events: Vec<Event>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Event {
    pub(crate) payload: Payload,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Payload {
    pub(crate) service: Option<Place>,
}

/// Which service an event is about.
#[derive(Deserialize, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Place {
    pub(crate) namespace: String,
    pub(crate) service_name: String,
}

impl Place {
    /// Neither part has a slash in it.
    pub(crate) fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.service_name)
    }

    pub(crate) fn of(key: &str) -> Self {
        let (namespace, service_name) = key.split_once('/').unwrap_or(("default", key));
        Self { namespace: namespace.to_owned(), service_name: service_name.to_owned() }
    }

    /// Nomad's default namespace is not said.
    pub(crate) fn name(&self) -> String {
        match self.namespace.as_str() {
            "default" => self.service_name.clone(),
            namespace => format!("{}.{namespace}", self.service_name),
        }
    }
}

impl Registered {
    pub(crate) fn instance(self) -> Instance {
        let mut metadata = BTreeMap::new();
        for tag in self.tags.unwrap_or_default() {
            match tag.split_once('=') {
                Some((key, value)) => metadata.insert(key.to_owned(), value.to_owned()),
                None => metadata.insert(tag, "true".to_owned()),
            };
        }
        Instance {
            id: self.id,
            address: self.address,
            ports: vec![InstancePort { number: self.port, ..InstancePort::default() }],
            metadata,
            locality: self.datacenter,
            ..Instance::default()
        }
    }
}
