use std::collections::BTreeMap;

use pilot_base::Name;

use crate::{Number, PolicyTarget, Span, TraceTag};

/// What is measured, logged and traced.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Telemetry {
    pub target: PolicyTarget,
    pub tracing: Vec<Tracing>,
    pub metrics: Vec<Metrics>,
    pub access_logging: Vec<AccessLogging>,
}

/// On which side of a call something is wanted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum WorkloadMode {
    #[default]
    ClientAndServer,
    Client,
    Server,
}

impl WorkloadMode {
    /// Is the side, which is one of the two, meant?
    pub fn covers(self, side: Self) -> bool {
        self == Self::ClientAndServer || self == side
    }

    /// The sides that are meant.
    pub fn sides(self) -> &'static [Self] {
        match self {
            Self::ClientAndServer => &[Self::Client, Self::Server],
            Self::Client => &[Self::Client],
            Self::Server => &[Self::Server],
        }
    }
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Tracing {
    pub mode: WorkloadMode,
    /// By name. Only the first one counts.
    pub providers: Vec<Name>,
    /// In percent.
    pub sampling: Option<Number>,
    pub disable_span_reporting: Option<bool>,
    pub custom_tags: BTreeMap<Name, TraceTag>,
    pub use_request_id: Option<bool>,
    pub istio_tags: Option<bool>,
    pub disable_context_propagation: Option<bool>,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Metrics {
    pub providers: Vec<Name>,
    pub overrides: Vec<MetricsOverride>,
    pub reporting_interval: Option<Span>,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct MetricsOverride {
    pub metric: MetricMatch,
    pub mode: WorkloadMode,
    pub disabled: Option<bool>,
    /// `None` takes a tag away.
    pub tags: BTreeMap<Name, Option<Name>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum MetricMatch {
    #[default]
    All,
    Istio(IstioMetric),
    Custom(Name),
}

/// Istio's own metrics.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum IstioMetric {
    RequestCount,
    RequestDuration,
    RequestSize,
    ResponseSize,
    TcpOpenedConnections,
    TcpClosedConnections,
    TcpSentBytes,
    TcpReceivedBytes,
    GrpcRequestMessages,
    GrpcResponseMessages,
}

impl IstioMetric {
    pub const ALL: [Self; 10] = [
        Self::RequestCount,
        Self::RequestDuration,
        Self::RequestSize,
        Self::ResponseSize,
        Self::TcpOpenedConnections,
        Self::TcpClosedConnections,
        Self::TcpSentBytes,
        Self::TcpReceivedBytes,
        Self::GrpcRequestMessages,
        Self::GrpcResponseMessages,
    ];

    /// As it is written in a Telemetry.
    pub fn name(self) -> &'static str {
        match self {
            Self::RequestCount => "REQUEST_COUNT",
            Self::RequestDuration => "REQUEST_DURATION",
            Self::RequestSize => "REQUEST_SIZE",
            Self::ResponseSize => "RESPONSE_SIZE",
            Self::TcpOpenedConnections => "TCP_OPENED_CONNECTIONS",
            Self::TcpClosedConnections => "TCP_CLOSED_CONNECTIONS",
            Self::TcpSentBytes => "TCP_SENT_BYTES",
            Self::TcpReceivedBytes => "TCP_RECEIVED_BYTES",
            Self::GrpcRequestMessages => "GRPC_REQUEST_MESSAGES",
            Self::GrpcResponseMessages => "GRPC_RESPONSE_MESSAGES",
        }
    }

    /// As it is called where metrics are read.
    pub fn prometheus_name(self) -> &'static str {
        match self {
            Self::RequestCount => "requests_total",
            Self::RequestDuration => "request_duration_milliseconds",
            Self::RequestSize => "request_bytes",
            Self::ResponseSize => "response_bytes",
            Self::TcpOpenedConnections => "tcp_connections_opened_total",
            Self::TcpClosedConnections => "tcp_connections_closed_total",
            Self::TcpSentBytes => "tcp_sent_bytes_total",
            Self::TcpReceivedBytes => "tcp_received_bytes_total",
            Self::GrpcRequestMessages => "request_messages_total",
            Self::GrpcResponseMessages => "response_messages_total",
        }
    }
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct AccessLogging {
    pub mode: WorkloadMode,
    pub providers: Vec<Name>,
    pub disabled: bool,
    /// An expression in CEL: only what it is true for is logged.
    pub filter: Option<Name>,
}
