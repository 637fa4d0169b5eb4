//! The functions that Go's templates have by themselves.

use crate::compare;
use crate::escape;
use crate::format;
use crate::functions::{int_of, take};
use crate::value::Value;

type Builtin = fn(&[Value]) -> Result<Value, String>;

pub(crate) const ALL: [(&str, Builtin); 19] = [
    ("and", never),
    ("or", never),
    ("not", |arguments| take::<1>(arguments).map(|[value]| Value::Bool(!value.is_true()))),
    ("eq", compare::eq),
    ("ne", compare::ne),
    ("lt", compare::lt),
    ("le", compare::le),
    ("gt", compare::gt),
    ("ge", compare::ge),
    ("index", index),
    ("slice", slice),
    ("len", len),
    ("call", |_| Err("there are no functions in data".to_owned())),
    ("print", |arguments| Ok(Value::from(format::print(arguments)))),
    ("println", |arguments| Ok(Value::from(format::println(arguments)))),
    ("printf", printf),
    ("html", |arguments| Ok(Value::from(escape::html(&escape::joined(arguments))))),
    ("js", |arguments| Ok(Value::from(escape::js(&escape::joined(arguments))))),
    ("urlquery", |arguments| Ok(Value::from(escape::urlquery(&escape::joined(arguments))))),
];

fn never(_: &[Value]) -> Result<Value, String> {
    Err("is decided where templates run".to_owned())
}

fn printf(arguments: &[Value]) -> Result<Value, String> {
    let (form, rest) = arguments.split_first().ok_or("wants a format")?;
    let form = form.as_text().ok_or_else(|| format!("wants a format and got {}", form.kind()))?;
    format::printf(form, rest).map(Value::from)
}

fn len(arguments: &[Value]) -> Result<Value, String> {
    let [value] = take::<1>(arguments)?;
    let length = match value {
        Value::Text(text) => text.len(),
        Value::List(items) => items.len(),
        Value::Map(entries) => entries.len(),
        other => return Err(format!("{} has no length", other.kind())),
    };
    Ok(Value::Int(i64::try_from(length).unwrap_or(i64::MAX)))
}

fn index(arguments: &[Value]) -> Result<Value, String> {
    let (whole, keys) = arguments.split_first().ok_or("wants something to look into")?;
    let mut value = whole.clone();
    for key in keys {
        value = match &value {
            Value::List(items) => items[position(key, items.len())?].clone(),
            Value::Text(text) => Value::Int(i64::from(text.as_bytes()[position(key, text.len())?])),
            Value::Map(entries) => {
                let key = key.as_text().ok_or_else(|| format!("a key is a string, not {}", key.kind()))?;
                entries.get(key).cloned().unwrap_or(Value::Nil)
            }
            Value::Absent | Value::Nil => return Err("of untyped nil".to_owned()),
            other => return Err(format!("can't index item of type {}", other.kind())),
        };
    }
    Ok(value)
}

fn position(key: &Value, length: usize) -> Result<usize, String> {
    let number = int_of(key)?;
    usize::try_from(number)
        .ok()
        .filter(|at| *at < length)
        .ok_or_else(|| format!("index out of range: {number}"))
}

fn slice(arguments: &[Value]) -> Result<Value, String> {
    let (whole, bounds) = arguments.split_first().ok_or("wants something to cut")?;
    let length = match whole {
        Value::Text(text) => text.len(),
        Value::List(items) => items.len(),
        other => return Err(format!("can't slice item of type {}", other.kind())),
    };
    let bound = |at: usize, otherwise: usize| match bounds.get(at) {
        None => Ok(otherwise),
        Some(value) => position(value, length + 1),
    };
    let (from, to) = (bound(0, 0)?, bound(1, length)?);
    if bounds.len() > 2 || from > to {
        return Err(format!("invalid bounds: {from} to {to}"));
    }
    match whole {
        Value::Text(text) => text.get(from..to).map(Value::text).ok_or_else(|| "cuts a character".to_owned()),
        Value::List(items) => Ok(Value::list(items[from..to].to_vec())),
        _ => Ok(Value::Nil),
    }
}
