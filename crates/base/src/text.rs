use std::time::Duration;

/// A truth value as Go's flags and environment variables write it.
pub fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        other => Err(format!("{other:?} is neither true nor false")),
    }
}

/// A duration as Go's flags, environment variables and metadata write it: `30s`, `1h2m`, `1.5s`.
pub fn parse_span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration: write it like 300ms, 10s or 1h30m");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let number: f64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let seconds = match &rest[..unit] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return Err(wrong()),
        };
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = &rest[unit..];
    }
    if text.is_empty() { Err(wrong()) } else { Ok(total) }
}

#[cfg(test)]
mod tests {
    use super::{parse_bool, parse_span};
    use std::time::Duration;

    #[test]
    fn truth_is_read_as_go_writes_it() {
        assert_eq!((parse_bool("true"), parse_bool("0")), (Ok(true), Ok(false)));
        assert!(parse_bool("yes").is_err() && parse_bool("").is_err());
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        assert_eq!(parse_span("0"), Ok(Duration::ZERO));
        assert_eq!(parse_span("300ms"), Ok(Duration::from_millis(300)));
        assert_eq!(parse_span("1h2m3.5s"), Ok(Duration::from_millis(3_723_500)));
        for bad in ["", "5", "s", "5 s", "-1s", "1d", "9e99s", "99999999999999999999h", "1..5s", "é"] {
            assert!(parse_span(bad).is_err(), "{bad}");
        }
    }
}
