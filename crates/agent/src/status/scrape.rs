//! The metrics of agent, Envoy and application in one answer. What one of them does not give is left out and counted: the
//! others' are worth having.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde::Deserialize;
use tokio::time::timeout;

use super::formats::{self, From};
use crate::Env;
use crate::exchange::{Limit, Protocol, Sent, Target};
use crate::metrics::{Metrics, Scraped};
use crate::node::ProxyType;

const VARIABLE: &str = "ISTIO_PROMETHEUS_ANNOTATIONS";
const TIMEOUT: HeaderName = HeaderName::from_static("x-prometheus-scrape-timeout-seconds");
/// Nobody waits longer: Prometheus' own limit is a tenth of it.
const LONGEST: Duration = Duration::from_secs(100);
const LARGEST_APPLICATION: usize = 10 << 20;
/// A proxy that knows every cluster of a large mesh has tens of megabytes to tell.
const LARGEST_ENVOY: usize = 256 << 20;
const DEFAULT_PATH: &str = "/metrics";
/// Ports of the proxy itself, which would be counted twice or ask the agent again.
const RESERVED: [u16; 9] = [15000, 15001, 15004, 15006, 15008, 15020, 15021, 15053, 15090];

#[derive(Debug, thiserror::Error)]
pub(crate) enum ScrapeError {
    /// Only the injector writes it, so it is damaged.
    #[error("{VARIABLE} is not what the injector writes: {0}")]
    Json(#[from] serde_json::Error),
    #[error("{VARIABLE}: {0:?} is not a port")]
    Port(String),
    #[error(
        "{VARIABLE}: port {0} is one of the proxy's own, whose metrics are merged already; set prometheus.io/port to the application's"
    )]
    Own(u16),
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Annotations {
    scrape: String,
    path: String,
    port: String,
    targets: Vec<AppTarget>,
}

#[derive(Deserialize, Clone)]
struct AppTarget {
    port: String,
    #[serde(default)]
    path: String,
}

/// Whom to ask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Scrape {
    /// Where Envoy tells its own; none if it is not wanted.
    envoy: Option<u16>,
    applications: Vec<(u16, String)>,
}

/// Of the scraper's request.
pub(crate) struct Asked<'a> {
    pub(crate) query: Option<&'a str>,
    pub(crate) headers: &'a HeaderMap,
}

impl Scrape {
    /// `ports` are those of the agent and of Envoy's metrics.
    pub(crate) fn read(env: &Env, proxy_type: ProxyType, ports: (u16, u16)) -> Result<Self, ScrapeError> {
        let (own, envoy) = ports;
        let envoy =
            Some(envoy).filter(|port| *port != 0 && env.flag("PILOT_AGENT_MERGE_ENVOY_STATS") != Some(false));
        // Gateways show this port to everybody.
        let Some(text) = env.get(VARIABLE).filter(|_| proxy_type == ProxyType::Sidecar) else {
            return Ok(Self { envoy, applications: Vec::new() });
        };
        let annotations: Annotations = serde_json::from_str(text)?;
        if annotations.scrape == "false" {
            return Ok(Self { envoy, applications: Vec::new() });
        }
        let or = |text: &str, otherwise: &str| if text.is_empty() { otherwise } else { text }.to_owned();
        let mut targets = annotations.targets.clone();
        if targets.is_empty() {
            targets.push(AppTarget { port: or(&annotations.port, "80"), path: annotations.path.clone() });
        }
        let mut applications = Vec::new();
        for AppTarget { port, path } in targets {
            let number: u16 =
                port.parse().ok().filter(|port| *port > 0).ok_or_else(|| ScrapeError::Port(port.clone()))?;
            if number == own || RESERVED.contains(&number) {
                return Err(ScrapeError::Own(number));
            }
            applications.push((number, or(&path, DEFAULT_PATH)));
        }
        Ok(Self { envoy, applications })
    }

    /// The format and the text.
    pub(crate) async fn merged(&self, asked: &Asked<'_>, metrics: &Metrics) -> (&'static str, Vec<u8>) {
        metrics.scrapes.inc();
        let (envoy, applications) =
            tokio::join!(self.envoy(asked, metrics), self.applications(asked, metrics));
        let mut formats = applications.iter().map(|(format, _)| *format);
        let first = formats.next().unwrap_or(formats::TEXT);
        // Bodies of two kinds are valid as neither; most readers take both for text.
        let format = if formats.all(|format| format == first) { first } else { formats::TEXT };
        let mut out = Vec::new();
        if let Err(error) = metrics.write(&mut out) {
            tracing::error!(%error, "cannot write the agent's metrics");
            metrics.scrape_failed(Scraped::Agent);
        }
        append(&mut out, &envoy.unwrap_or_default());
        for (_, body) in &applications {
            append(&mut out, formats::without_end(body));
        }
        if formats::is_open_metrics(format) {
            out.extend_from_slice(b"# EOF\n");
        }
        (format, out)
    }

    async fn envoy(&self, asked: &Asked<'_>, metrics: &Metrics) -> Option<Vec<u8>> {
        let port = self.envoy?;
        let query = asked.query.filter(|query| !query.is_empty());
        let path = query.map_or_else(|| "/stats/prometheus".to_owned(), |q| format!("/stats/prometheus?{q}"));
        let wanted = Wanted { port, path: &path, from: From::Envoy };
        match scrape(asked.headers, &wanted, LARGEST_ENVOY).await {
            Ok((_, body)) => Some(body),
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "cannot scrape Envoy");
                metrics.scrape_failed(Scraped::Envoy);
                None
            }
        }
    }

    /// One after the other, in the order that they are written in: more than one is rare.
    async fn applications(&self, asked: &Asked<'_>, metrics: &Metrics) -> Vec<(&'static str, Vec<u8>)> {
        let mut found = Vec::new();
        for (port, path) in &self.applications {
            let wanted = Wanted { port: *port, path, from: From::Application };
            match scrape(asked.headers, &wanted, LARGEST_APPLICATION).await {
                Ok((content_type, body)) => found.push((formats::format_of(&content_type), body)),
                Err(error) => {
                    tracing::error!(
                        port,
                        path,
                        error = format!("{error:#}"),
                        "cannot scrape the application"
                    );
                    metrics.scrape_failed(Scraped::Application);
                }
            }
        }
        found
    }
}

struct Wanted<'a> {
    port: u16,
    path: &'a str,
    from: From,
}

/// As Prometheus itself would ask: its time, its name, and of its formats those that can be merged.
async fn scrape(headers: &HeaderMap, wanted: &Wanted<'_>, limit: usize) -> anyhow::Result<(String, Vec<u8>)> {
    let Wanted { port, path, from } = *wanted;
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let mut passed = HeaderMap::new();
    passed.insert(ACCEPT, HeaderValue::from_str(&formats::acceptable(accept, from))?);
    for name in [USER_AGENT, TIMEOUT] {
        if let Some(value) = headers.get(&name) {
            passed.insert(name, value.clone());
        }
    }
    let sent = Sent {
        method: Method::GET,
        path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
        authority: format!("localhost:{port}"),
        headers: passed,
        body: Bytes::new(),
    };
    let target = Target { host: "localhost".to_owned(), port, from: None, protocol: Protocol::Http1 };
    let after = patience(headers);
    let received = timeout(after, target.exchange(sent, Limit::Refuse(limit)))
        .await
        .map_err(|_| anyhow::anyhow!("no answer from localhost:{port} within {}ms", after.as_millis()))??;
    if received.status != StatusCode::OK {
        anyhow::bail!("localhost:{port}{path} answers with status {}", received.status.as_u16());
    }
    let content_type = received.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    Ok((content_type.unwrap_or_default().to_owned(), received.body))
}

fn patience(headers: &HeaderMap) -> Duration {
    let told = headers.get(TIMEOUT).and_then(|value| value.to_str().ok()?.parse::<f64>().ok());
    told.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .map_or(LONGEST, |told| told.min(LONGEST))
}

/// What follows begins on a line of its own.
fn append(out: &mut Vec<u8>, body: &[u8]) {
    out.extend_from_slice(body);
    if body.last().is_some_and(|last| *last != b'\n') {
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::Scrape;
    use crate::Env;
    use crate::node::ProxyType;

    fn read(text: &str, proxy_type: ProxyType) -> Result<Vec<(u16, String)>, String> {
        let env = Env::from([("ISTIO_PROMETHEUS_ANNOTATIONS", text)]);
        let scrape = Scrape::read(&env, proxy_type, (15020, 15090)).map_err(|error| error.to_string())?;
        assert_eq!(scrape.envoy, Some(15090));
        Ok(scrape.applications)
    }

    #[test]
    fn the_injector_says_where_applications_tell() {
        let sidecar = |text: &str| read(text, ProxyType::Sidecar).unwrap();
        assert_eq!(sidecar("{}"), [(80, "/metrics".to_owned())]);
        assert_eq!(sidecar(r#"{"scrape":"true","path":"/m","port":"9090"}"#), [(9090, "/m".to_owned())]);
        assert_eq!(
            sidecar(r#"{"targets":[{"port":"1"},{"port":"2","path":"/x"}]}"#),
            [(1, "/metrics".to_owned()), (2, "/x".to_owned())]
        );
        assert_eq!(sidecar(r#"{"scrape":"false"}"#), []);
        assert_eq!(sidecar(""), []);
        assert_eq!(read("{}", ProxyType::Router).unwrap(), []);
    }

    #[test]
    fn the_agent_does_not_scrape_itself() {
        let error = |text: &str| read(text, ProxyType::Sidecar).unwrap_err();
        assert!(error(r#"{"port":"15020"}"#).contains("prometheus.io/port"));
        assert!(error(r#"{"port":"015020"}"#).contains("prometheus.io/port"));
        assert!(error(r#"{"port":"http"}"#).contains("\"http\" is not a port"));
        assert!(error("[").contains("injector"));
    }
}
