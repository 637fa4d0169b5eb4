//! Whether a workload outside of Kubernetes is well: the agent asks it, as kubelet would, and says so when that changes.

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::header::{HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::Env;
use crate::exchange::{Alpn, Limit, Protocol, Sent, Target};
use crate::ready::Readiness;
use crate::status::{grpc_health, speak_from};

const NAME: HeaderValue = HeaderValue::from_static("istio-probe/1.0");
/// Only the status of an answer is of interest.
const LARGEST: usize = 1 << 10;

/// What the xDS server is told about the workload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum HealthEvent {
    Healthy,
    Unhealthy { message: String },
}

/// `readinessProbe` of the proxy configuration.
#[derive(Deserialize, Clone, PartialEq, Debug)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReadinessProbe {
    #[serde(default)]
    initial_delay_seconds: u32,
    #[serde(default)]
    timeout_seconds: u32,
    #[serde(default)]
    period_seconds: u32,
    #[serde(default)]
    success_threshold: u32,
    #[serde(default)]
    failure_threshold: u32,
    #[serde(flatten)]
    method: HealthCheckMethod,
}

#[derive(Deserialize, Clone, PartialEq, Debug)]
#[serde(rename_all = "camelCase")]
enum HealthCheckMethod {
    HttpGet(HttpHealthCheck),
    TcpSocket(TcpHealthCheck),
    Exec(ExecHealthCheck),
    Grpc(GrpcHealthCheck),
}

#[derive(Deserialize, Clone, PartialEq, Debug)]
#[serde(rename_all = "camelCase")]
struct HttpHealthCheck {
    #[serde(default)]
    path: String,
    port: u16,
    #[serde(default)]
    host: String,
    #[serde(default)]
    scheme: String,
    #[serde(default)]
    http_headers: Vec<Header>,
}

#[derive(Deserialize, Clone, PartialEq, Debug)]
struct Header {
    name: String,
    value: String,
}

#[derive(Deserialize, Clone, PartialEq, Debug)]
struct TcpHealthCheck {
    #[serde(default)]
    host: String,
    port: u16,
}

#[derive(Deserialize, Clone, PartialEq, Debug)]
struct ExecHealthCheck {
    command: Vec<String>,
}

#[derive(Deserialize, Clone, PartialEq, Debug)]
struct GrpcHealthCheck {
    port: u16,
    #[serde(default)]
    service: String,
}

impl ReadinessProbe {
    /// Of the proxy configuration as it was written.
    pub(crate) fn read(said: &Map<String, Value>) -> anyhow::Result<Option<Self>> {
        let written = said.get("readinessProbe").or_else(|| said.get("readiness_probe"));
        let Some(written) = written.filter(|value| !value.is_null()) else { return Ok(None) };
        let probe: Self = serde_json::from_value(written.clone()).context(
            "proxy configuration: readinessProbe must have one of httpGet, tcpSocket, exec and grpc, and numbers besides",
        )?;
        if matches!(&probe.method, HealthCheckMethod::Exec(exec) if exec.command.is_empty()) {
            bail!("proxy configuration: readinessProbe.exec.command is empty");
        }
        Ok(Some(probe))
    }

    /// `address` is the workload's own.
    pub(crate) fn at(self, address: IpAddr, env: &Env) -> HealthCheck {
        let legacy = env.flag("REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION") == Some(true);
        HealthCheck {
            host: if legacy { "localhost".to_owned() } else { address.to_string() },
            from: speak_from(address),
            probe: self,
        }
    }
}

pub(crate) struct HealthCheck {
    probe: ReadinessProbe,
    host: String,
    from: IpAddr,
}

impl HealthCheck {
    /// Asks until it is dropped, or nobody listens. A workload behind a proxy that is not ready is not well either.
    pub(crate) async fn run(self, envoy: Arc<Readiness>, events: mpsc::Sender<HealthEvent>) {
        let seconds = |seconds: u32, least: u32| Duration::from_secs(seconds.max(least).into());
        let ReadinessProbe { initial_delay_seconds, period_seconds, .. } = self.probe;
        sleep(seconds(initial_delay_seconds, 0)).await;
        let mut period =
            interval(if period_seconds == 0 { seconds(10, 1) } else { seconds(period_seconds, 1) });
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut thresholds = Thresholds::new(self.probe.success_threshold, self.probe.failure_threshold);
        loop {
            period.tick().await;
            let result = match envoy.check().await {
                Ok(_) => self.check().await,
                Err(reason) => Err(reason.into()),
            };
            let result = result.map_err(|error| format!("{error:#}"));
            if let Some(event) = thresholds.count(result) {
                tracing::info!(?event, "health of the workload");
                if events.send(event).await.is_err() {
                    return;
                }
            }
        }
    }

    async fn check(&self) -> anyhow::Result<()> {
        let after = Duration::from_secs(self.probe.timeout_seconds.max(1).into());
        let checked = async {
            match &self.probe.method {
                HealthCheckMethod::HttpGet(http) => self.http(http).await,
                HealthCheckMethod::TcpSocket(tcp) => {
                    self.target(&tcp.host, tcp.port, Protocol::Http1).connect().await?;
                    Ok(())
                }
                HealthCheckMethod::Exec(exec) => run(&exec.command).await,
                HealthCheckMethod::Grpc(grpc) => {
                    let target = self.target("", grpc.port, Protocol::Http2);
                    Ok(grpc_health(&target, &grpc.service, Some(&NAME)).await?)
                }
            }
        };
        timeout(after, checked).await.unwrap_or_else(|_| bail!("no answer within {}s", after.as_secs()))
    }

    fn target(&self, host: &str, port: u16, protocol: Protocol) -> Target {
        let host = if host.is_empty() { self.host.clone() } else { host.to_owned() };
        Target { host, port, from: Some(self.from), protocol }
    }

    async fn http(&self, http: &HttpHealthCheck) -> anyhow::Result<()> {
        let tls = http.scheme.eq_ignore_ascii_case("https");
        let protocol = if tls { Protocol::Tls(Alpn::Http1) } else { Protocol::Http1 };
        let target = self.target(&http.host, http.port, protocol);
        let mut headers = HeaderMap::new();
        for Header { name, value } in &http.http_headers {
            let name = HeaderName::try_from(name).with_context(|| format!("{name:?} is not a header"))?;
            headers.append(name, HeaderValue::try_from(value)?);
        }
        if !headers.contains_key(USER_AGENT) {
            headers.insert(USER_AGENT, NAME);
        }
        let told = headers.get(HOST).and_then(|host| host.to_str().ok()).map(str::to_owned);
        let sent = Sent {
            method: Method::GET,
            path: if http.path.starts_with('/') { http.path.clone() } else { format!("/{}", http.path) },
            authority: told.unwrap_or_else(|| format!("{}:{}", target.host, target.port)),
            headers,
            body: Bytes::new(),
        };
        let received = target.exchange(sent, Limit::Cut(LARGEST)).await?;
        if !(200..400).contains(&received.status.as_u16()) {
            bail!("the workload answers with status {}", received.status.as_u16());
        }
        Ok(())
    }
}

async fn run(command: &[String]) -> anyhow::Result<()> {
    let [program, args @ ..] = command else { bail!("there is no command") };
    let status = Command::new(program).args(args).kill_on_drop(true).status().await;
    let status = status.with_context(|| format!("cannot run {program}"))?;
    if !status.success() {
        bail!("{program} ended with {status}");
    }
    Ok(())
}

/// Tells changes only, and only once they have lasted. No I/O, no clock.
struct Thresholds {
    success: u32,
    failure: u32,
    last: Option<bool>,
    in_a_row: (u32, u32),
}

impl Thresholds {
    fn new(success: u32, failure: u32) -> Self {
        Self { success: success.max(1), failure: failure.max(1), last: None, in_a_row: (0, 0) }
    }

    fn count(&mut self, result: Result<(), String>) -> Option<HealthEvent> {
        match result {
            Ok(()) => {
                self.in_a_row = (self.in_a_row.0.saturating_add(1), 0);
                if self.in_a_row.0 < self.success || self.last == Some(true) {
                    return None;
                }
                self.last = Some(true);
                Some(HealthEvent::Healthy)
            }
            Err(message) => {
                self.in_a_row = (0, self.in_a_row.1.saturating_add(1));
                if self.in_a_row.1 < self.failure || self.last == Some(false) {
                    return None;
                }
                self.last = Some(false);
                Some(HealthEvent::Unhealthy { message })
            }
        }
    }
}
