//! Nodes that somebody's own script writes.

use std::collections::BTreeMap;

use pilot_source::{Instance, InstancePort};
use serde_json::Value;

use super::curator::metadata;

pub(super) fn instance(name: &str, data: &[u8]) -> Result<Instance, String> {
    let (address, port) = name.rsplit_once(':').ok_or("its name is not host:port")?;
    let number = port.parse().map_err(|_| format!("{port:?} is not a port"))?;
    let text = String::from_utf8_lossy(data);
    let metadata = match text.trim() {
        "" => BTreeMap::new(),
        json if json.starts_with('{') => {
            metadata(&serde_json::from_str::<Value>(json).map_err(|error| error.to_string())?)
        }
        lines => {
            let pairs = lines.lines().filter_map(|line| line.split_once('='));
            pairs.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())).collect()
        }
    };
    let ports = vec![InstancePort { number, ..InstancePort::default() }];
    let address = address.trim_matches(['[', ']']).to_owned();
    Ok(Instance { id: name.to_owned(), address, ports, metadata, ..Instance::default() })
}

#[cfg(test)]
mod tests {
    use super::instance;

    #[test]
    fn names_are_addresses_and_contents_are_metadata() {
        for data in ["version = v1\nx", r#"{"version": "v1"}"#] {
            let read = instance("10.0.0.1:80", data.as_bytes()).unwrap();
            assert_eq!((read.address.as_str(), read.metadata["version"].as_str()), ("10.0.0.1", "v1"));
        }
        assert_eq!(instance("[::1]:80", b"").unwrap().address, "::1");
        assert!(instance("shop", b"").is_err() && instance("10.0.0.1:80", b"{").is_err());
    }
}
