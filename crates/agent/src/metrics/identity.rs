//! What the agent counts about certificates.

use std::sync::atomic::{AtomicI64, Ordering};

use prometheus::{GaugeVec, IntCounter, IntCounterVec, Opts, Registry, Result, core::GenericCounterVec};

type FloatCounterVec = GenericCounterVec<prometheus::core::AtomicF64>;

const REQUEST: [&str; 1] = ["request_type"];
const CSR: [&str; 1] = ["csr"];
/// Of the workload's own certificate.
const RESOURCE: [&str; 1] = ["default"];

pub(crate) struct IdentityMetrics {
    requests: IntCounterVec,
    failures: IntCounterVec,
    retries: IntCounterVec,
    latency: FloatCounterVec,
    pub(crate) file_failures: IntCounter,
    expiry_seconds: GaugeVec,
    /// In seconds since 1970; 0 if there is no certificate.
    expiry: AtomicI64,
}

impl IdentityMetrics {
    pub(super) fn new(registry: &Registry) -> Result<Self> {
        let vector = |name: &str, help: &str| -> Result<IntCounterVec> {
            let vector = IntCounterVec::new(Opts::new(name, help), &REQUEST)?;
            registry.register(Box::new(vector.clone()))?;
            Ok(vector)
        };
        let latency = FloatCounterVec::new(
            Opts::new("outgoing_latency", "Milliseconds that requests took."),
            &REQUEST,
        )?;
        registry.register(Box::new(latency.clone()))?;
        let expiry_seconds = GaugeVec::new(
            Opts::new("cert_expiry_seconds", "Time until the certificate ends; negative if it has."),
            &["resource_name"],
        )?;
        registry.register(Box::new(expiry_seconds.clone()))?;
        let file_failures =
            IntCounter::new("num_file_secret_failures_total", "Secrets in files that could not be used.")?;
        registry.register(Box::new(file_failures.clone()))?;
        Ok(Self {
            requests: vector("num_outgoing_requests", "Requests for certificates.")?,
            failures: vector("num_failed_outgoing_requests", "Requests for certificates that failed.")?,
            retries: vector("num_outgoing_retries", "Requests for certificates that were made again.")?,
            latency,
            file_failures,
            expiry_seconds,
            expiry: AtomicI64::new(0),
        })
    }

    pub(crate) fn requested(&self) {
        self.requests.with_label_values(&CSR).inc();
    }

    pub(crate) fn failed(&self) {
        self.failures.with_label_values(&CSR).inc();
    }

    pub(crate) fn retried(&self) {
        self.retries.with_label_values(&CSR).inc();
    }

    pub(crate) fn took(&self, span: std::time::Duration) {
        self.latency.with_label_values(&CSR).inc_by(span.as_secs_f64() * 1_000.0);
    }

    pub(crate) fn expires(&self, at: i64) {
        self.expiry.store(at, Ordering::Relaxed);
    }

    #[allow(clippy::cast_precision_loss, reason = "seconds until a certificate ends are few")]
    pub(super) fn at(&self, now: i64) {
        match self.expiry.load(Ordering::Relaxed) {
            0 => (),
            expiry => self.expiry_seconds.with_label_values(&RESOURCE).set((expiry - now) as f64),
        }
    }
}
