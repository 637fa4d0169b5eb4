//! Calls of gRPC, under the names that every Go server has for them.

use std::sync::Arc;

use pilot_base::{Clock, Micros};
use pilot_ca::messages;
use pilot_xds::Protocol;
use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Result};
use tonic::Code;
use tonic::server::NamedService as _;

use super::register::Register;
use super::{Metrics, seconds};
use crate::ads::Ads;

/// The steps that clients of Prometheus have by themselves.
const TOOK: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const LABELS: [&str; 3] = ["grpc_method", "grpc_service", "grpc_type"];

/// What can be called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Method {
    StreamAggregatedResources,
    DeltaAggregatedResources,
    CreateCertificate,
}

pub(crate) struct Rpc {
    methods: [Counts; Method::ALL.len()],
    handled: IntCounterVec,
}

struct Counts {
    started: IntCounter,
    received: IntCounter,
    sent: IntCounter,
    took: Histogram,
}

/// A call that goes on. One that is dropped before it has ended was given up by its caller.
pub(crate) struct Call {
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    method: Method,
    began: Micros,
    code: Code,
}

impl Method {
    const ALL: [Self; 3] =
        [Self::StreamAggregatedResources, Self::DeltaAggregatedResources, Self::CreateCertificate];

    pub(crate) fn of(protocol: Protocol) -> Self {
        match protocol {
            Protocol::StateOfTheWorld => Self::StreamAggregatedResources,
            Protocol::Delta => Self::DeltaAggregatedResources,
        }
    }

    fn labels(self) -> [&'static str; LABELS.len()] {
        match self {
            Self::StreamAggregatedResources => ["StreamAggregatedResources", Ads::NAME, "bidi_stream"],
            Self::DeltaAggregatedResources => ["DeltaAggregatedResources", Ads::NAME, "bidi_stream"],
            Self::CreateCertificate => ["CreateCertificate", messages::SERVICE, "unary"],
        }
    }
}

impl Rpc {
    pub(super) fn new(register: &Register<'_>) -> Result<Self> {
        let counters = |name: &str, help: &str| register.counters_by_all(name, help, &LABELS);
        let started = counters("grpc_server_started_total", "Calls that began.")?;
        let received = counters("grpc_server_msg_received_total", "Messages that callers said.")?;
        let sent = counters("grpc_server_msg_sent_total", "Messages that callers were sent.")?;
        let options =
            HistogramOpts::new("grpc_server_handling_seconds", "Seconds from begin to end of a call.");
        let took = register.keep(HistogramVec::new(options.buckets(TOOK.to_vec()), &LABELS)?)?;
        let [method, service, kind] = LABELS;
        let labels = ["grpc_code", method, service, kind];
        let handled = register.counters_by_all("grpc_server_handled_total", "Calls that ended.", &labels)?;
        let methods = Method::ALL.map(|method| {
            let labels = method.labels();
            Counts {
                started: started.with_label_values(&labels),
                received: received.with_label_values(&labels),
                sent: sent.with_label_values(&labels),
                took: took.with_label_values(&labels),
            }
        });
        Ok(Self { methods, handled })
    }

    pub(crate) fn received(&self, method: Method) {
        self.methods[method as usize].received.inc();
    }

    pub(crate) fn sent(&self, method: Method) {
        self.methods[method as usize].sent.inc();
    }
}

impl Call {
    pub(crate) fn begin(metrics: &Arc<Metrics>, clock: &Arc<dyn Clock>, method: Method) -> Self {
        metrics.rpc.methods[method as usize].started.inc();
        let (metrics, clock) = (Arc::clone(metrics), Arc::clone(clock));
        Self { began: clock.micros(), metrics, clock, method, code: Code::Cancelled }
    }

    pub(crate) fn ended(mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let rpc = &self.metrics.rpc;
        let took = self.clock.micros().saturating_sub(self.began);
        rpc.methods[self.method as usize].took.observe(seconds(took));
        let [method, service, kind] = self.method.labels();
        rpc.handled.with_label_values(&[in_go(self.code), method, service, kind]).inc();
    }
}

/// How Go writes a code.
fn in_go(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pilot_base::Clock;
    use pilot_xds::Protocol;
    use tonic::Code;

    use super::{Call, Method};
    use crate::{Metrics, SystemClock};

    #[test]
    fn calls_are_counted_as_by_servers_in_go() {
        let metrics = Arc::new(Metrics::new("1").unwrap());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let delta = Method::of(Protocol::Delta);
        Call::begin(&metrics, &clock, delta).ended(Code::Unavailable);
        drop(Call::begin(&metrics, &clock, delta));
        let _goes_on = Call::begin(&metrics, &clock, delta);
        metrics.rpc.sent(delta);
        let text = String::from_utf8(metrics.text(7)).unwrap();
        let labels = "grpc_method=\"DeltaAggregatedResources\",\
            grpc_service=\"envoy.service.discovery.v3.AggregatedDiscoveryService\",grpc_type=\"bidi_stream\"";
        for line in [
            format!("grpc_server_started_total{{{labels}}} 3"),
            format!("grpc_server_msg_sent_total{{{labels}}} 1"),
            format!("grpc_server_msg_received_total{{{labels}}} 0"),
            format!("grpc_server_handled_total{{grpc_code=\"Unavailable\",{labels}}} 1"),
            format!("grpc_server_handled_total{{grpc_code=\"Canceled\",{labels}}} 1"),
            format!("grpc_server_handling_seconds_count{{{labels}}} 2"),
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line} in {text}");
        }
    }
}
