use std::cmp::Ordering;

use crate::functions::take;
use crate::value::Value;

/// Is the first equal to one of the others?
pub(crate) fn eq(arguments: &[Value]) -> Result<Value, String> {
    let (first, others) = arguments.split_first().ok_or("wants at least two arguments")?;
    if others.is_empty() {
        return Err("missing argument for comparison".to_owned());
    }
    for other in others {
        if equal(first, other)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

pub(crate) fn ne(arguments: &[Value]) -> Result<Value, String> {
    let [first, second] = take::<2>(arguments)?;
    equal(first, second).map(|equal| Value::Bool(!equal))
}

pub(crate) fn lt(arguments: &[Value]) -> Result<Value, String> {
    ordered(arguments, |order| order == Ordering::Less)
}

pub(crate) fn le(arguments: &[Value]) -> Result<Value, String> {
    ordered(arguments, |order| order != Ordering::Greater)
}

pub(crate) fn gt(arguments: &[Value]) -> Result<Value, String> {
    ordered(arguments, |order| order == Ordering::Greater)
}

pub(crate) fn ge(arguments: &[Value]) -> Result<Value, String> {
    ordered(arguments, |order| order != Ordering::Less)
}

/// Where Go would ask of which type a number is, its value counts: data that was JSON has one type of numbers.
fn equal(first: &Value, second: &Value) -> Result<bool, String> {
    match (first, second) {
        (Value::List(_) | Value::Map(_), _) => Err(format!("non-comparable type {}", first.kind())),
        (_, Value::List(_) | Value::Map(_)) => Err(format!("non-comparable type {}", second.kind())),
        (Value::Absent | Value::Nil, Value::Absent | Value::Nil) => Ok(true),
        (Value::Absent | Value::Nil, _) | (_, Value::Absent | Value::Nil) => Ok(false),
        (Value::Bool(a), Value::Bool(b)) => Ok(a == b),
        (Value::Text(a), Value::Text(b)) => Ok(a == b),
        (Value::Int(a), Value::Int(b)) => Ok(a == b),
        _ => numbers(first, second).map(|(a, b)| a == b),
    }
}

fn ordered(arguments: &[Value], holds: fn(Ordering) -> bool) -> Result<Value, String> {
    let [first, second] = take::<2>(arguments)?;
    let order = match (first, second) {
        (Value::Text(a), Value::Text(b)) => Some(a.cmp(b)),
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        _ => numbers(first, second)?.0.partial_cmp(&numbers(first, second)?.1),
    };
    Ok(Value::Bool(order.is_some_and(holds)))
}

#[allow(clippy::cast_precision_loss, reason = "numbers that large are not compared with fractions")]
fn numbers(first: &Value, second: &Value) -> Result<(f64, f64), String> {
    let number = |value: &Value| match value {
        Value::Int(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    };
    number(first)
        .zip(number(second))
        .ok_or_else(|| format!("incompatible types for comparison: {} and {}", first.kind(), second.kind()))
}
