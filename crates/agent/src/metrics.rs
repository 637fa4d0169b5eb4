//! What the agent counts about itself, under Istio's names. Others of its services add theirs to the registry.

use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry, Result, TextEncoder,
};

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
        Ok(Self {
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

    /// In Prometheus' text format.
    pub(crate) fn write(&self, out: &mut Vec<u8>) -> Result<()> {
        TextEncoder::new().encode(&self.registry.gather(), out)?;
        process::write(PREFIX, out);
        Ok(())
    }
}
