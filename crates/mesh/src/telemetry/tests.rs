use std::collections::BTreeMap;

use pilot_base::Name;
use pilot_model::{
    AccessLogging, ExtensionProvider, FileLogProvider, IstioMetric, MeshConfig, MetricMatch, Metrics,
    MetricsOverride, Number, ProviderKind, ProviderService, Telemetry, Tracing, WorkloadMode, ZipkinProvider,
};

use super::{AccessLogs, TelemetryScope, TracingPlan};

const CLIENT: WorkloadMode = WorkloadMode::Client;
const SERVER: WorkloadMode = WorkloadMode::Server;

fn mesh() -> MeshConfig {
    let mut mesh = MeshConfig::default();
    let file = FileLogProvider { path: Name::new("/log"), format: None, omit_empty_values: false };
    let service = ProviderService { namespace: None, host: "zipkin.x".into(), port: 9411 };
    let zipkin = ZipkinProvider {
        service,
        max_tag_length: 0,
        short_trace_id: false,
        path: Name::empty(),
        w3c: false,
        timeout: None,
        headers: Vec::new(),
    };
    let one = |name: &str, kind| ExtensionProvider { name: Name::new(name), kind };
    mesh.extension_providers.push(one("file", ProviderKind::FileLog(file)));
    mesh.extension_providers.push(one("zipkin", ProviderKind::Zipkin(zipkin)));
    mesh
}

fn logging(providers: &[&str]) -> AccessLogging {
    AccessLogging { providers: providers.iter().map(|p| Name::new(p)).collect(), ..AccessLogging::default() }
}

fn logs(logging: Vec<AccessLogging>) -> Telemetry {
    Telemetry { access_logging: logging, ..Telemetry::default() }
}

/// The names of those who are told; `None` for the mesh's own settings.
fn told(levels: &[&Telemetry], side: WorkloadMode) -> Option<Vec<String>> {
    let mesh = mesh();
    let scope = TelemetryScope { levels: levels.to_vec(), mesh: &mesh, is_known: &|_| true };
    match scope.access_logs(side) {
        AccessLogs::OfMesh => None,
        AccessLogs::To(list) => Some(list.iter().map(|to| to.provider.name.to_string()).collect()),
    }
}

#[test]
fn a_closer_object_names_who_is_told_and_may_be_silent() {
    let (root, own) = (logs(vec![logging(&["envoy"])]), logs(vec![logging(&["file"])]));
    assert_eq!(told(&[], CLIENT), None);
    assert_eq!(told(&[&root], CLIENT), Some(vec!["envoy".to_owned()]));
    assert_eq!(told(&[&root, &own], CLIENT), Some(vec!["file".to_owned()]));
    let silent = logs(vec![AccessLogging { disabled: true, ..AccessLogging::default() }]);
    assert_eq!(told(&[&root, &silent], CLIENT), Some(vec![]));
}

#[test]
fn a_side_that_nobody_speaks_of_keeps_the_settings_of_the_mesh() {
    let client = logs(vec![AccessLogging { mode: CLIENT, ..logging(&["envoy"]) }]);
    assert_eq!(told(&[&client], CLIENT), Some(vec!["envoy".to_owned()]));
    assert_eq!(told(&[&client], SERVER), None);
    assert_eq!(told(&[&logs(vec![logging(&["nobody"])])], CLIENT), None);
}

fn metrics(overrides: Vec<MetricsOverride>) -> Telemetry {
    let providers = vec![Name::new("prometheus")];
    Telemetry {
        metrics: vec![Metrics { providers, overrides, reporting_interval: None }],
        ..Telemetry::default()
    }
}

#[test]
fn metrics_are_switched_off_by_side_and_on_again() {
    let off = MetricsOverride { mode: CLIENT, disabled: Some(true), ..MetricsOverride::default() };
    let tag = BTreeMap::from([(Name::new("a"), Some(Name::new("b"))), (Name::new("c"), None)]);
    let metric = MetricMatch::Istio(IstioMetric::RequestCount);
    let on = MetricsOverride { metric, tags: tag, ..MetricsOverride::default() };
    let (root, own) = (metrics(vec![off]), metrics(vec![on]));
    let mesh = mesh();
    let plans = |levels: &[&Telemetry], side| {
        TelemetryScope { levels: levels.to_vec(), mesh: &mesh, is_known: &|_| true }.metrics(side)
    };
    assert!(plans(&[&root], CLIENT).is_empty());
    assert_eq!(plans(&[&root], SERVER).len(), 1);
    let both = plans(&[&root, &own], CLIENT);
    assert_eq!(both[0].metrics[0].name, "requests_total");
    assert_eq!(both[0].metrics[0].tags.len(), 2);
}

#[test]
fn traces_go_to_the_first_provider_that_is_there() {
    let mesh = mesh();
    let tracing = |providers: &[&str], known: bool| {
        let tracing = Tracing {
            providers: providers.iter().map(|p| Name::new(p)).collect(),
            sampling: Some(Number(5.0)),
            ..Tracing::default()
        };
        let telemetry = Telemetry { tracing: vec![tracing], ..Telemetry::default() };
        TelemetryScope { levels: vec![&telemetry], mesh: &mesh, is_known: &|_| known }.tracing(CLIENT)
    };
    assert!(matches!(tracing(&["zipkin"], true), TracingPlan::To(to) if to.sampling == Some(Number(5.0))));
    assert_eq!(tracing(&["zipkin"], false), TracingPlan::Off);
    assert_eq!(tracing(&["prometheus"], true), TracingPlan::Off);
    assert_eq!(tracing(&[], true), TracingPlan::Off);
}
