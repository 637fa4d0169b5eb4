//! Extension providers. One that is wrong is left out with an issue; the mesh is not worse off than without it.

use std::collections::BTreeMap;

use pilot_api::mesh::mesh_config::ExtensionProvider as Message;
use pilot_api::mesh::mesh_config::extension_provider as api;
use pilot_api::well_known::Struct;
use pilot_base::{Host, Name};
use pilot_model::{
    DynatraceSampler, ExtAuthzBody, ExtAuthzGrpc, ExtAuthzHttp, ExtensionProvider, FileLogProvider,
    HttpLogProvider, Json, LogFormat, OpenTelemetryProvider, OtelExport, OtelLogProvider, ProviderHttp,
    ProviderKind, ProviderService, TcpLogProvider, ZipkinProvider,
};

use crate::check::{Check, is_host_name, is_wildcard_host, names};
use crate::value::json;

/// The user's providers over the built-in ones. One with a name that is taken replaces it in its place.
pub(super) fn providers(messages: Vec<Message>, check: &mut Check<'_>) -> Vec<ExtensionProvider> {
    let mut out = ExtensionProvider::built_in();
    let mut seen: Vec<String> = Vec::new();
    for (i, message) in messages.into_iter().enumerate() {
        let path = format!("extensionProviders[{i}]");
        if message.name.is_empty() {
            check.leave_out(format!("{path}.name"), "is missing");
            continue;
        }
        if seen.contains(&message.name) {
            check.leave_out(
                format!("{path}.name"),
                format!("{} is the name of a provider above", message.name),
            );
        }
        seen.push(message.name.clone());
        let name = Name::new(&message.name);
        let kind = Reader { path, check: &mut *check }.kind(message.provider);
        match (kind, out.iter_mut().find(|provider| provider.name == name)) {
            (None, _) => (),
            (Some(kind), Some(there)) => there.kind = kind,
            (Some(kind), None) => out.push(ExtensionProvider { name, kind }),
        }
    }
    out
}

struct Reader<'c, 'a> {
    path: String,
    check: &'c mut Check<'a>,
}

impl Reader<'_, '_> {
    fn kind(mut self, provider: Option<api::Provider>) -> Option<ProviderKind> {
        use api::Provider;
        let Some(provider) = provider else {
            self.check.leave_out(&self.path, "says no provider, such as envoyExtAuthzHttp or opentelemetry");
            return None;
        };
        Some(match provider {
            Provider::EnvoyExtAuthzHttp(http) => ProviderKind::ExtAuthzHttp(Box::new(self.authz_http(http)?)),
            Provider::EnvoyExtAuthzGrpc(grpc) => {
                ProviderKind::ExtAuthzGrpc(Box::new(self.authz_grpc(&grpc)?))
            }
            Provider::Zipkin(zipkin) => ProviderKind::Zipkin(self.zipkin(zipkin)?),
            Provider::Datadog(datadog) => ProviderKind::Datadog {
                service: self.service("datadog", &datadog.service, datadog.port)?,
                max_tag_length: datadog.max_tag_length,
            },
            Provider::Skywalking(skywalking) => ProviderKind::SkyWalking {
                service: self.service("skywalking", &skywalking.service, skywalking.port)?,
            },
            Provider::Opentelemetry(otel) => ProviderKind::OpenTelemetry(Box::new(self.otel(otel)?)),
            Provider::Prometheus(_) => ProviderKind::Prometheus,
            Provider::EnvoyFileAccessLog(file) => ProviderKind::FileLog(file_log(file)),
            Provider::EnvoyHttpAls(als) => ProviderKind::HttpLogService(self.http_log(als)?),
            Provider::EnvoyTcpAls(als) => ProviderKind::TcpLogService(TcpLogProvider {
                service: self.service("envoyTcpAls", &als.service, als.port)?,
                log_name: als.log_name.into(),
                filter_state: names(als.filter_state_objects_to_log),
            }),
            Provider::EnvoyOtelAls(als) => ProviderKind::OpenTelemetryLog(self.otel_log(als)?),
            Provider::Sds(sds) => ProviderKind::Sds {
                service: self.service("sds", &sds.service, sds.port)?,
                name: sds.name.into(),
            },
            Provider::Lightstep(_) => {
                self.gone("lightstep");
                ProviderKind::Lightstep
            }
            Provider::Opencensus(_) => {
                self.gone("opencensus");
                ProviderKind::OpenCensus
            }
            Provider::Stackdriver(_) => ProviderKind::Stackdriver,
        })
    }

    fn gone(&mut self, field: &str) {
        let path = format!("{}.{field}", self.path);
        self.check.warn(path, "is no longer supported by Envoy and has no effect: use opentelemetry");
    }

    /// `host`, or `namespace/host` if there are several of that name.
    fn service(&mut self, field: &str, text: &str, port: u32) -> Option<ProviderService> {
        let path = format!("{}.{field}", self.path);
        let (namespace, host) = match text.split_once('/') {
            Some((namespace, host)) => (Some(namespace), host),
            None => (None, text),
        };
        let named = match namespace {
            Some(namespace) => is_host_name(namespace) && is_wildcard_host(host),
            None => is_host_name(host) || host.parse::<std::net::IpAddr>().is_ok(),
        };
        if !named {
            let message =
                format!("{text:?} is not a host, such as ext-authz.foo.svc.cluster.local or foo/ext-authz");
            self.check.leave_out(format!("{path}.service"), message);
        }
        let number = u16::try_from(port).ok().filter(|port| *port > 0);
        if number.is_none() {
            let message = format!("{port} is not a port: it must be between 1 and 65535");
            self.check.leave_out(format!("{path}.port"), message);
        }
        let namespace = namespace.map(Name::new);
        named.then_some(ProviderService { namespace, host: Host::new(host), port: number? })
    }

    fn authz_http(&mut self, message: api::EnvoyExternalAuthorizationHttpProvider) -> Option<ExtAuthzHttp> {
        let path = format!("{}.envoyExtAuthzHttp", self.path);
        let service = self.service("envoyExtAuthzHttp", &message.service, message.port)?;
        let prefix = &message.path_prefix;
        if !prefix.is_empty() && !prefix.starts_with('/') {
            self.check.leave_out(format!("{path}.pathPrefix"), format!("{prefix:?} must begin with a slash"));
            return None;
        }
        Some(ExtAuthzHttp {
            service,
            path_prefix: message.path_prefix.into(),
            fail_open: message.fail_open,
            status_on_error: self.status(&path, &message.status_on_error)?,
            timeout: self.check.span(format!("{path}.timeout"), message.timeout),
            include_headers_in_check: names(message.include_headers_in_check),
            include_request_headers_in_check: names(message.include_request_headers_in_check),
            include_additional_headers_in_check: message
                .include_additional_headers_in_check
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            include_request_body_in_check: message.include_request_body_in_check.as_ref().map(body),
            headers_to_upstream_on_allow: names(message.headers_to_upstream_on_allow),
            headers_to_downstream_on_deny: names(message.headers_to_downstream_on_deny),
            headers_to_downstream_on_allow: names(message.headers_to_downstream_on_allow),
            clear_route_cache: message.clear_route_cache,
        })
    }

    fn authz_grpc(&mut self, message: &api::EnvoyExternalAuthorizationGrpcProvider) -> Option<ExtAuthzGrpc> {
        let path = format!("{}.envoyExtAuthzGrpc", self.path);
        Some(ExtAuthzGrpc {
            service: self.service("envoyExtAuthzGrpc", &message.service, message.port)?,
            fail_open: message.fail_open,
            status_on_error: self.status(&path, &message.status_on_error)?,
            timeout: self.check.span(format!("{path}.timeout"), message.timeout),
            include_request_body_in_check: message.include_request_body_in_check.as_ref().map(body),
            clear_route_cache: message.clear_route_cache,
        })
    }

    /// A status that Envoy has a name for. Nothing at all, if it has none.
    #[allow(clippy::option_option, reason = "the outer one says whether the provider can be used")]
    fn status(&mut self, path: &str, text: &str) -> Option<Option<u32>> {
        const KNOWN: [std::ops::RangeInclusive<u32>; 6] =
            [100..=100, 200..=208, 226..=226, 300..=308, 400..=431, 500..=511];
        const UNKNOWN: [u32; 8] = [306, 418, 419, 420, 425, 427, 430, 509];
        if text.is_empty() {
            return Some(None);
        }
        let known = |code: &u32| KNOWN.iter().any(|range| range.contains(code)) && !UNKNOWN.contains(code);
        match text.parse().ok().filter(known) {
            Some(code) => Some(Some(code)),
            None => {
                let message = format!("{text:?} is not an HTTP status that Envoy knows, such as 403");
                self.check.leave_out(format!("{path}.statusOnError"), message);
                None
            }
        }
    }

    fn zipkin(&mut self, message: api::ZipkinTracingProvider) -> Option<ZipkinProvider> {
        use api::zipkin_tracing_provider::TraceContextOption;
        Some(ZipkinProvider {
            service: self.service("zipkin", &message.service, message.port)?,
            max_tag_length: message.max_tag_length,
            short_trace_id: message.enable_64bit_trace_id,
            path: message.path.into(),
            w3c: message.trace_context_option == TraceContextOption::UseB3WithW3cPropagation as i32,
            timeout: self.check.span(format!("{}.zipkin.timeout", self.path), message.timeout),
            headers: self.headers("zipkin.headers", message.headers),
        })
    }

    fn otel(&mut self, message: api::OpenTelemetryTracingProvider) -> Option<OpenTelemetryProvider> {
        use api::open_telemetry_tracing_provider::Sampling;
        let service = self.service("opentelemetry", &message.service, message.port)?;
        if message.grpc.is_some() && message.http.is_some() {
            let path = format!("{}.opentelemetry", self.path);
            self.check.leave_out(path, "has both grpc and http: spans are sent one way or the other");
            return None;
        }
        let export = match (message.http, message.grpc) {
            (Some(http), _) => OtelExport::Http(self.http("opentelemetry.http", http)),
            (None, grpc) => {
                let grpc = grpc.unwrap_or_default();
                let path = format!("{}.opentelemetry.grpc.timeout", self.path);
                OtelExport::Grpc {
                    timeout: self.check.span(path, grpc.timeout),
                    initial_metadata: self
                        .headers("opentelemetry.grpc.initialMetadata", grpc.initial_metadata),
                }
            }
        };
        let dynatrace_sampler = match message.sampling {
            None => None,
            Some(Sampling::DynatraceSampler(sampler)) => {
                if sampler.http_service.is_none() && !matches!(export, OtelExport::Http(_)) {
                    let path = format!("{}.opentelemetry.dynatraceSampler", self.path);
                    self.check.leave_out(path, "needs httpService where spans are not sent over http");
                    return None;
                }
                Some(self.dynatrace(sampler)?)
            }
        };
        let detectors = message.resource_detectors.unwrap_or_default();
        Some(OpenTelemetryProvider {
            service,
            max_tag_length: message.max_tag_length,
            export,
            environment_detector: detectors.environment.is_some(),
            dynatrace_detector: detectors.dynatrace.is_some(),
            dynatrace_sampler,
            otel_service_names: message.service_attribute_enrichment
                == api::ServiceAttributeEnrichment::OtelSemanticConventions as i32,
        })
    }

    fn dynatrace(
        &mut self,
        message: api::open_telemetry_tracing_provider::DynatraceSampler,
    ) -> Option<DynatraceSampler> {
        let api = match message.http_service {
            None => None,
            Some(api) => {
                let field = "opentelemetry.dynatraceSampler.httpService";
                let service = self.service(field, &api.service, api.port)?;
                Some((service, self.http(&format!("{field}.http"), api.http.unwrap_or_default())))
            }
        };
        Some(DynatraceSampler {
            tenant: message.tenant.into(),
            cluster_id: message.cluster_id,
            root_spans_per_minute: message.root_spans_per_minute,
            api,
        })
    }

    fn http(&mut self, field: &str, message: api::HttpService) -> ProviderHttp {
        ProviderHttp {
            path: message.path.into(),
            timeout: self.check.span(format!("{}.{field}.timeout", self.path), message.timeout),
            headers: self.headers(&format!("{field}.headers"), message.headers),
        }
    }

    fn headers(&mut self, field: &str, messages: Vec<api::HttpHeader>) -> Vec<(Name, Name)> {
        use api::http_header::HeaderValue;
        let mut out = Vec::new();
        for (i, header) in messages.into_iter().enumerate() {
            let path = format!("{}.{field}[{i}]", self.path);
            let value = match header.header_value {
                Some(HeaderValue::Value(value)) => value,
                Some(HeaderValue::EnvName(_)) => {
                    self.check.warn(format!("{path}.envName"), "is not supported: the header is sent empty");
                    String::new()
                }
                None => String::new(),
            };
            self.check.header_text(&path, &header.name);
            self.check.header_text(&path, &value);
            out.push((header.name.into(), value.into()));
        }
        out
    }

    fn http_log(&mut self, message: api::EnvoyHttpGrpcV3LogProvider) -> Option<HttpLogProvider> {
        Some(HttpLogProvider {
            service: self.service("envoyHttpAls", &message.service, message.port)?,
            log_name: message.log_name.into(),
            filter_state: names(message.filter_state_objects_to_log),
            request_headers: names(message.additional_request_headers_to_log),
            response_headers: names(message.additional_response_headers_to_log),
            response_trailers: names(message.additional_response_trailers_to_log),
        })
    }

    fn otel_log(&mut self, message: api::EnvoyOpenTelemetryLogProvider) -> Option<OtelLogProvider> {
        let format = message.log_format.unwrap_or_default();
        Some(OtelLogProvider {
            service: self.service("envoyOtelAls", &message.service, message.port)?,
            log_name: message.log_name.into(),
            text: format.text.into(),
            labels: labels(format.labels.unwrap_or_default()),
        })
    }
}

fn body(message: &api::EnvoyExternalAuthorizationRequestBody) -> ExtAuthzBody {
    ExtAuthzBody {
        max_request_bytes: message.max_request_bytes,
        allow_partial_message: message.allow_partial_message,
        pack_as_bytes: message.pack_as_bytes,
    }
}

fn file_log(message: api::EnvoyFileAccessLogProvider) -> FileLogProvider {
    use api::envoy_file_access_log_provider::log_format::LogFormat as Format;
    let format = message.log_format.map(|format| match format.log_format {
        Some(Format::Text(text)) => LogFormat::Text(text.into()),
        Some(Format::Labels(values)) => LogFormat::Labels(labels(values)),
        None => LogFormat::Text(Name::empty()),
    });
    FileLogProvider { path: message.path.into(), format, omit_empty_values: message.omit_empty_values }
}

fn labels(values: Struct) -> BTreeMap<Name, Json> {
    values.fields.into_iter().map(|(key, value)| (key.into(), json(value))).collect()
}
