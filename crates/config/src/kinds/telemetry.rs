use std::collections::BTreeMap;

use pilot_api::telemetry as api;
use pilot_base::Name;
use pilot_model::{
    AccessLogging, IstioMetric, MetricMatch, Metrics, MetricsOverride, Number, Telemetry, TraceTag, Tracing,
    WorkloadMode,
};

use crate::check::Check;

pub(crate) fn decode(message: api::Telemetry, check: &mut Check<'_>) -> Telemetry {
    if message.tracing.len() > 1 {
        check.warn(
            "spec.tracing",
            "has several entries, which are merged: the last one that says something counts",
        );
    }
    let target = check.policy_target(message.selector, message.target_ref, message.target_refs);
    let tracing = message.tracing.into_iter().enumerate();
    let metrics = message.metrics.into_iter().enumerate();
    let logging = message.access_logging.into_iter().enumerate();
    Telemetry {
        target,
        tracing: tracing.map(|(i, m)| self::tracing(m, &format!("spec.tracing[{i}]"), check)).collect(),
        metrics: metrics.map(|(i, m)| self::metrics(m, &format!("spec.metrics[{i}]"), check)).collect(),
        access_logging: logging
            .map(|(i, m)| access_logging(m, &format!("spec.accessLogging[{i}]"), check))
            .collect(),
    }
}

fn mode(mode: i32) -> WorkloadMode {
    match api::WorkloadMode::try_from(mode) {
        Ok(api::WorkloadMode::Client) => WorkloadMode::Client,
        Ok(api::WorkloadMode::Server) => WorkloadMode::Server,
        _ => WorkloadMode::ClientAndServer,
    }
}

fn providers(messages: Vec<api::ProviderRef>, path: &str, check: &mut Check<'_>) -> Vec<Name> {
    for (i, _) in messages.iter().enumerate().filter(|(_, provider)| provider.name.is_empty()) {
        check.reject(format!("{path}.providers[{i}].name"), "is missing");
    }
    messages.into_iter().map(|provider| provider.name.into()).collect()
}

fn tracing(message: api::Tracing, path: &str, check: &mut Check<'_>) -> Tracing {
    if message.providers.len() > 1 {
        check.warn(format!("{path}.providers"), "has several providers, of which only the first is used");
    }
    if message.random_sampling_percentage.is_some_and(|percent| !(0.0..=100.0).contains(&percent)) {
        check.reject(format!("{path}.randomSamplingPercentage"), "must be between 0 and 100");
    }
    Tracing {
        mode: mode(message.r#match.map_or(0, |selector| selector.mode)),
        providers: providers(message.providers, path, check),
        sampling: message.random_sampling_percentage.map(Number),
        disable_span_reporting: message.disable_span_reporting,
        custom_tags: custom_tags(message.custom_tags, &format!("{path}.customTags"), check),
        use_request_id: message.use_request_id_for_trace_sampling,
        istio_tags: message.enable_istio_tags,
        disable_context_propagation: message.disable_context_propagation,
    }
}

fn custom_tags(
    messages: BTreeMap<String, api::tracing::CustomTag>,
    path: &str,
    check: &mut Check<'_>,
) -> BTreeMap<Name, TraceTag> {
    use api::tracing::custom_tag::Type;
    let mut out = BTreeMap::new();
    for (name, tag) in messages {
        if name.is_empty() {
            check.reject(path, "has a tag without a name");
        }
        let path = format!("{path}.{name}");
        let mut needed = |field: &str, text: &str| {
            if text.is_empty() {
                check.reject(format!("{path}.{field}"), "is missing");
            }
        };
        let value = match tag.r#type {
            Some(Type::Literal(literal)) => {
                needed("literal.value", &literal.value);
                TraceTag::Literal(literal.value.into())
            }
            Some(Type::Environment(variable)) => {
                needed("environment.name", &variable.name);
                TraceTag::Environment { name: variable.name.into(), default: variable.default_value.into() }
            }
            Some(Type::Header(header)) => {
                needed("header.name", &header.name);
                TraceTag::Header { name: header.name.into(), default: header.default_value.into() }
            }
            Some(Type::Formatter(formatter)) => {
                needed("formatter.value", &formatter.value);
                TraceTag::Formatter(formatter.value.into())
            }
            None => {
                check.leave_out(
                    path,
                    "has no value: it needs one of literal, environment, header and formatter",
                );
                continue;
            }
        };
        out.insert(Name::from(name), value);
    }
    out
}

fn metrics(message: api::Metrics, path: &str, check: &mut Check<'_>) -> Metrics {
    let overrides = message.overrides.into_iter().enumerate();
    let overrides =
        overrides.map(|(i, m)| metrics_override(m, &format!("{path}.overrides[{i}]"), check)).collect();
    Metrics {
        providers: providers(message.providers, path, check),
        overrides,
        reporting_interval: check.span(format!("{path}.reportingInterval"), message.reporting_interval),
    }
}

fn metrics_override(message: api::MetricsOverrides, path: &str, check: &mut Check<'_>) -> MetricsOverride {
    use api::metric_selector::MetricMatch as Api;
    use api::metrics_overrides::tag_override::Operation;
    let selector = message.r#match.unwrap_or_default();
    let metric = match selector.metric_match {
        None => MetricMatch::All,
        Some(Api::Metric(metric)) => istio_metric(metric),
        Some(Api::CustomMetric(name)) => {
            if name.is_empty() {
                check.reject(format!("{path}.match.customMetric"), "must not be empty");
            }
            MetricMatch::Custom(name.into())
        }
    };
    let mut tags = BTreeMap::new();
    for (name, tag) in message.tag_overrides {
        let path = format!("{path}.tagOverrides.{name}");
        if name.is_empty() {
            check.warn(&path, "has a tag without a name");
        }
        let removes = tag.operation == Operation::Remove as i32;
        if removes && !tag.value.is_empty() {
            check.reject(format!("{path}.value"), "must be empty when the tag is removed");
        }
        if !removes && tag.value.is_empty() {
            check.reject(
                format!("{path}.value"),
                "is missing: set it, or remove the tag with operation REMOVE",
            );
        }
        tags.insert(Name::from(name), (!removes).then(|| tag.value.into()));
    }
    MetricsOverride { metric, mode: mode(selector.mode), disabled: message.disabled, tags }
}

fn istio_metric(metric: i32) -> MetricMatch {
    use api::metric_selector::IstioMetric as Api;
    let name = Api::try_from(metric).map_or("", |metric| metric.as_str_name());
    IstioMetric::ALL
        .into_iter()
        .find(|metric| metric.name() == name)
        .map_or(MetricMatch::All, MetricMatch::Istio)
}

fn access_logging(message: api::AccessLogging, path: &str, check: &mut Check<'_>) -> AccessLogging {
    let filter = message.filter.map(|filter| filter.expression);
    if let Some(expression) = &filter {
        expression_issues(expression, &format!("{path}.filter.expression"), check);
    }
    AccessLogging {
        mode: mode(message.r#match.map_or(0, |selector| selector.mode)),
        providers: providers(message.providers, path, check),
        disabled: message.disabled.unwrap_or(false),
        filter: filter.map(Name::from),
    }
}

/// Envoy refuses a listener with an expression that it cannot parse.
fn expression_issues(expression: &str, path: &str, check: &mut Check<'_>) {
    if let Err(why) = super::cel::parse(expression) {
        check.reject(path, format!("is not an expression in CEL: {why}"));
    }
}
