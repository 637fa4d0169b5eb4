use std::time::Duration;

/// The form that protobuf's JSON knows.
pub(crate) fn to_json(duration: Duration) -> String {
    let nanos = duration.subsec_nanos();
    if nanos == 0 {
        return format!("{}s", duration.as_secs());
    }
    let digits = format!("{nanos:09}");
    format!("{}.{}s", duration.as_secs(), digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use pilot_base::parse_span;

    use super::to_json;

    #[test]
    fn envoy_is_told_seconds() {
        assert_eq!(parse_span("1m0.25s").map(to_json).as_deref(), Ok("60.25s"));
        assert_eq!(parse_span("45s").map(to_json).as_deref(), Ok("45s"));
    }
}
