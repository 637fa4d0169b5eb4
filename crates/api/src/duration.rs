use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// `google.protobuf.Duration`. Its JSON form is wider than protobuf's own: users write `1h30m` and `250ms` as well as `90s`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Message)]
pub struct Duration {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

const NANOS_PER_SECOND: i128 = 1_000_000_000;

impl Duration {
    fn from_nanos(nanos: i128) -> Option<Self> {
        let seconds = i64::try_from(nanos / NANOS_PER_SECOND).ok()?;
        // The remainder of a division by a billion fits.
        let nanos = i32::try_from(nanos % NANOS_PER_SECOND).ok()?;
        Some(Self { seconds, nanos })
    }
}

/// Reads a sequence of numbers with units: `1h`, `1m30s`, `0.5s`, `-10ms`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(Duration::default());
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let (value, after) = take_number(rest)?;
        let (unit, after) = take_unit(after)?;
        total = total.checked_add(value.checked_mul(unit)? / FRACTION)?;
        rest = after;
    }
    Duration::from_nanos(if negative { -total } else { total })
}

/// Numbers are kept as multiples of this, so that fractions need no floating point.
const FRACTION: i128 = 1_000_000_000;

fn take_number(text: &str) -> Option<(i128, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || whole.len() > 18 {
        return None;
    }
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let digits: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    Some((whole * FRACTION + digits.parse::<i128>().ok()?, rest))
}

fn take_unit(text: &str) -> Option<(i128, &str)> {
    const UNITS: [(&str, i128); 8] = [
        ("ns", 1),
        ("us", 1_000),
        ("µs", 1_000),
        ("μs", 1_000),
        ("ms", 1_000_000),
        ("s", NANOS_PER_SECOND),
        ("m", 60 * NANOS_PER_SECOND),
        ("h", 3600 * NANOS_PER_SECOND),
    ];
    UNITS.into_iter().find_map(|(unit, nanos)| Some((nanos, text.strip_prefix(unit)?)))
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = Duration;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as 5s, 250ms or 1h30m")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
                parse_duration(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The form that protobuf's JSON prescribes.
impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, nanos } = *self;
        let sign = if seconds < 0 || nanos < 0 { "-" } else { "" };
        write!(f, "{sign}{}", seconds.unsigned_abs())?;
        if nanos != 0 {
            let digits = format!("{:09}", nanos.unsigned_abs());
            write!(f, ".{}", digits.trim_end_matches('0'))?;
        }
        f.write_str("s")
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, parse_duration};

    #[test]
    fn users_write_durations_in_many_ways() {
        let cases = [
            ("5s", 5, 0),
            ("0.5s", 0, 500_000_000),
            ("250ms", 0, 250_000_000),
            ("1h30m", 5400, 0),
            ("1m0.25s", 60, 250_000_000),
            ("-1.5s", -1, -500_000_000),
            ("0", 0, 0),
            (".5s", 0, 500_000_000),
        ];
        for (text, seconds, nanos) in cases {
            assert_eq!(parse_duration(text), Some(Duration { seconds, nanos }), "{text}");
        }
        for text in ["", "5", "s", "5x", "1h-5m", "five", "99999999999999999999s", "- 1s"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn the_json_form_is_protobufs() {
        assert_eq!(serde_json::to_string(&parse_duration("1m0.25s")).unwrap(), "\"60.25s\"");
        let error = serde_json::from_str::<Duration>("\"soon\"").unwrap_err();
        assert!(error.to_string().contains("such as 5s"), "{error}");
    }
}
