//! Functions of the library Sprig, which Istio offers to templates as well: texts, lists, maps and defaults.

use std::collections::BTreeMap;

use crate::escape::quoted;
use crate::functions::{int_of, take, text_of};
use crate::value::Value;

type Function = fn(&[Value]) -> Result<Value, String>;

pub(crate) const ALL: [(&str, Function); 36] = [
    ("default", default),
    ("empty", |arguments| take::<1>(arguments).map(|[value]| Value::Bool(!value.is_true()))),
    ("coalesce", |arguments| {
        Ok(arguments.iter().find(|value| value.is_true()).cloned().unwrap_or(Value::Nil))
    }),
    ("ternary", ternary),
    ("fail", |arguments| Err(text_of(&take::<1>(arguments)?[0])?.to_owned())),
    ("toJson", json),
    ("toPrettyJson", |arguments| {
        let [value] = take::<1>(arguments)?;
        serde_json::to_string_pretty(&value.to_json()).map(Value::from).map_err(|error| error.to_string())
    }),
    ("fromJson", |arguments| {
        let text = text_of(&take::<1>(arguments)?[0])?;
        serde_json::from_str::<serde_json::Value>(text).map(Value::from).map_err(|error| error.to_string())
    }),
    ("quote", |arguments| Ok(words(arguments, quoted))),
    ("squote", |arguments| Ok(words(arguments, |text| format!("'{text}'")))),
    ("upper", |arguments| text(arguments, str::to_uppercase)),
    ("lower", |arguments| text(arguments, str::to_lowercase)),
    ("trim", |arguments| text(arguments, |text| text.trim().to_owned())),
    ("trimAll", |arguments| {
        with(arguments, |cut, text| text.trim_matches(|c: char| cut.contains(c)).to_owned())
    }),
    ("trimPrefix", |arguments| {
        with(arguments, |cut, text| text.strip_prefix(cut).unwrap_or(text).to_owned())
    }),
    ("trimSuffix", |arguments| {
        with(arguments, |cut, text| text.strip_suffix(cut).unwrap_or(text).to_owned())
    }),
    ("contains", |arguments| asks(arguments, |part, text| text.contains(part))),
    ("hasPrefix", |arguments| asks(arguments, |part, text| text.starts_with(part))),
    ("hasSuffix", |arguments| asks(arguments, |part, text| text.ends_with(part))),
    ("replace", |arguments| {
        let [old, new, text] = take::<3>(arguments)?;
        Ok(Value::from(text_of(text)?.replace(text_of(old)?, text_of(new)?)))
    }),
    ("indent", |arguments| indented(arguments).map(Value::from)),
    ("nindent", |arguments| Ok(Value::from(format!("\n{}", indented(arguments)?)))),
    ("toString", |arguments| take::<1>(arguments).map(|[value]| Value::from(value.to_string()))),
    ("join", |arguments| {
        let [between, list] = take::<2>(arguments)?;
        let words: Vec<String> = items(list)?.iter().map(ToString::to_string).collect();
        Ok(Value::from(words.join(text_of(between)?)))
    }),
    ("splitList", |arguments| {
        let [between, text] = take::<2>(arguments)?;
        Ok(Value::list(text_of(text)?.split(text_of(between)?).map(Value::text).collect()))
    }),
    ("list", |arguments| Ok(Value::list(arguments.to_vec()))),
    ("first", |arguments| Ok(items(&take::<1>(arguments)?[0])?.first().cloned().unwrap_or(Value::Nil))),
    ("last", |arguments| Ok(items(&take::<1>(arguments)?[0])?.last().cloned().unwrap_or(Value::Nil))),
    ("has", |arguments| {
        take::<2>(arguments).and_then(|[one, list]| Ok(Value::Bool(items(list)?.contains(one))))
    }),
    ("dict", dict),
    ("get", |arguments| {
        let [map, key] = take::<2>(arguments)?;
        Ok(entries(map)?.get(text_of(key)?).cloned().unwrap_or_else(|| Value::text("")))
    }),
    ("hasKey", |arguments| {
        let [map, key] = take::<2>(arguments)?;
        Ok(Value::Bool(entries(map)?.contains_key(text_of(key)?)))
    }),
    ("keys", |arguments| {
        let [map] = take::<1>(arguments)?;
        Ok(Value::list(entries(map)?.keys().map(|key| Value::text(key)).collect()))
    }),
    ("int", |arguments| take::<1>(arguments).map(|[value]| Value::Int(whole(value)))),
    ("add", |arguments| Ok(Value::Int(arguments.iter().map(whole).fold(0, i64::wrapping_add)))),
    ("sub", |arguments| take::<2>(arguments).map(|[a, b]| Value::Int(whole(a).wrapping_sub(whole(b))))),
];

fn default(arguments: &[Value]) -> Result<Value, String> {
    match arguments {
        [otherwise] => Ok(otherwise.clone()),
        [otherwise, value] => Ok(if value.is_true() { value } else { otherwise }.clone()),
        _ => Err(format!("wants 2 arguments and got {}", arguments.len())),
    }
}

fn ternary(arguments: &[Value]) -> Result<Value, String> {
    let [yes, no, condition] = take::<3>(arguments)?;
    match condition {
        Value::Bool(true) => Ok(yes.clone()),
        Value::Bool(false) => Ok(no.clone()),
        other => Err(format!("wants a bool and got {}", other.kind())),
    }
}

fn json(arguments: &[Value]) -> Result<Value, String> {
    take::<1>(arguments).map(|[value]| Value::from(value.to_json().to_string()))
}

fn words(arguments: &[Value], around: impl Fn(&str) -> String) -> Value {
    let present = arguments.iter().filter(|value| !matches!(value, Value::Absent | Value::Nil));
    Value::from(present.map(|value| around(&value.to_string())).collect::<Vec<_>>().join(" "))
}

fn text(arguments: &[Value], change: impl Fn(&str) -> String) -> Result<Value, String> {
    Ok(Value::from(change(text_of(&take::<1>(arguments)?[0])?)))
}

fn with(arguments: &[Value], change: impl Fn(&str, &str) -> String) -> Result<Value, String> {
    let [first, second] = take::<2>(arguments)?;
    Ok(Value::from(change(text_of(first)?, text_of(second)?)))
}

fn asks(arguments: &[Value], holds: impl Fn(&str, &str) -> bool) -> Result<Value, String> {
    let [first, second] = take::<2>(arguments)?;
    Ok(Value::Bool(holds(text_of(first)?, text_of(second)?)))
}

fn indented(arguments: &[Value]) -> Result<String, String> {
    let [spaces, text] = take::<2>(arguments)?;
    let width = usize::try_from(int_of(spaces)?).ok().filter(|width| *width <= 1_000);
    let pad = " ".repeat(width.ok_or("wants a number of spaces up to 1000")?);
    Ok(format!("{pad}{}", text_of(text)?.replace('\n', &format!("\n{pad}"))))
}

fn items(value: &Value) -> Result<&[Value], String> {
    match value {
        Value::List(items) => Ok(items),
        other => Err(format!("wants a list and got {}", other.kind())),
    }
}

fn entries(value: &Value) -> Result<&BTreeMap<String, Value>, String> {
    match value {
        Value::Map(entries) => Ok(entries),
        other => Err(format!("wants a map and got {}", other.kind())),
    }
}

fn dict(arguments: &[Value]) -> Result<Value, String> {
    let mut entries = BTreeMap::new();
    for pair in arguments.chunks(2) {
        let value = pair.get(1).cloned().unwrap_or_else(|| Value::text(""));
        entries.insert(pair[0].to_string(), value);
    }
    Ok(Value::map(entries))
}

/// A number, or a text that holds one; else 0, as Sprig has it.
#[allow(clippy::cast_possible_truncation, reason = "Go cuts as well")]
fn whole(value: &Value) -> i64 {
    match value {
        Value::Int(number) => *number,
        Value::Float(number) => *number as i64,
        Value::Bool(value) => i64::from(*value),
        Value::Text(text) => text.parse().unwrap_or(0),
        _ => 0,
    }
}
