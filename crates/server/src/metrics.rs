//! What the server counts, under the names that Istio's dashboards and alerts know. One file for each family.

mod ca;
mod clients;
mod commits;
mod process;
mod pushes;
mod register;
mod registrations;
mod rpc;
mod sources;
mod validation;
mod webhooks;

use pilot_base::Micros;
use prometheus::{Encoder as _, IntCounter, IntGauge, Registry, TextEncoder};

pub(crate) use ca::Ca;
pub(crate) use clients::Clients;
pub(crate) use commits::{Commits, Times};
pub use process::Heap;
pub(crate) use process::Usage;
pub(crate) use pushes::Pushes;
use register::Register;
pub use registrations::Registrations;
pub(crate) use rpc::{Call, Method, Rpc};
pub(crate) use sources::SourceGauges;
pub(crate) use validation::Validation;
pub use webhooks::Webhooks;

pub struct Metrics {
    registry: Registry,
    /// Asks the allocator, if it can be asked.
    heap: Option<fn() -> Option<Heap>>,
    pub(crate) ca: Ca,
    pub(crate) pushes: Pushes,
    pub(crate) clients: Clients,
    pub(crate) commits: Commits,
    pub(crate) validation: Validation,
    pub(crate) sources: SourceGauges,
    pub(crate) registrations: Registrations,
    pub(crate) rpc: Rpc,
    webhooks: Webhooks,
    /// Others who count, in the exposition format.
    others: Vec<Box<dyn Fn() -> String + Send + Sync>>,
    key_fetches: IntCounter,
    failed_key_fetches: IntCounter,
    uptime: IntGauge,
}

impl Metrics {
    /// Fails only if two metrics have the same name.
    pub fn new(version: &str) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let register = Register(&registry);
        let info = register.gauges("pilot_info", "The version that runs.", &["version"])?;
        info.with_label_values(&[version]).set(1);
        let build =
            register.gauges("istio_build", "The component and version that runs.", &["component", "tag"])?;
        build.with_label_values(&["pilot", version]).set(1);
        Ok(Self {
            ca: Ca::new(&register)?,
            pushes: Pushes::new(&register)?,
            clients: Clients::new(&register)?,
            commits: Commits::new(&register)?,
            validation: Validation::new(&register)?,
            sources: SourceGauges::new(&register)?,
            registrations: Registrations::new(&register)?,
            rpc: Rpc::new(&register)?,
            webhooks: Webhooks::new(&register)?,
            others: Vec::new(),
            key_fetches: register.counter(
                "pilot_jwks_resolver_network_fetch_success_total",
                "Key sets of token issuers that came.",
            )?,
            failed_key_fetches: register.counter(
                "pilot_jwks_resolver_network_fetch_fail_total",
                "Key sets of token issuers that did not come.",
            )?,
            uptime: register.gauge("istiod_uptime_seconds", "Seconds since the server started.")?,
            registry,
            heap: None,
        })
    }

    /// With what the allocator says of itself.
    #[must_use]
    pub fn with_heap(self, usage: fn() -> Option<Heap>) -> Self {
        Self { heap: Some(usage), ..self }
    }

    /// With what somebody else counts, in the exposition format.
    #[must_use]
    pub fn with(mut self, text: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.others.push(Box::new(text));
        self
    }

    pub fn webhooks(&self) -> &Webhooks {
        &self.webhooks
    }

    pub fn registrations(&self) -> &Registrations {
        &self.registrations
    }

    pub(crate) fn note_key_fetch<T, E>(&self, answer: &Result<T, E>) {
        let counter = if answer.is_ok() { &self.key_fetches } else { &self.failed_key_fetches };
        counter.inc();
    }

    /// The exposition format of Prometheus.
    pub(crate) fn text(&self, uptime_seconds: u64) -> Vec<u8> {
        self.uptime.set(i64::try_from(uptime_seconds).unwrap_or(i64::MAX));
        self.clients.refresh();
        self.ca.refresh();
        self.sources.refresh();
        let heap = self.heap.and_then(|usage| usage()).map(Heap::text).unwrap_or_default();
        let others: String = self.others.iter().map(|text| text()).collect();
        let mut out = (process::text() + &heap + &others).into_bytes();
        // Writing to memory does not fail.
        let _written = TextEncoder::new().encode(&self.registry.gather(), &mut out);
        out
    }
}

#[allow(clippy::cast_precision_loss, reason = "spans of time are far below 2^52 microseconds")]
fn seconds(span: Micros) -> f64 {
    span as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use pilot_base::Name;
    use pilot_model::{Proxy, ProxyType};
    use pilot_xds::TypeUrl;

    use super::Metrics;

    fn text(metrics: &Metrics) -> String {
        String::from_utf8(metrics.text(7)).unwrap()
    }

    #[test]
    fn metrics_have_istios_names() {
        let metrics = Metrics::new("1.2.3").unwrap();
        metrics.pushes.pushed(TypeUrl::Route, 20_000, 1500);
        metrics.pushes.converged(250_000);
        metrics.clients.received(300);
        metrics.clients.received(200);
        let text = text(&metrics);
        for line in [
            "pilot_xds_pushes{type=\"rds\"} 1",
            "pilot_xds_push_time_sum{type=\"rds\"} 0.0015",
            "pilot_xds_config_size_bytes_count{type=\"type.googleapis.com/envoy.config.route.v3.RouteConfiguration\"} 1",
            "pilot_proxy_convergence_time_bucket{le=\"0.5\"} 1",
            "pilot_proxy_convergence_time_bucket{le=\"0.1\"} 0",
            "pilot_xds_recv_max 300",
            "pilot_push_triggers{type=\"endpoint\"} 0",
            "pilot_services 0",
            "pilot_info{version=\"1.2.3\"} 1",
            "istiod_uptime_seconds 7",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line} in {text}");
        }
    }

    #[test]
    fn refusals_are_told_by_proxy_and_forgotten_with_it() {
        let metrics = Metrics::new("1").unwrap();
        let proxy = Proxy::new(ProxyType::Sidecar, "picky.shop", "shop", vec![[10, 0, 0, 1].into()]);
        metrics.clients.connected(proxy.version);
        for _ in 0..2 {
            metrics.clients.refused(TypeUrl::Listener, &proxy.name, tonic::Code::Internal);
        }
        metrics.clients.refused(TypeUrl::NameTable, &Name::new("other.shop"), tonic::Code::Internal);
        let told = text(&metrics);
        assert!(told.contains("pilot_xds_lds_reject{err=\"Internal\",node=\"picky.shop\"} 2\n"), "{told}");
        assert!(told.contains("pilot_total_xds_rejects{type=\"lds\"} 2\n"), "{told}");
        assert!(told.contains("pilot_total_xds_rejects{type=\"nds\"} 1\n"), "{told}");
        metrics.clients.disconnected(&proxy);
        let told = text(&metrics);
        assert!(!told.contains("picky.shop"), "{told}");
        assert!(told.contains("pilot_total_xds_rejects{type=\"lds\"} 2\n"), "totals stay");
    }
}
