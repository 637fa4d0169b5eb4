//! Lists of which one element may be wrong without taking the others along.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// An element that could be read, or why not.
pub type Part<T> = Result<T, String>;

/// Reads each element of a list by itself. What is no list has none.
pub fn parts<T: DeserializeOwned>(list: Value) -> Vec<Part<T>> {
    let all = match list {
        Value::Array(all) => all,
        Value::Null => Vec::new(),
        // Some servers write a list of one as that one.
        one => vec![one],
    };
    all.into_iter().map(|value| serde_json::from_value(value).map_err(|error| error.to_string())).collect()
}
