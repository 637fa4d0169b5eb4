//! What the agent counts about itself, under Istio's names. Others of its services add theirs to the registry.

use std::sync::atomic::{AtomicI64, Ordering};

use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry, Result,
    TextEncoder,
};

use crate::clock::unix_seconds;
pub(crate) use identity::IdentityMetrics;

mod identity;
mod process;

const PREFIX: &str = "istio_agent";
/// Where upstream resolvers usually answer, up to the time they are given.
const DNS_BUCKETS: [f64; 6] = [0.001, 0.005, 0.01, 0.1, 1.0, 5.0];

pub(crate) struct Metrics {
    pub(crate) registry: Registry,
    pub(crate) startup_duration: Gauge,
    pub(crate) scrapes: IntCounter,
    scrape_failures: IntCounterVec,
    pub(crate) dns_requests: IntCounter,
    pub(crate) dns_upstream_requests: IntCounter,
    pub(crate) dns_upstream_failures: IntCounter,
    pub(crate) dns_upstream_duration: Histogram,
    pub(crate) istiod_connection_failures: IntCounter,
    istiod_terminations: IntCounterVec,
    envoy_terminations: IntCounterVec,
    pub(crate) xds_proxy_requests: IntCounter,
    pub(crate) xds_proxy_responses: IntCounter,
    pub(crate) snapshot_in_use: IntGauge,
    snapshot_age: IntGauge,
    /// In seconds since 1970; 0 if there is no snapshot.
    snapshot_confirmed: AtomicI64,
    pub(crate) identity: IdentityMetrics,
}

/// How a stream ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ended {
    Cancelled,
    Failed,
}

impl Ended {
    fn label(self) -> &'static str {
        match self {
            Self::Cancelled => "cancel",
            Self::Failed => "error",
        }
    }
}

/// Whose metrics could not be had.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scraped {
    Envoy,
    Application,
    Agent,
}

impl Metrics {
    pub(crate) fn new() -> Result<Self> {
        let registry = Registry::new_custom(Some(PREFIX.to_owned()), None)?;
        let counter = |name: &str, help: &str| -> Result<IntCounter> {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let startup_duration =
            Gauge::new("startup_duration_seconds", "Time from the start to the first time ready.")?;
        registry.register(Box::new(startup_duration.clone()))?;
        let scrape_failures =
            IntCounterVec::new(Opts::new("scrape_failures_total", "Scrapes that failed."), &["type"])?;
        registry.register(Box::new(scrape_failures.clone()))?;
        let dns_upstream_duration = Histogram::with_opts(
            HistogramOpts::new(
                "dns_upstream_request_duration_seconds",
                "Time that upstream DNS servers take.",
            )
            .buckets(DNS_BUCKETS.to_vec()),
        )?;
        registry.register(Box::new(dns_upstream_duration.clone()))?;
        let vector = |name: &str, help: &str, label: &str| -> Result<IntCounterVec> {
            let vector = IntCounterVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(vector.clone()))?;
            Ok(vector)
        };
        let gauge = |name: &str, help: &str| -> Result<IntGauge> {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        Ok(Self {
            istiod_connection_failures: counter(
                "istiod_connection_failures",
                "Connections to the control plane that failed.",
            )?,
            istiod_terminations: vector(
                "istiod_connection_terminations",
                "Streams that ended on the side of the control plane.",
                "type",
            )?,
            envoy_terminations: vector(
                "envoy_connection_terminations",
                "Streams that ended on the side of Envoy.",
                "type",
            )?,
            xds_proxy_requests: counter("xds_proxy_requests", "Requests sent to the control plane.")?,
            xds_proxy_responses: counter("xds_proxy_responses", "Responses of the control plane.")?,
            snapshot_in_use: gauge("xds_snapshot_in_use", "Streams that are served from the snapshot.")?,
            snapshot_age: gauge(
                "xds_snapshot_age_seconds",
                "Time since the control plane last confirmed what the snapshot holds.",
            )?,
            snapshot_confirmed: AtomicI64::new(0),
            identity: IdentityMetrics::new(&registry)?,
            scrapes: counter("scrapes_total", "Scrapes.")?,
            dns_requests: counter("dns_requests_total", "DNS requests.")?,
            dns_upstream_requests: counter(
                "dns_upstream_requests_total",
                "DNS requests that were forwarded to upstream servers.",
            )?,
            dns_upstream_failures: counter(
                "dns_upstream_failures_total",
                "DNS requests that no upstream server answered.",
            )?,
            startup_duration,
            scrape_failures,
            dns_upstream_duration,
            registry,
        })
    }

    pub(crate) fn scrape_failed(&self, whose: Scraped) {
        let whose = match whose {
            Scraped::Envoy => "envoy",
            Scraped::Application => "application",
            Scraped::Agent => "agent",
        };
        self.scrape_failures.with_label_values(&[whose]).inc();
    }

    pub(crate) fn istiod_ended(&self, how: Ended) {
        self.istiod_terminations.with_label_values(&[how.label()]).inc();
    }

    pub(crate) fn envoy_ended(&self, how: Ended) {
        self.envoy_terminations.with_label_values(&[how.label()]).inc();
    }

    pub(crate) fn snapshot_confirmed(&self, at: i64) {
        self.snapshot_confirmed.store(at, Ordering::Relaxed);
    }

    /// In Prometheus' text format.
    pub(crate) fn write(&self, out: &mut Vec<u8>) -> Result<()> {
        let now = unix_seconds();
        match self.snapshot_confirmed.load(Ordering::Relaxed) {
            0 => self.snapshot_age.set(0),
            confirmed => self.snapshot_age.set(now.saturating_sub(confirmed)),
        }
        self.identity.at(now);
        TextEncoder::new().encode(&self.registry.gather(), out)?;
        process::write(PREFIX, out);
        Ok(())
    }
}
