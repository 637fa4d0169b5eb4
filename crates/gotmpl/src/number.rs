//! Numbers as Go reads and writes them.

use crate::Value;

/// `%v` of a floating point number: as short as possible, with an exponent where it is small or large.
pub(crate) fn shortest(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let exponent: i32 = scientific.split_once('e').and_then(|(_, text)| text.parse().ok()).unwrap_or(0);
    if (-4..21).contains(&exponent) { format!("{number}") } else { with_exponent(&scientific) }
}

/// Go writes a sign and two digits at least.
pub(crate) fn with_exponent(scientific: &str) -> String {
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific.to_owned() };
    let (sign, size) = match exponent.strip_prefix('-') {
        Some(size) => ('-', size),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{size:0>2}")
}

/// A number as it stands in a template.
pub(crate) fn parse(word: &str) -> Option<Value> {
    let plain = word.replace('_', "");
    let (negative, digits) = match plain.strip_prefix(['+', '-']) {
        Some(rest) => (plain.starts_with('-'), rest),
        None => (false, plain.as_str()),
    };
    let lower = digits.to_ascii_lowercase();
    let radix = [("0x", 16), ("0o", 8), ("0b", 2)]
        .into_iter()
        .find_map(|(prefix, radix)| Some((lower.strip_prefix(prefix)?, radix)));
    let magnitude = match radix {
        Some((digits, radix)) => i64::from_str_radix(digits, radix).ok()?,
        None => match digits.parse::<i64>() {
            Ok(number) => number,
            Err(_) => {
                let number = digits
                    .parse::<f64>()
                    .ok()
                    .filter(|_| digits.starts_with(|c: char| c.is_ascii_digit() || c == '.'))?;
                return Some(Value::Float(if negative { -number } else { number }));
            }
        },
    };
    Some(Value::Int(if negative { magnitude.checked_neg()? } else { magnitude }))
}
