//! As much of protobuf's text format as Istio's examples use, turned into JSON's names and forms.

use serde_json::{Map, Value, json};

pub(super) fn parse(text: &str) -> Map<String, Value> {
    let lines = text.lines().map(|line| if line.starts_with('#') { "" } else { line });
    let mut tokens = tokens(&lines.collect::<Vec<_>>().join("\n"));
    tokens.reverse();
    fields(&mut tokens)
}

/// Words, texts with their quotes, and brackets.
fn tokens(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c == '"' {
            let inner: String = rest.by_ref().take_while(|c| *c != '"').collect();
            all.push(format!("\"{inner}\""));
        } else if "{}[]".contains(c) {
            all.push(c.to_string());
        } else if !c.is_whitespace() && !":,".contains(c) {
            let mut word = c.to_string();
            while let Some(next) = rest.next_if(|c| c.is_alphanumeric() || "_.-".contains(*c)) {
                word.push(next);
            }
            all.push(word);
        }
    }
    all
}

fn fields(tokens: &mut Vec<String>) -> Map<String, Value> {
    let mut map = Map::new();
    while let Some(name) = tokens.pop().filter(|name| name != "}") {
        map.insert(camel_case(&name), value(tokens));
    }
    map
}

fn value(tokens: &mut Vec<String>) -> Value {
    let token = tokens.pop().unwrap();
    match token.as_str() {
        "{" => message(fields(tokens)),
        "[" => list(tokens),
        "true" | "false" => json!(token == "true"),
        word => match (word.strip_prefix('"'), word.parse::<u64>()) {
            (Some(text), _) => json!(text.trim_end_matches('"')),
            (None, Ok(number)) => json!(number),
            (None, Err(_)) => json!(word),
        },
    }
}

/// Durations and boxed values have a form of their own.
fn message(fields: Map<String, Value>) -> Value {
    match (fields.len(), fields.get("seconds"), fields.get("value")) {
        (1, Some(seconds), _) => json!(format!("{seconds}s")),
        (1, _, Some(value)) => value.clone(),
        _ => Value::Object(fields),
    }
}

/// Entries of a map come as a list of keys and values.
fn list(tokens: &mut Vec<String>) -> Value {
    let mut items = Vec::new();
    while tokens.last().is_some_and(|token| token != "]") {
        items.push(value(tokens));
    }
    tokens.pop();
    let entry = |item: &Value| Some((item.get("key")?.as_str()?.to_owned(), item.get("value")?.clone()));
    match items.iter().map(entry).collect::<Option<Map<_, _>>>() {
        Some(map) if !items.is_empty() => Value::Object(map),
        _ => Value::Array(items),
    }
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| name + &word[..1].to_uppercase() + &word[1..])
}
