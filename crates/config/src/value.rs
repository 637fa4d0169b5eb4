use pilot_api::well_known::{Value, value::Kind};
use pilot_base::{Issue, Name, ObjectRef};
use pilot_model::{Json, Number};

use crate::{de, yaml, yaml_issue};

/// Reads the first document of a text that has no kind of ours, such as the settings of an agent.
pub fn read_value(text: &str, file: &str) -> Result<serde_json::Value, Issue> {
    let object = ObjectRef::new("File", Name::empty(), file);
    let documents = yaml::parse(text).map_err(|error| yaml_issue(&object, file, &error))?;
    let Some(node) = documents.first() else { return Ok(serde_json::Value::Null) };
    let typed = de::read::<serde_json::Value>(node, "").map_err(|error| {
        Issue::error(object, error.path, error.message).at(format!("{file}:{}", error.line))
    })?;
    Ok(typed.value)
}

/// A value without a type of its own, as the model has it.
pub(crate) fn json(value: Value) -> Json {
    match value.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::BoolValue(value)) => Json::Bool(value),
        Some(Kind::NumberValue(value)) => Json::Number(Number(value)),
        Some(Kind::StringValue(value)) => Json::Text(value.into()),
        Some(Kind::ListValue(list)) => Json::List(list.values.into_iter().map(json).collect()),
        Some(Kind::StructValue(fields)) => {
            Json::Map(fields.fields.into_iter().map(|(key, value)| (key.into(), json(value))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::read_value;
    use serde_json::json;

    #[test]
    fn a_document_is_read_as_it_is_written() {
        let text = "a: 5s\nb: {c: [1, -2, 2.5, true, null, \"7\"]}\n";
        let value = read_value(text, "mesh.yaml").unwrap();
        assert_eq!(value, json!({"a": "5s", "b": {"c": [1, -2, 2.5, true, null, "7"]}}));
        assert_eq!(read_value("", "mesh.yaml").unwrap(), json!(null));
        let broken = read_value("a: [", "mesh.yaml").unwrap_err().to_string();
        assert!(broken.starts_with("mesh.yaml:2: error: File mesh.yaml: not YAML"), "{broken}");
    }
}
