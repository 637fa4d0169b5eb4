use serde_json::{Map, Value};

/// Fields that are merged key by key; all others are replaced as a whole, as Istio does.
const BY_KEY: [&str; 2] = ["proxyMetadata", "proxyHeaders"];
/// A proxy has its name from one of these; the one written last counts.
const NAMES: [&str; 2] = ["serviceCluster", "tracingServiceName"];

/// The fields of a map, in the spelling of JSON: protobuf allows `status_port` for `statusPort`.
pub(super) fn into_map(value: Value) -> Option<Map<String, Value>> {
    let Value::Object(fields) = value else { return None };
    Some(fields.into_iter().map(|(key, value)| (camel_case(&key), value)).collect())
}

/// What the layer says wins; what it leaves out, or says is null, stays.
pub(super) fn merge(said: &mut Map<String, Value>, layer: Map<String, Value>) {
    for (key, value) in layer {
        if value.is_null() {
            continue;
        }
        if NAMES.contains(&key.as_str()) {
            said.retain(|name, _| !NAMES.contains(&name.as_str()));
        }
        match (said.get_mut(&key), value) {
            (Some(Value::Object(old)), Value::Object(new)) if BY_KEY.contains(&key.as_str()) => {
                old.extend(new);
            }
            (_, value) => {
                said.insert(key, value);
            }
        }
    }
}

fn camel_case(key: &str) -> String {
    let mut words = key.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |mut name, word| {
        let mut letters = word.chars();
        name.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        name.push_str(letters.as_str());
        name
    })
}
