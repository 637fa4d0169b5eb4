//! The formats that metrics are written in, and which of them may be asked for.
//!
//! The answers of several are written one after the other, so all must be text of the same kind.

pub(super) const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text";
const OPEN_METRICS_0: &str = "application/openmetrics-text; version=0.0.1; charset=utf-8";
const OPEN_METRICS_1: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAINEST: (&str, &str) = ("text/plain", "version=0.0.4");
const PLAINEST_OPEN_METRICS: (&str, &str) = (OPEN_METRICS, "version=0.0.1");
/// How OpenMetrics ends.
const END: &[u8] = b"# EOF";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum From {
    /// Envoy's answer stands in the middle and must not end the whole.
    Envoy,
    Application,
}

/// The format of the whole, by that of the application.
pub(super) fn format_of(content_type: &str) -> &'static str {
    let mut parts = content_type.split(';').map(str::trim);
    if !parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case(OPEN_METRICS)) {
        return TEXT;
    }
    match parts.find_map(|parameter| parameter.strip_prefix("version=")).map(|v| v.trim_matches('"')) {
        Some("1.0.0") => OPEN_METRICS_1,
        Some("0.0.1" | "") | None => OPEN_METRICS_0,
        Some(_) => TEXT,
    }
}

pub(super) fn is_open_metrics(format: &str) -> bool {
    format.starts_with(OPEN_METRICS)
}

/// What the scraper accepts and can be merged, in its order.
pub(super) fn acceptable(accept: &str, from: From) -> String {
    let mut chosen: Vec<(String, String)> = Vec::new();
    for wanted in accept.split(',') {
        let mut parts = wanted.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let choice = match kind.as_str() {
            "*" | "*/*" => owned(PLAINEST),
            "application/*" if from == From::Application => owned(PLAINEST_OPEN_METRICS),
            "text/*" | "text/plain" => (kind, parameters(parts)),
            OPEN_METRICS if from == From::Application => (kind, parameters(parts)),
            _ => continue,
        };
        if !chosen.contains(&choice) {
            chosen.push(choice);
        }
    }
    if chosen.is_empty() {
        chosen.push(owned(PLAINEST));
    }
    let total = chosen.len();
    let ranked = chosen.into_iter().enumerate().map(|(at, (kind, parameters))| {
        let quality = quality(total - at, total);
        if parameters.is_empty() {
            format!("{kind};{quality}")
        } else {
            format!("{kind};{parameters};{quality}")
        }
    });
    ranked.collect::<Vec<_>>().join(",")
}

fn owned((kind, parameters): (&str, &str)) -> (String, String) {
    (kind.to_owned(), parameters.to_owned())
}

fn parameters<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    parts.filter(|part| !part.starts_with("q=") && !part.is_empty()).collect::<Vec<_>>().join(";")
}

/// Three digits are the most there may be.
fn quality(rank: usize, total: usize) -> String {
    if total < 10 { format!("q=0.{rank}") } else { format!("q=0.{:03}", rank.min(999)) }
}

/// A body without the end of its kind.
pub(super) fn without_end(body: &[u8]) -> &[u8] {
    body.trim_ascii_end().strip_suffix(END).unwrap_or(body)
}

#[cfg(test)]
mod tests {
    use super::{From, OPEN_METRICS_0, OPEN_METRICS_1, TEXT, acceptable, format_of, without_end};

    const PROMETHEUS: &str = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";

    #[test]
    fn only_what_can_be_merged_is_asked_for() {
        assert_eq!(acceptable(PROMETHEUS, From::Envoy), "text/plain;version=0.0.4;q=0.1");
        assert_eq!(
            acceptable(PROMETHEUS, From::Application),
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.2,text/plain;version=0.0.4;q=0.1"
        );
        assert_eq!(acceptable("", From::Envoy), "text/plain;version=0.0.4;q=0.1");
        assert_eq!(acceptable("application/*", From::Envoy), "text/plain;version=0.0.4;q=0.1");
        assert_eq!(
            acceptable("application/*", From::Application),
            "application/openmetrics-text;version=0.0.1;q=0.1"
        );
    }

    #[test]
    fn the_application_decides_the_format() {
        assert_eq!(format_of("application/openmetrics-text; version=1.0.0; charset=utf-8"), OPEN_METRICS_1);
        assert_eq!(format_of("application/openmetrics-text"), OPEN_METRICS_0);
        assert_eq!(format_of("application/openmetrics-text; version=9"), TEXT);
        assert_eq!((format_of("text/plain"), format_of("")), (TEXT, TEXT));
    }

    #[test]
    fn an_end_in_the_middle_is_taken_away() {
        assert_eq!(without_end(b"a 1\n# EOF\r\n"), b"a 1\n");
        assert_eq!(without_end(b"a 1\n"), b"a 1\n");
    }
}
