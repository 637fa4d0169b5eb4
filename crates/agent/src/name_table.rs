//! The names that the xDS server has the proxy answer for: `istio.networking.nds.v1.NameTable`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NameTable {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(crate) table: BTreeMap<String, NameInfo>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NameInfo {
    #[prost(string, repeated, tag = "1")]
    pub(crate) ips: Vec<String>,
    #[prost(string, tag = "2")]
    pub(crate) registry: String,
    #[prost(string, tag = "3")]
    pub(crate) shortname: String,
    #[prost(string, tag = "4")]
    pub(crate) namespace: String,
    /// Servers of long ago send more names of a host.
    #[prost(string, repeated, tag = "5")]
    pub(crate) alt_hosts: Vec<String>,
}

impl NameTable {
    /// As protobuf writes JSON: what is empty is left out.
    pub(crate) fn to_json(&self) -> Value {
        let entry = |info: &NameInfo| {
            let NameInfo { ips, registry, shortname, namespace, alt_hosts } = info;
            let mut fields = Map::new();
            for (name, list) in [("ips", ips), ("altHosts", alt_hosts)] {
                if !list.is_empty() {
                    fields.insert(name.to_owned(), json!(list));
                }
            }
            for (name, text) in [("registry", registry), ("shortname", shortname), ("namespace", namespace)] {
                if !text.is_empty() {
                    fields.insert(name.to_owned(), json!(text));
                }
            }
            Value::Object(fields)
        };
        if self.table.is_empty() {
            return json!({});
        }
        let table: Map<String, Value> =
            self.table.iter().map(|(host, info)| (host.clone(), entry(info))).collect();
        json!({ "table": table })
    }
}
