//! What the metadata of an instance says: labels, and settings that the platform has no field for.

use std::collections::BTreeMap;

use pilot_base::Labels;

/// Registries allow much in metadata that nobody would select by.
const MAX_KEY: usize = 253;
const MAX_VALUE: usize = 256;
const MAX_LABELS: usize = 64;

/// Settings have keys that every platform allows: Consul knows neither dots nor slashes.
const PREFIX: &str = "istio-";

pub(super) struct Metadata<'a> {
    values: &'a BTreeMap<String, String>,
}

impl<'a> Metadata<'a> {
    pub(super) fn new(values: &'a BTreeMap<String, String>) -> Self {
        Self { values }
    }

    pub(super) fn setting(&self, key: &str) -> Option<&'a str> {
        let value = self.values.get(&format!("{PREFIX}{key}"))?;
        Some(value.as_str()).filter(|value| !value.is_empty())
    }

    /// The word that was used before there was a prefix counts too.
    pub(super) fn protocol(&self) -> Option<&'a str> {
        self.setting("protocol").or_else(|| self.values.get("protocol").map(String::as_str))
    }

    /// Everything that is short enough; and how many are not labels because they are too long or too many.
    pub(super) fn labels(&self) -> (Labels, usize) {
        let is_label =
            |key: &str, value: &str| !key.is_empty() && key.len() <= MAX_KEY && value.len() <= MAX_VALUE;
        let own = self.values.iter().filter(|(key, _)| !key.starts_with(PREFIX));
        let fitting: Vec<_> = own.clone().filter(|(key, value)| is_label(key, value)).collect();
        let left_out = own.count() - fitting.len().min(MAX_LABELS);
        let labels = fitting.into_iter().take(MAX_LABELS).map(|(key, value)| (key.as_str(), value.as_str()));
        let tls = self.setting("tls-mode").map(|mode| ("security.istio.io/tlsMode", mode));
        (Labels::new(labels.chain(tls)), left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::Metadata;

    #[test]
    fn what_is_too_long_is_no_label() {
        let long = "x".repeat(1 << 20);
        let values = [
            ("version", "v1"),
            ("notes", long.as_str()),
            ("istio-network", "n1"),
            ("istio-tls-mode", "istio"),
        ];
        let values = values.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let metadata = Metadata::new(&values);
        let (labels, left_out) = metadata.labels();
        let labels: Vec<_> = labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(labels, [("security.istio.io/tlsMode", "istio"), ("version", "v1")]);
        assert_eq!((left_out, metadata.setting("network")), (1, Some("n1")));
    }
}
