//! Who is told about traces, in Envoy's words.

use pilot_base::Name;
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::config::trace::v3 as api;
use pilot_envoy_api::envoy::extensions::tracers::opentelemetry::resource_detectors::v3::{
    DynatraceResourceDetectorConfig, EnvironmentResourceDetectorConfig,
};
use pilot_envoy_api::envoy::extensions::tracers::opentelemetry::samplers::v3::DynatraceSamplerConfig;
use pilot_envoy_api::to_any;
use pilot_model::{
    DynatraceSampler, ExtensionProvider, OpenTelemetryProvider, OtelExport, ProviderKind, ProviderService,
    ProxyType, Span, Version, ZipkinProvider,
};
use prost_types::Any;

use crate::convert::duration;
use crate::provider::{cluster_of, grpc_service, header_value, http_service};
use crate::settings::TracingTraits;

/// A tracer, and what it asks of the rest of the configuration.
pub(super) struct Target {
    pub(super) provider: api::tracing::Http,
    pub(super) max_tag_length: u32,
    /// Every request is a span of its own to the one who called, as well as to the one who is called.
    pub(super) spawns_span: bool,
    /// It decides by itself what is traced.
    pub(super) samples: bool,
}

/// Only providers that trace are asked for; of others nothing would come.
pub(super) fn target(provider: &ExtensionProvider, traits: &TracingTraits) -> Target {
    let (name, config, max_tag_length) = match &provider.kind {
        ProviderKind::Zipkin(zipkin) => {
            ("envoy.tracers.zipkin", self::zipkin(zipkin, traits.version), zipkin.max_tag_length)
        }
        ProviderKind::Datadog { service, max_tag_length } => {
            let config = api::DatadogConfig {
                collector_cluster: cluster_of(service).to_string(),
                service_name: traits.service_cluster.to_string(),
                collector_hostname: service.host.to_string(),
                ..api::DatadogConfig::default()
            };
            ("envoy.tracers.datadog", to_any(&config), *max_tag_length)
        }
        ProviderKind::SkyWalking { service } => {
            let config = api::SkyWalkingConfig {
                grpc_service: Some(grpc_service(service)),
                ..api::SkyWalkingConfig::default()
            };
            ("envoy.tracers.skywalking", to_any(&config), 0)
        }
        ProviderKind::OpenTelemetry(otel) => {
            ("envoy.tracers.opentelemetry", open_telemetry(otel, traits), otel.max_tag_length)
        }
        _ => ("", Any::default(), 0),
    };
    let samples = matches!(&provider.kind, ProviderKind::OpenTelemetry(o) if o.dynatrace_sampler.is_some());
    let skywalking = matches!(provider.kind, ProviderKind::SkyWalking { .. });
    Target {
        provider: api::tracing::Http {
            name: name.to_owned(),
            config_type: Some(api::tracing::http::ConfigType::TypedConfig(config)),
        },
        max_tag_length,
        spawns_span: traits.kind == ProxyType::Router || skywalking,
        samples,
    }
}

fn zipkin(zipkin: &ZipkinProvider, version: Version) -> Any {
    use api::zipkin_config::{CollectorEndpointVersion, TraceContextOption};
    let path = if zipkin.path.is_empty() { "/api/v2/spans" } else { zipkin.path.as_str() };
    let host = &zipkin.service.host;
    let mut config = api::ZipkinConfig {
        collector_endpoint_version: CollectorEndpointVersion::HttpJson as i32,
        trace_id_128bit: !zipkin.short_trace_id,
        shared_span_context: Some(false),
        ..api::ZipkinConfig::default()
    };
    if version >= (Version { major: 1, minor: 29, patch: 0 }) {
        // Without a limit Envoy would refuse it.
        let timeout = zipkin.timeout.unwrap_or(Span::from_secs(5));
        let uri = format!("http://{host}{path}");
        config.collector_service = Some(http_service(uri, &zipkin.service, Some(timeout), &zipkin.headers));
    } else {
        config.collector_cluster = cluster_of(&zipkin.service).to_string();
        path.clone_into(&mut config.collector_endpoint);
        config.collector_hostname = host.to_string();
    }
    if zipkin.w3c && version >= (Version { major: 1, minor: 28, patch: 0 }) {
        config.trace_context_option = TraceContextOption::UseB3WithW3cPropagation as i32;
    }
    to_any(&config)
}

fn open_telemetry(otel: &OpenTelemetryProvider, traits: &TracingTraits) -> Any {
    let name = if otel.otel_service_names { &traits.otel_service } else { &traits.service_cluster };
    let mut config =
        api::OpenTelemetryConfig { service_name: name.to_string(), ..api::OpenTelemetryConfig::default() };
    match &otel.export {
        OtelExport::Http(http) => {
            let uri = joined(&otel.service, &http.path);
            config.http_service = Some(http_service(uri, &otel.service, http.timeout, &http.headers));
        }
        OtelExport::Grpc { timeout, initial_metadata } => {
            config.grpc_service = Some(core::GrpcService {
                timeout: timeout.map(duration),
                initial_metadata: initial_metadata.iter().map(header_value).collect(),
                ..grpc_service(&otel.service)
            });
        }
    }
    let extension = |name: &str, config: Any| core::TypedExtensionConfig {
        name: name.to_owned(),
        typed_config: Some(config),
    };
    let environment = || {
        let name = "envoy.tracers.opentelemetry.resource_detectors.environment";
        extension(name, to_any(&EnvironmentResourceDetectorConfig {}))
    };
    let dynatrace = || {
        let name = "envoy.tracers.opentelemetry.resource_detectors.dynatrace";
        extension(name, to_any(&DynatraceResourceDetectorConfig {}))
    };
    config.resource_detectors.extend(otel.environment_detector.then(environment));
    config.resource_detectors.extend(otel.dynatrace_detector.then(dynatrace));
    // The conventions let the proxy's environment say more about the service.
    let more = otel.otel_service_names && !otel.environment_detector;
    config.resource_detectors.extend(more.then(environment));
    config.sampler = otel.dynatrace_sampler.as_ref().map(|sampler| {
        extension("envoy.tracers.opentelemetry.samplers.dynatrace", self::sampler(sampler, otel))
    });
    to_any(&config)
}

fn sampler(sampler: &DynatraceSampler, otel: &OpenTelemetryProvider) -> Any {
    let service = match (&sampler.api, &otel.export) {
        (Some((service, http)), _) => {
            Some(http_service(joined(service, &http.path), service, http.timeout, &http.headers))
        }
        (None, OtelExport::Http(http)) => {
            let uri = joined(&otel.service, &Name::new("api/v2/samplingConfiguration"));
            Some(http_service(uri, &otel.service, http.timeout, &http.headers))
        }
        (None, OtelExport::Grpc { .. }) => None,
    };
    to_any(&DynatraceSamplerConfig {
        tenant: sampler.tenant.to_string(),
        cluster_id: sampler.cluster_id,
        root_spans_per_minute: sampler.root_spans_per_minute,
        http_service: service,
    })
}

/// A path on a host, with exactly one slash between them.
fn joined(service: &ProviderService, path: &Name) -> String {
    match path.trim_start_matches('/') {
        "" if path.is_empty() => service.host.to_string(),
        path => format!("{}/{path}", service.host),
    }
}
