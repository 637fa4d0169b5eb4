//! What is logged, measured and traced on one side of a workload: Telemetry objects over the mesh's defaults.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilot_base::Name;
use pilot_model::{
    AccessLogging, ExtensionProvider, IstioMetric, MeshConfig, MetricMatch, Metrics, Number, ProviderKind,
    ProviderService, Span, Telemetry, TraceTag, Tracing, WorkloadMode,
};

/// Who is told about requests and connections.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AccessLogs {
    /// What the mesh configuration says by itself.
    OfMesh,
    To(Vec<LogTo>),
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LogTo {
    pub provider: Arc<ExtensionProvider>,
    /// An expression that must be true.
    pub filter: Option<Name>,
}

/// Istio's metrics for one provider.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct StatsPlan {
    pub reporting_interval: Option<Span>,
    pub metrics: Vec<MetricPlan>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MetricPlan {
    /// As it is called where metrics are read.
    pub name: Name,
    pub disabled: bool,
    /// `None` takes a tag away.
    pub tags: BTreeMap<Name, Option<Name>>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TracingPlan {
    /// What the mesh configuration and the proxy's own settings say by themselves.
    OfMesh,
    Off,
    To(Box<TraceTo>),
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TraceTo {
    pub provider: Arc<ExtensionProvider>,
    pub sampling: Option<Number>,
    pub custom_tags: BTreeMap<Name, TraceTag>,
    pub use_request_id: bool,
    pub istio_tags: bool,
    pub no_context_propagation: bool,
}

/// What applies to a workload.
pub struct TelemetryScope<'a> {
    /// The mesh's object, the namespace's, and those for the workload: what comes later counts more.
    pub levels: Vec<&'a Telemetry>,
    pub mesh: &'a MeshConfig,
    /// Is there such a service? A provider without one is as good as none.
    pub is_known: &'a dyn Fn(&ProviderService) -> bool,
}

impl TelemetryScope<'_> {
    pub fn access_logs(&self, side: WorkloadMode) -> AccessLogs {
        let levels = self.levels.iter().map(|level| &level.access_logging[..]);
        let levels: Vec<&[AccessLogging]> = levels.filter(|logging| !logging.is_empty()).collect();
        let mut out: BTreeMap<Name, Option<LogTo>> = BTreeMap::new();
        for (name, wanted) in merge_logs(&levels, &self.mesh.default_providers.access_logging, side) {
            let Some(provider) = self.mesh.provider(&name).filter(|provider| self.can_log(provider)) else {
                continue;
            };
            let to = wanted.map(|filter| LogTo { provider: Arc::new(provider.clone()), filter });
            out.insert(provider.name.clone(), to);
        }
        // Where nobody is told anything, not even to be silent, the mesh's own settings still count.
        if out.is_empty() {
            AccessLogs::OfMesh
        } else {
            AccessLogs::To(out.into_values().flatten().collect())
        }
    }

    fn can_log(&self, provider: &ExtensionProvider) -> bool {
        match &provider.kind {
            ProviderKind::FileLog(_) => true,
            ProviderKind::HttpLogService(log) => (self.is_known)(&log.service),
            ProviderKind::TcpLogService(log) => (self.is_known)(&log.service),
            ProviderKind::OpenTelemetryLog(log) => (self.is_known)(&log.service),
            _ => false,
        }
    }

    pub fn metrics(&self, side: WorkloadMode) -> Vec<StatsPlan> {
        let levels: Vec<&Metrics> = self.levels.iter().flat_map(|level| &level.metrics).collect();
        let merged = merge_metrics(&levels, &self.mesh.default_providers.metrics, side);
        let counts =
            |name: &Name| self.mesh.provider(name).map(|p| &p.kind) == Some(&ProviderKind::Prometheus);
        merged.into_iter().filter(|(name, _)| counts(name)).map(|(_, plan)| plan).collect()
    }

    pub fn tracing(&self, side: WorkloadMode) -> TracingPlan {
        let levels: Vec<&Tracing> = self.levels.iter().flat_map(|level| &level.tracing).collect();
        let default = self.mesh.default_providers.tracing.first();
        if levels.is_empty() && default.is_none() {
            return TracingPlan::OfMesh;
        }
        let mut provider = default;
        let (mut off, mut use_request_id, mut istio_tags, mut no_context) = (false, true, true, false);
        let (mut sampling, mut custom_tags) = (None, BTreeMap::new());
        for level in levels.into_iter().filter(|level| level.mode.covers(side)) {
            provider = level.providers.first().or(provider);
            off = level.disable_span_reporting.unwrap_or(off);
            use_request_id = level.use_request_id.unwrap_or(use_request_id);
            istio_tags = level.istio_tags.unwrap_or(istio_tags);
            no_context = level.disable_context_propagation.unwrap_or(no_context);
            sampling = level.sampling.or(sampling);
            if !level.custom_tags.is_empty() {
                custom_tags.clone_from(&level.custom_tags);
            }
        }
        let provider = provider.and_then(|name| self.mesh.provider(name));
        match provider.filter(|provider| !off && self.can_trace(provider)) {
            None => TracingPlan::Off,
            Some(provider) => TracingPlan::To(Box::new(TraceTo {
                provider: Arc::new(provider.clone()),
                sampling,
                custom_tags,
                use_request_id,
                istio_tags,
                no_context_propagation: no_context,
            })),
        }
    }

    fn can_trace(&self, provider: &ExtensionProvider) -> bool {
        let known = self.is_known;
        match &provider.kind {
            ProviderKind::Zipkin(zipkin) => known(&zipkin.service),
            ProviderKind::Datadog { service, .. } | ProviderKind::SkyWalking { service } => known(service),
            ProviderKind::OpenTelemetry(otel) => {
                let sampler = otel.dynatrace_sampler.as_ref().and_then(|sampler| sampler.api.as_ref());
                known(&otel.service) && sampler.is_none_or(|(service, _)| known(service))
            }
            _ => false,
        }
    }
}

/// Providers by name, each with the filter of what it is told; `None` for those that are told nothing.
///
/// The providers of a level replace those of the levels above, where it names any.
fn merge_logs(
    levels: &[&[AccessLogging]],
    default: &[Name],
    side: WorkloadMode,
) -> BTreeMap<Name, Option<Option<Name>>> {
    if levels.is_empty() {
        return default.iter().map(|name| (name.clone(), Some(None))).collect();
    }
    let mut in_scope: BTreeSet<&Name> = default.iter().collect();
    let mut filters: BTreeMap<&Name, Option<Name>> = BTreeMap::new();
    for level in levels {
        let here = || level.iter().filter(|logging| logging.mode.covers(side));
        let named: BTreeSet<&Name> = here().flat_map(|logging| &logging.providers).collect();
        for logging in here() {
            filters.extend(logging.providers.iter().map(|name| (name, logging.filter.clone())));
        }
        if !named.is_empty() {
            in_scope = named;
        }
    }
    let mut out = BTreeMap::new();
    let mut names = default;
    for logging in levels.iter().copied().flatten() {
        if !logging.providers.is_empty() {
            names = &logging.providers;
        }
        for name in names.iter().filter(|name| in_scope.contains(name) && logging.mode.covers(side)) {
            let wanted = (!logging.disabled).then(|| filters.get(name).cloned().flatten());
            out.insert(name.clone(), wanted);
        }
    }
    out
}

#[derive(Default)]
struct Merged {
    off: bool,
    interval: Option<Span>,
    /// By the name in a Telemetry, which is also their order.
    metrics: BTreeMap<Name, (bool, BTreeMap<Name, Option<Name>>)>,
}

fn merge_metrics(levels: &[&Metrics], default: &[Name], side: WorkloadMode) -> BTreeMap<Name, StatsPlan> {
    let named = levels.iter().map(|level| &level.providers[..]).rfind(|names| !names.is_empty());
    let in_scope: BTreeSet<&Name> = named.unwrap_or(default).iter().collect();
    let mut providers: BTreeMap<Name, Merged> = BTreeMap::new();
    if levels.is_empty() {
        providers.extend(default.iter().map(|name| (name.clone(), Merged::default())));
    }
    let mut names = default;
    for level in levels {
        if !level.providers.is_empty() {
            names = &level.providers;
        }
        for name in names.iter().filter(|name| in_scope.contains(name)) {
            providers.entry(name.clone()).or_default().add(level, side);
        }
    }
    let wanted = providers.into_iter().filter(|(_, merged)| !merged.off);
    wanted.map(|(name, merged)| (name, merged.plan())).collect()
}

impl Merged {
    fn add(&mut self, level: &Metrics, side: WorkloadMode) {
        self.interval = level.reporting_interval.or(self.interval);
        for change in level.overrides.iter().filter(|change| change.mode.covers(side)) {
            if change.metric == MetricMatch::All && change.disabled == Some(true) {
                self.off = true;
                continue;
            }
            self.off = false;
            for name in names(&change.metric) {
                let (disabled, tags) = self.metrics.entry(name).or_default();
                *disabled = change.disabled.unwrap_or(*disabled);
                tags.extend(change.tags.iter().map(|(tag, value)| (tag.clone(), value.clone())));
            }
        }
    }

    fn plan(self) -> StatsPlan {
        let metrics = self.metrics.into_iter();
        let metrics = metrics.map(|(name, (disabled, tags))| {
            let known = IstioMetric::ALL.into_iter().find(|metric| metric.name() == name.as_str());
            let name = known.map_or(name, |metric| Name::new(metric.prometheus_name()));
            MetricPlan { name, disabled, tags }
        });
        StatsPlan { reporting_interval: self.interval, metrics: metrics.collect() }
    }
}

fn names(metric: &MetricMatch) -> Vec<Name> {
    match metric {
        MetricMatch::All => IstioMetric::ALL.into_iter().map(|metric| Name::new(metric.name())).collect(),
        MetricMatch::Istio(metric) => vec![Name::new(metric.name())],
        MetricMatch::Custom(name) => vec![name.clone()],
    }
}

#[cfg(test)]
mod tests;
