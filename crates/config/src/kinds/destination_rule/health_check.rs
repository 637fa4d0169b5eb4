//! Active health checks, which Istio's rules have no field for: an annotation of a DestinationRule asks for them.

use std::time::Duration;

use pilot_base::{Labels, Name, parse_span};
use pilot_model::{HealthCheck, HealthProbe, Span};
use serde::Deserialize;

use crate::check::Check;
use crate::{de, yaml};

/// The annotation that asks for health checks. Its value is YAML.
const ANNOTATION: &str = "pilot.dev/health-check";
const PATH: &str = "metadata.annotations[pilot.dev/health-check]";
/// Checks that follow each other faster would be most of an endpoint's work.
const SHORTEST: Duration = Duration::from_millis(100);

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Raw {
    http: Option<Http>,
    grpc: Option<Grpc>,
    tcp: Option<Tcp>,
    ports: Vec<u16>,
    interval: Option<String>,
    timeout: Option<String>,
    unhealthy_threshold: Option<u32>,
    healthy_threshold: Option<u32>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Http {
    path: String,
    host: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Grpc {
    service: String,
}

#[derive(Deserialize, Default)]
struct Tcp {}

/// What a rule's annotation asks for. With any mistake in it there are no checks: half of what was meant could take all
/// endpoints away.
pub(crate) fn health_check(annotations: &Labels, check: &mut Check<'_>) -> Option<HealthCheck> {
    let text = annotations.get(ANNOTATION)?;
    match read(text) {
        Ok(found) => Some(found),
        Err((field, message)) => {
            let path = if field.is_empty() { PATH.to_owned() } else { format!("{PATH}.{field}") };
            check.leave_out(path, format!("{message}; endpoints are not checked"));
            None
        }
    }
}

/// The field that is wrong, and why.
type Mistake = (String, String);

fn mistake(field: &str, message: impl Into<String>) -> Mistake {
    (field.to_owned(), message.into())
}

fn read(text: &str) -> Result<HealthCheck, Mistake> {
    let documents = yaml::parse(text).map_err(|error| mistake("", error.message))?;
    let [node] = &documents[..] else { return Err(mistake("", "must be one YAML map")) };
    let typed = de::read::<Raw>(node, "").map_err(|error| (error.path, error.message))?;
    if let Some(unknown) = typed.unknown.first() {
        return Err(mistake(&unknown.path, "is not a field of health checks"));
    }
    let raw = typed.value;
    let interval = span("interval", raw.interval, Duration::from_secs(10))?;
    let timeout = span("timeout", raw.timeout, Duration::from_secs(1).min(interval))?;
    if timeout > interval {
        return Err(mistake("timeout", "must not be longer than the interval"));
    }
    if let Some(at) = raw.ports.iter().position(|port| *port == 0) {
        return Err(mistake(&format!("ports[{at}]"), "0 is not a port"));
    }
    Ok(HealthCheck {
        probe: probe(raw.http, raw.grpc, raw.tcp)?,
        ports: raw.ports,
        interval,
        timeout,
        unhealthy_threshold: threshold("unhealthyThreshold", raw.unhealthy_threshold, 3)?,
        healthy_threshold: threshold("healthyThreshold", raw.healthy_threshold, 1)?,
    })
}

fn probe(http: Option<Http>, grpc: Option<Grpc>, tcp: Option<Tcp>) -> Result<HealthProbe, Mistake> {
    match (http, grpc, tcp) {
        (Some(Http { path, .. }), None, None) if !path.starts_with('/') => {
            Err(mistake("http.path", "must begin with /"))
        }
        (Some(Http { path, host }), None, None) => {
            sendable("http.path", &path)?;
            sendable("http.host", &host)?;
            Ok(HealthProbe::Http { path: path.into(), host: host.into() })
        }
        (None, Some(Grpc { service }), None) => Ok(HealthProbe::Grpc { service: Name::from(service) }),
        (None, None, Some(Tcp {})) => Ok(HealthProbe::Tcp),
        _ => Err(mistake("", "must say one of http, grpc and tcp")),
    }
}

/// What Envoy puts into a request of its own must be fit for one.
fn sendable(field: &str, text: &str) -> Result<(), Mistake> {
    let bad = text.chars().find(|c| c.is_control() || c.is_whitespace());
    bad.map_or(Ok(()), |c| Err(mistake(field, format!("must not contain {c:?}"))))
}

fn span(field: &str, text: Option<String>, default: Span) -> Result<Span, Mistake> {
    let Some(text) = text else { return Ok(default) };
    match parse_span(&text) {
        Ok(span) if span >= SHORTEST => Ok(span),
        Ok(_) => Err(mistake(field, "must be at least 100ms")),
        Err(error) => Err(mistake(field, error)),
    }
}

fn threshold(field: &str, count: Option<u32>, default: u32) -> Result<u32, Mistake> {
    match count.unwrap_or(default) {
        0 => Err(mistake(field, "must be at least 1")),
        count => Ok(count),
    }
}

#[cfg(test)]
mod tests {
    use super::read;
    use pilot_model::HealthProbe;
    use std::time::Duration;

    #[test]
    fn a_check_has_defaults() {
        let found = read("http: {path: /healthz}").unwrap();
        assert_eq!(found.probe, HealthProbe::Http { path: "/healthz".into(), host: "".into() });
        assert_eq!((found.interval, found.timeout), (Duration::from_secs(10), Duration::from_secs(1)));
        assert_eq!((found.unhealthy_threshold, found.healthy_threshold), (3, 1));
        assert_eq!(read("{tcp: {}, interval: 500ms}").unwrap().timeout, Duration::from_millis(500));
        assert_eq!(read("grpc: {service: a.B}").unwrap().probe, HealthProbe::Grpc { service: "a.B".into() });
    }

    #[test]
    fn every_mistake_names_its_field() {
        let field = |text: &str| read(text).unwrap_err().0;
        assert_eq!(field("http: {path: healthz}"), "http.path");
        assert_eq!(field("http: {path: \"/a\\nb\"}"), "http.path");
        assert_eq!(field("http: {path: /, host: \"a b\"}"), "http.host");
        assert_eq!(field("{http: {path: /}, tcp: {}}"), "");
        assert_eq!(field("{tcp: {}, interval: soon}"), "interval");
        assert_eq!(field("{tcp: {}, interval: 1s, timeout: 2s}"), "timeout");
        assert_eq!(field("{tcp: {}, healthyThreshold: 0}"), "healthyThreshold");
        assert_eq!(field("{tcp: {}, ports: [80, 0]}"), "ports[1]");
        assert_eq!(field("{tcp: {}, intervall: 1s}"), "intervall");
        assert_eq!(field("{tcp: {}, ports: [x]}"), "ports[0]");
    }
}
