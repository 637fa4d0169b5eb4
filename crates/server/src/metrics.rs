mod process;

use std::collections::BTreeMap;

use parking_lot::Mutex;
use pilot_model::Version;
use pilot_source::Event;
use pilot_xds::TypeUrl;
use prometheus::{
    Encoder as _, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

/// What the server counts, under the names that Istio's dashboards and alerts know.
pub struct Metrics {
    registry: Registry,
    clients: IntGaugeVec,
    /// Proxies by version.
    connected: Mutex<BTreeMap<Version, i64>>,
    pushes: IntCounterVec,
    sizes: HistogramVec,
    rejects: IntCounterVec,
    stale: IntCounterVec,
    inbound: IntCounterVec,
    key_fetches: IntCounter,
    failed_key_fetches: IntCounter,
    issues: IntGauge,
    uptime: IntGauge,
}

impl Metrics {
    /// Fails only if two metrics have the same name.
    pub fn new(version: &str) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str, label: &str| -> prometheus::Result<IntCounterVec> {
            let metric = IntCounterVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let plain_counter = |name: &str, help: &str| -> prometheus::Result<IntCounter> {
            let metric = IntCounter::new(name, help)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let gauge = |name: &str, help: &str| -> prometheus::Result<IntGauge> {
            let metric = IntGauge::new(name, help)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let gauges = |name: &str, help: &str, labels: &[&str]| -> prometheus::Result<IntGaugeVec> {
            let metric = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let sizes =
            HistogramOpts::new("pilot_xds_config_size_bytes", "Size of the responses sent to proxies.")
                .buckets(vec![1.0, 10_000.0, 1_000_000.0, 4_000_000.0, 10_000_000.0, 40_000_000.0]);
        let sizes = HistogramVec::new(sizes, &["type"])?;
        registry.register(Box::new(sizes.clone()))?;
        let info = gauges("pilot_info", "The version that runs.", &["version"])?;
        info.with_label_values(&[version]).set(1);
        let build = gauges("istio_build", "The component and version that runs.", &["component", "tag"])?;
        build.with_label_values(&["pilot", version]).set(1);
        Ok(Self {
            connected: Mutex::default(),
            clients: gauges("pilot_xds", "Proxies connected over xDS.", &["version"])?,
            pushes: counter("pilot_xds_pushes", "Responses sent to proxies.", "type")?,
            sizes,
            rejects: counter("pilot_total_xds_rejects", "Responses that proxies refused.", "type")?,
            stale: counter("pilot_xds_expired_nonce", "Requests that answered an old response.", "type")?,
            inbound: counter("pilot_inbound_updates", "Changes told by sources.", "type")?,
            key_fetches: plain_counter(
                "pilot_jwks_resolver_network_fetch_success_total",
                "Key sets of token issuers that came.",
            )?,
            failed_key_fetches: plain_counter(
                "pilot_jwks_resolver_network_fetch_fail_total",
                "Key sets of token issuers that did not come.",
            )?,
            issues: gauge("pilot_issues", "Things that are wrong with rules, files and proxies now.")?,
            uptime: gauge("istiod_uptime_seconds", "Seconds since the server started.")?,
            registry,
        })
    }

    pub(crate) fn connected(&self, version: Version) {
        let mut counts = self.connected.lock();
        let count = counts.entry(version).or_default();
        *count += 1;
        self.clients.with_label_values(&[label(version).as_str()]).set(*count);
    }

    /// A version that nobody has any more is not counted any more.
    pub(crate) fn disconnected(&self, version: Version) {
        let mut counts = self.connected.lock();
        let Some(count) = counts.get_mut(&version) else { return };
        *count -= 1;
        if *count > 0 {
            self.clients.with_label_values(&[label(version).as_str()]).set(*count);
            return;
        }
        counts.remove(&version);
        // It was counted, so it is there.
        let _there = self.clients.remove_label_values(&[label(version).as_str()]);
    }

    pub(crate) fn pushed(&self, type_url: TypeUrl, bytes: usize) {
        self.pushes.with_label_values(&[type_url.short()]).inc();
        #[allow(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
        self.sizes.with_label_values(&[type_url.as_str()]).observe(bytes as f64);
    }

    pub(crate) fn refused(&self, type_url: TypeUrl) {
        self.rejects.with_label_values(&[type_url.short()]).inc();
    }

    pub(crate) fn stale(&self, type_url: TypeUrl) {
        self.stale.with_label_values(&[type_url.short()]).inc();
    }

    pub(crate) fn note_key_fetch<T, E>(&self, answer: &Result<T, E>) {
        let counter = if answer.is_ok() { &self.key_fetches } else { &self.failed_key_fetches };
        counter.inc();
    }

    pub(crate) fn note_events(&self, events: &[Event]) {
        for event in events {
            let label = match event {
                Event::Init | Event::InitDone => continue,
                Event::Apply(object) | Event::InitApply(object) => update_type(object.key().0),
                Event::Delete((kind, _)) if *kind == pilot_model::Kind::Service => "svcdelete",
                Event::Delete((kind, _)) => update_type(*kind),
                Event::Mesh(_) | Event::Networks(_) => "config",
            };
            self.inbound.with_label_values(&[label]).inc();
        }
    }

    pub(crate) fn note_issues(&self, count: usize) {
        self.issues.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// The exposition format of Prometheus.
    pub(crate) fn text(&self, uptime_seconds: u64) -> Vec<u8> {
        self.uptime.set(i64::try_from(uptime_seconds).unwrap_or(i64::MAX));
        let mut out = process::text().into_bytes();
        // Writing to memory does not fail.
        let _written = TextEncoder::new().encode(&self.registry.gather(), &mut out);
        out
    }
}

/// Only what was understood of a version: what a proxy writes there may be anything.
fn label(version: Version) -> String {
    match version {
        Version::NEWEST => "unknown".to_owned(),
        Version { major, minor, patch: u32::MAX } => format!("{major}.{minor}"),
        Version { major, minor, patch } => format!("{major}.{minor}.{patch}"),
    }
}

/// Istio's words for what changed.
fn update_type(kind: pilot_model::Kind) -> &'static str {
    use pilot_model::Kind;
    match kind {
        Kind::Service => "svc",
        Kind::EndpointSlice | Kind::Endpoints | Kind::Pod | Kind::Node => "eds",
        Kind::VirtualService
        | Kind::DestinationRule
        | Kind::ServiceEntry
        | Kind::WorkloadEntry
        | Kind::Sidecar
        | Kind::Gateway
        | Kind::WorkloadGroup
        | Kind::EnvoyFilter
        | Kind::ProxyConfig
        | Kind::AuthorizationPolicy
        | Kind::PeerAuthentication
        | Kind::RequestAuthentication
        | Kind::Telemetry
        | Kind::WasmPlugin
        | Kind::TrafficExtension
        | Kind::Namespace => "config",
    }
}
