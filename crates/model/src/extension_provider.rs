use std::collections::BTreeMap;

use pilot_base::{Host, Name};

use crate::{Json, Span};

/// Something outside the mesh that policies and telemetry can refer to by name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExtensionProvider {
    pub name: Name,
    pub kind: ProviderKind,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ProviderKind {
    ExtAuthzHttp(Box<ExtAuthzHttp>),
    ExtAuthzGrpc(Box<ExtAuthzGrpc>),
    Zipkin(ZipkinProvider),
    Datadog {
        service: ProviderService,
        max_tag_length: u32,
    },
    SkyWalking {
        service: ProviderService,
    },
    OpenTelemetry(Box<OpenTelemetryProvider>),
    Prometheus,
    FileLog(FileLogProvider),
    HttpLogService(HttpLogProvider),
    TcpLogService(TcpLogProvider),
    OpenTelemetryLog(OtelLogProvider),
    Sds {
        name: Name,
        service: ProviderService,
    },
    /// Envoy has none of them any more, so that they can be named but do nothing.
    Lightstep,
    OpenCensus,
    Stackdriver,
}

/// A service that a provider is reached at: a host, in a namespace if it is ambiguous.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProviderService {
    pub namespace: Option<Name>,
    pub host: Host,
    pub port: u16,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExtAuthzHttp {
    pub service: ProviderService,
    pub path_prefix: Name,
    pub fail_open: bool,
    /// An HTTP status that Envoy knows.
    pub status_on_error: Option<u32>,
    pub timeout: Option<Span>,
    /// The older name of `include_request_headers_in_check`, which counts where that one is silent.
    pub include_headers_in_check: Vec<Name>,
    pub include_request_headers_in_check: Vec<Name>,
    pub include_additional_headers_in_check: BTreeMap<Name, Name>,
    pub include_request_body_in_check: Option<ExtAuthzBody>,
    pub headers_to_upstream_on_allow: Vec<Name>,
    pub headers_to_downstream_on_deny: Vec<Name>,
    pub headers_to_downstream_on_allow: Vec<Name>,
    pub clear_route_cache: bool,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExtAuthzGrpc {
    pub service: ProviderService,
    pub fail_open: bool,
    /// An HTTP status that Envoy knows.
    pub status_on_error: Option<u32>,
    pub timeout: Option<Span>,
    pub include_request_body_in_check: Option<ExtAuthzBody>,
    pub clear_route_cache: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExtAuthzBody {
    pub max_request_bytes: u32,
    pub allow_partial_message: bool,
    pub pack_as_bytes: bool,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ZipkinProvider {
    pub service: ProviderService,
    pub max_tag_length: u32,
    pub short_trace_id: bool,
    pub path: Name,
    /// Also in the headers of the World Wide Web Consortium.
    pub w3c: bool,
    pub timeout: Option<Span>,
    pub headers: Vec<(Name, Name)>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpenTelemetryProvider {
    pub service: ProviderService,
    pub max_tag_length: u32,
    pub export: OtelExport,
    pub environment_detector: bool,
    pub dynatrace_detector: bool,
    pub dynatrace_sampler: Option<DynatraceSampler>,
    /// Services are named as OpenTelemetry's conventions say, instead of Istio's.
    pub otel_service_names: bool,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum OtelExport {
    Grpc { timeout: Option<Span>, initial_metadata: Vec<(Name, Name)> },
    Http(ProviderHttp),
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProviderHttp {
    pub path: Name,
    pub timeout: Option<Span>,
    pub headers: Vec<(Name, Name)>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DynatraceSampler {
    pub tenant: Name,
    pub cluster_id: i32,
    pub root_spans_per_minute: u32,
    /// Where its settings come from, if not from where spans go.
    pub api: Option<(ProviderService, ProviderHttp)>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileLogProvider {
    pub path: Name,
    pub format: Option<LogFormat>,
    pub omit_empty_values: bool,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LogFormat {
    /// Empty for Istio's own.
    Text(Name),
    /// Empty for Istio's own.
    Labels(BTreeMap<Name, Json>),
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HttpLogProvider {
    pub service: ProviderService,
    pub log_name: Name,
    pub filter_state: Vec<Name>,
    pub request_headers: Vec<Name>,
    pub response_headers: Vec<Name>,
    pub response_trailers: Vec<Name>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TcpLogProvider {
    pub service: ProviderService,
    pub log_name: Name,
    pub filter_state: Vec<Name>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OtelLogProvider {
    pub service: ProviderService,
    pub log_name: Name,
    pub text: Name,
    pub labels: BTreeMap<Name, Json>,
}

impl ExtensionProvider {
    /// The providers that every mesh has.
    /// The services that a proxy calls for it.
    pub fn services(&self) -> impl Iterator<Item = &ProviderService> {
        let (service, more) = match &self.kind {
            ProviderKind::ExtAuthzHttp(provider) => (Some(&provider.service), None),
            ProviderKind::ExtAuthzGrpc(provider) => (Some(&provider.service), None),
            ProviderKind::Zipkin(provider) => (Some(&provider.service), None),
            ProviderKind::Datadog { service, .. }
            | ProviderKind::SkyWalking { service }
            | ProviderKind::Sds { service, .. } => (Some(service), None),
            ProviderKind::OpenTelemetry(provider) => {
                let sampler = provider.dynatrace_sampler.as_ref();
                (Some(&provider.service), sampler.and_then(|sampler| sampler.api.as_ref()))
            }
            ProviderKind::HttpLogService(provider) => (Some(&provider.service), None),
            ProviderKind::TcpLogService(provider) => (Some(&provider.service), None),
            ProviderKind::OpenTelemetryLog(provider) => (Some(&provider.service), None),
            ProviderKind::Prometheus
            | ProviderKind::FileLog(_)
            | ProviderKind::Lightstep
            | ProviderKind::OpenCensus
            | ProviderKind::Stackdriver => (None, None),
        };
        service.into_iter().chain(more.map(|(service, _)| service))
    }

    pub fn built_in() -> Vec<Self> {
        let file = FileLogProvider { path: Name::new("/dev/stdout"), format: None, omit_empty_values: false };
        let one = |name: &str, kind| Self { name: Name::new(name), kind };
        vec![
            one("prometheus", ProviderKind::Prometheus),
            one("stackdriver", ProviderKind::Stackdriver),
            one("envoy", ProviderKind::FileLog(file)),
        ]
    }
}
