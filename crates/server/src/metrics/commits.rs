//! What sources tell, what is made of it, and what there is.

use std::sync::OnceLock;

use pilot_base::{Micros, ObjectRef};
use pilot_model::Kind;
use pilot_pipeline::{Census, Pipeline};
use pilot_source::Event;
use prometheus::{Counter, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Result};

use super::register::Register;
use super::seconds;

const DEBOUNCE: [f64; 9] = [0.001, 0.01, 0.1, 1.0, 3.0, 5.0, 10.0, 20.0, 30.0];
const COMMIT: [f64; 8] = [0.0001, 0.001, 0.01, 0.1, 0.5, 1.0, 3.0, 5.0];

pub(crate) struct Commits {
    inbound: IntCounterVec,
    triggers: [IntCounter; Trigger::ALL.len()],
    debounce: Histogram,
    commit: Histogram,
    cpu: Counter,
    errors: IntCounter,
    health: Health,
    audiences: IntGauge,
    rows: IntGaugeVec,
    /// The same in the order of tables, known once there is a pipeline.
    row_gauges: OnceLock<Vec<IntGauge>>,
    issues: IntGauge,
    rejected: IntGauge,
}

/// When the changes of a commit came, when it began and when it ended.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    /// Nothing if no source told anything.
    pub(crate) told: Option<Micros>,
    pub(crate) began: Micros,
    pub(crate) ended: Micros,
}

/// Why proxies may be sent something, in Istio's words.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trigger {
    Endpoint,
    Config,
    Service,
    Global,
    Networks,
    Namespace,
    ProxyRequest,
    Unknown,
}

impl Trigger {
    const ALL: [Self; 8] = [
        Self::Endpoint,
        Self::Config,
        Self::Service,
        Self::Global,
        Self::Networks,
        Self::Namespace,
        Self::ProxyRequest,
        Self::Unknown,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Endpoint => "endpoint",
            Self::Config => "config",
            Self::Service => "service",
            Self::Global => "global",
            Self::Networks => "networks",
            Self::Namespace => "namespace",
            Self::ProxyRequest => "proxyrequest",
            Self::Unknown => "unknown",
        }
    }

    fn of(object: &ObjectRef) -> Self {
        match object.kind.as_str() {
            "EndpointSlice" | "Endpoints" | "Pod" | "Node" | "WorkloadEntry" => Self::Endpoint,
            "Service" | "ServiceEntry" => Self::Service,
            "MeshConfig" | "Options" => Self::Global,
            "MeshNetworks" => Self::Networks,
            "Namespace" => Self::Namespace,
            "Proxy" => Self::ProxyRequest,
            // Istio has no word for keys that were fetched.
            "KeySet" => Self::Unknown,
            _ => Self::Config,
        }
    }
}

/// What operators watch.
struct Health {
    services: IntGauge,
    virtual_services: IntGauge,
    no_instances: IntGauge,
    no_names: IntGauge,
    not_ready: IntGauge,
    contested: IntGauge,
    subsets: IntGauge,
}

impl Commits {
    pub(super) fn new(register: &Register<'_>) -> Result<Self> {
        let triggers = register.counters("pilot_push_triggers", "Changes that may lead to pushes.")?;
        // Istio's dashboards ask for it. Names of clusters are keys here, so none is there twice.
        register.gauge("pilot_duplicate_envoy_clusters", "Clusters that are there twice: never any.")?;
        Ok(Self {
            inbound: register.counters("pilot_inbound_updates", "Changes told by sources.")?,
            triggers: Trigger::ALL.map(|trigger| triggers.with_label_values(&[trigger.name()])),
            debounce: register.histogram(
                "pilot_debounce_time",
                "Seconds between the arrival of a change and the beginning of its commit.",
                &DEBOUNCE,
            )?,
            commit: register.histogram(
                "pilot_pushcontext_init_seconds",
                "Seconds that commits took.",
                &COMMIT,
            )?,
            cpu: register.sum("pilot_commit_cpu_seconds_total", "Processor time that commits took.")?,
            errors: register.counter(
                "pilot_total_xds_internal_errors",
                "Translations that failed; what was there before is kept.",
            )?,
            health: Health::new(register)?,
            audiences: register.gauge("pilot_audiences", "Classes of proxies that are sent the same.")?,
            rows: register.gauges("pilot_table_rows", "Rows of the engine's tables.", &["table"])?,
            row_gauges: OnceLock::new(),
            issues: register
                .gauge("pilot_issues", "Things that are wrong with rules, files and proxies now.")?,
            rejected: register
                .gauge("pilot_total_rejected_configs", "Objects and files of which something is refused.")?,
        })
    }

    pub(crate) fn note_events(&self, events: &[Event]) {
        for event in events {
            let label = match event {
                Event::Init | Event::InitDone => continue,
                Event::Apply(object) | Event::InitApply(object) => update_type(object.key().0),
                Event::Delete((Kind::Service, _)) => "svcdelete",
                Event::Delete((kind, _)) => update_type(*kind),
                Event::Mesh(_) | Event::Networks(_) => "config",
            };
            self.inbound.with_label_values(&[label]).inc();
        }
    }

    pub(crate) fn committed(&self, times: Times, commit: &pilot_incr::Commit, objects: &[(ObjectRef, u32)]) {
        let Times { told, began, ended } = times;
        if let Some(told) = told {
            self.debounce.observe(seconds(began.saturating_sub(told)));
        }
        self.commit.observe(seconds(ended.saturating_sub(began)));
        self.cpu.inc_by(seconds(commit.spent / 1000));
        self.errors.inc_by(commit.panicked as u64);
        for (object, shares) in objects {
            self.triggers[Trigger::of(object) as usize].inc_by(u64::from(*shares));
        }
    }

    /// What there is now. Nothing is counted here: the numbers are kept as things come and go.
    pub(crate) fn note_state(&self, pipeline: &Pipeline) {
        self.health.note(pipeline.census(), pipeline.virtual_services());
        set(&self.audiences, pipeline.audiences());
        let gauges = self.row_gauges.get_or_init(|| {
            pipeline.counts().map(|(table, _)| self.rows.with_label_values(&[table])).collect()
        });
        gauges.iter().zip(pipeline.counts()).for_each(|(gauge, (_, rows))| set(gauge, rows));
    }

    pub(crate) fn note_issues(&self, issues: usize, rejected: usize) {
        set(&self.issues, issues);
        set(&self.rejected, rejected);
    }
}

impl Health {
    fn new(register: &Register<'_>) -> Result<Self> {
        Ok(Self {
            services: register.gauge("pilot_services", "Services that are known.")?,
            virtual_services: register.gauge("pilot_virt_services", "VirtualServices that are known.")?,
            no_instances: register
                .gauge("pilot_eds_no_instances", "Ports of services that have no endpoints.")?,
            no_names: register.gauge(
                "pilot_dns_cluster_without_endpoints",
                "Ports of services that are to be looked up and name nothing to look up.",
            )?,
            not_ready: register
                .gauge("pilot_endpoint_not_ready", "Endpoints of Kubernetes that are not ready.")?,
            contested: register.gauge(
                "pilot_vservice_dup_domain",
                "Hosts that several VirtualServices, seen by the same sidecars, speak for.",
            )?,
            subsets: register.gauge(
                "pilot_destrule_subsets",
                "Subsets that an older DestinationRule of the namespace has for the same host.",
            )?,
        })
    }

    fn note(&self, census: Census, virtual_services: usize) {
        let Census {
            services,
            ports_without_endpoints,
            ports_without_names,
            endpoints_not_ready,
            contested_hosts,
            repeated_subsets,
        } = census;
        set(&self.services, services);
        set(&self.virtual_services, virtual_services);
        set(&self.no_instances, ports_without_endpoints);
        set(&self.no_names, ports_without_names);
        set(&self.not_ready, endpoints_not_ready);
        set(&self.contested, contested_hosts);
        set(&self.subsets, repeated_subsets);
    }
}

fn set(gauge: &IntGauge, number: usize) {
    gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
}

/// Istio's words for what changed.
fn update_type(kind: Kind) -> &'static str {
    match kind {
        Kind::Service => "svc",
        Kind::EndpointSlice | Kind::Endpoints | Kind::Pod | Kind::Node => "eds",
        Kind::VirtualService
        | Kind::DestinationRule
        | Kind::ServiceEntry
        | Kind::WorkloadEntry
        | Kind::Sidecar
        | Kind::Gateway
        | Kind::WorkloadGroup
        | Kind::EnvoyFilter
        | Kind::ProxyConfig
        | Kind::AuthorizationPolicy
        | Kind::PeerAuthentication
        | Kind::RequestAuthentication
        | Kind::Telemetry
        | Kind::WasmPlugin
        | Kind::TrafficExtension
        | Kind::Namespace => "config",
        Kind::Secret => "secret",
    }
}
