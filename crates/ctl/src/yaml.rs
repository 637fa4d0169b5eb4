//! Values as YAML, for people who look at them or keep them in a repository.

use serde_json::Value;

/// One document.
pub(crate) fn text(value: &Value) -> String {
    let mut out = String::new();
    write(value, 0, &mut out);
    out
}

/// What belongs to something begins on a line of its own, with more space before it.
fn write(value: &Value, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                out.push_str(&format!("{indent}{}:", scalar(key)));
                below(value, depth + 1, out);
            }
        }
        Value::Array(list) if !list.is_empty() => {
            for value in list {
                let mut item = String::new();
                write(value, depth + 1, &mut item);
                // The first line of an item stands behind its dash.
                out.push_str(&format!("{indent}- {}", item.trim_start()));
            }
        }
        Value::String(text) => out.push_str(&format!("{indent}{}\n", scalar(text))),
        other => out.push_str(&format!("{indent}{other}\n")),
    }
}

fn below(value: &Value, depth: usize, out: &mut String) {
    let is_block = value.as_object().is_some_and(|map| !map.is_empty())
        || value.as_array().is_some_and(|list| !list.is_empty());
    if is_block {
        out.push('\n');
        write(value, depth, out);
    } else {
        out.push(' ');
        write(value, 0, out);
    }
}

/// In quotes, unless nobody could take it for anything but text.
fn scalar(text: &str) -> String {
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "./-".contains(c))
        && !["true", "false", "yes", "no", "on", "off", "null", "y", "n"]
            .contains(&text.to_lowercase().as_str());
    if is_plain { text.to_owned() } else { Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use pilot_source_kube::definitions;
    use serde_json::json;

    use super::text;

    #[test]
    fn what_is_written_is_read_as_the_same() {
        let odd = json!({
            "a": [1, {"b": ["x", []], "c": {}}, [true, [null]]], "no": "no", "empty": "", "1": "1.5", "long": "a: b # c\n\"d\"",
        });
        for value in definitions().into_iter().chain([odd]) {
            let written = text(&value);
            assert_eq!(pilot_config::read_value(&written, "x").ok(), Some(value), "{written}");
        }
    }
}
