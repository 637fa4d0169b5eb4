//! What is sent to proxies, and how long it takes them to have it.

use pilot_base::Micros;
use pilot_xds::TypeUrl;
use prometheus::{Histogram, IntCounter, Result};

use super::register::{PerType, Register};
use super::seconds;

/// Istio's steps, and finer ones below.
const PUSH: [f64; 10] = [0.0001, 0.001, 0.01, 0.1, 1.0, 3.0, 5.0, 10.0, 20.0, 30.0];
const CONVERGENCE: [f64; 10] = [0.001, 0.01, 0.1, 0.5, 1.0, 3.0, 5.0, 10.0, 20.0, 30.0];
const SIZES: [f64; 6] = [1.0, 10_000.0, 1_000_000.0, 4_000_000.0, 10_000_000.0, 40_000_000.0];

pub(crate) struct Pushes {
    pushes: PerType<IntCounter>,
    sizes: PerType<Histogram>,
    push_time: PerType<Histogram>,
    send_time: Histogram,
    queue_time: Histogram,
    convergence: Histogram,
    acceptance: Histogram,
}

impl Pushes {
    pub(super) fn new(register: &Register<'_>) -> Result<Self> {
        let times = |name, help| register.histogram_per_type((name, help), &PUSH, TypeUrl::short);
        Ok(Self {
            pushes: register.counter_per_type("pilot_xds_pushes", "Responses sent to proxies.")?,
            sizes: register.histogram_per_type(
                ("pilot_xds_config_size_bytes", "Size of the responses sent to proxies."),
                &SIZES,
                TypeUrl::as_str,
            )?,
            push_time: times("pilot_xds_push_time", "Seconds to work out a response and put it together.")?,
            send_time: register.histogram(
                "pilot_xds_send_time",
                "Seconds until the connection took what was put together.",
                &PUSH,
            )?,
            queue_time: register.histogram(
                "pilot_proxy_queue_time",
                "Seconds between a commit and the moment a stream attends to it.",
                &CONVERGENCE,
            )?,
            convergence: register.histogram(
                "pilot_proxy_convergence_time",
                "Seconds between the arrival of a change and the moment a proxy was sent all of it.",
                &CONVERGENCE,
            )?,
            acceptance: register.histogram(
                "pilot_proxy_acceptance_time",
                "Seconds between the arrival of a change and the moment a proxy had accepted or refused all of it.",
                &CONVERGENCE,
            )?,
        })
    }

    pub(crate) fn pushed(&self, type_url: TypeUrl, bytes: usize, took: Micros) {
        let at = type_url.index();
        self.pushes[at].inc();
        #[allow(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
        self.sizes[at].observe(bytes as f64);
        self.push_time[at].observe(seconds(took));
    }

    pub(crate) fn sent(&self, took: Micros) {
        self.send_time.observe(seconds(took));
    }

    pub(crate) fn queued(&self, took: Micros) {
        self.queue_time.observe(seconds(took));
    }

    pub(crate) fn accepted(&self, took: Micros) {
        self.acceptance.observe(seconds(took));
    }

    pub(crate) fn converged(&self, took: Micros) {
        self.convergence.observe(seconds(took));
    }
}
