use pilot_base::{Labels, Name};

use crate::{Span, WorkloadEntry};

/// What workloads outside the platform have in common.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct WorkloadGroup {
    /// For the entries that are made of it.
    pub labels: Labels,
    pub annotations: Labels,
    pub template: WorkloadEntry,
    pub probe: Option<WorkloadProbe>,
}

/// How it is found out whether a workload is ready.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkloadProbe {
    pub initial_delay: Span,
    pub timeout: Span,
    pub period: Span,
    pub success_threshold: u32,
    pub failure_threshold: u32,
    pub method: Option<WorkloadProbeMethod>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WorkloadProbeMethod {
    Http { path: Name, port: u16, host: Name, scheme: Name, headers: Vec<(Name, Name)> },
    Tcp { host: Name, port: u16 },
    Exec { command: Vec<Name> },
    Grpc { port: u16, service: Name },
}
