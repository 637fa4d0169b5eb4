//! What one phase came to, and how it is measured.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::fleet::{Counts, Fleet};
use crate::proc::{Cpu, Machine, Process};
use crate::server::Server;
use crate::shape::{Phase, Protocol, Shape};

/// One line of the result.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Measure {
    pub shape: String,
    pub server: String,
    pub phase: Phase,
    /// What tells phases of the same name apart: a rate, a direction.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    pub services: usize,
    pub proxies: usize,
    pub protocol: Protocol,
    /// How many changes the figures of a single one were taken from.
    pub changes: usize,
    /// Processor time of the server, of each change if there were several. Nothing if it runs on another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<f64>,
    /// Until the last proxy had it; of several changes the median.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
    /// Changes a second that were really made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub achieved_rate: Option<f64>,
    /// The most memory that the server had, or in `start` what it has when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<f64>,
    /// By all proxies.
    pub received_mb: f64,
    pub resources: u64,
    /// Proxies that did not get everything.
    pub missing: usize,
    pub refused: u64,
    pub lost: u64,
    /// Processor time of this tool, and of everybody else on the machine.
    pub tool_cpu_ms: f64,
    pub other_cpu_ms: f64,
    pub stolen_ms: f64,
}

/// Who is measured doing what.
#[derive(Clone)]
pub struct Subject {
    pub shape_name: String,
    pub shape: Shape,
    pub server: String,
}

/// Looks at the clocks before a phase, and again after it.
pub(crate) struct Meter {
    cpu: Cpu,
    own: Process,
    own_cpu: Cpu,
    machine: Machine,
    counts: Counts,
}

const MB: f64 = 1_048_576.0;

impl Meter {
    pub(crate) fn start(process: Option<&mut Process>, fleet: Option<&Fleet>) -> anyhow::Result<Self> {
        let mut own = Process::new(std::process::id());
        Ok(Self {
            own_cpu: own.cpu()?,
            own,
            machine: Machine::now(),
            counts: fleet.map(|fleet| fleet.shared.counters.read()).unwrap_or_default(),
            cpu: match process {
                None => Cpu::default(),
                Some(process) => {
                    process.forget_peak()?;
                    process.cpu()?
                }
            },
        })
    }

    /// A line without delays.
    pub(crate) fn stop(
        mut self,
        subject: &Subject,
        phase: Phase,
        mut process: Option<&mut Process>,
        fleet: &Fleet,
    ) -> anyhow::Result<Measure> {
        let cpu = process.as_mut().map(|process| process.cpu()).transpose()?;
        let cpu = cpu.map(|cpu| cpu.since(self.cpu));
        let peak = process.map(|process| process.peak()).transpose()?;
        let own = self.own.cpu()?.since(self.own_cpu);
        let machine = Machine::now();
        let busy = machine.busy.saturating_sub(self.machine.busy);
        let counts = fleet.shared.counters.read().since(self.counts);
        Ok(Measure {
            cpu_ms: cpu.map(ms),
            memory_mb: peak.map(|peak| peak as f64 / MB),
            received_mb: counts.received as f64 / MB,
            resources: counts.resources,
            refused: counts.refused,
            lost: counts.lost,
            tool_cpu_ms: ms(own),
            other_cpu_ms: ms(busy.saturating_sub(cpu.unwrap_or_default() + own)),
            stolen_ms: ms(machine.stolen.saturating_sub(self.machine.stolen)),
            ..Measure::empty(subject, phase)
        })
    }
}

impl Measure {
    fn empty(subject: &Subject, phase: Phase) -> Self {
        Self {
            shape: subject.shape_name.clone(),
            server: subject.server.clone(),
            phase,
            detail: String::new(),
            services: subject.shape.services,
            proxies: subject.shape.proxies,
            protocol: subject.shape.protocol,
            changes: 1,
            cpu_ms: None,
            last_ms: None,
            p50_ms: None,
            p99_ms: None,
            achieved_rate: None,
            memory_mb: None,
            received_mb: 0.0,
            resources: 0,
            missing: 0,
            refused: 0,
            lost: 0,
            tool_cpu_ms: 0.0,
            other_cpu_ms: 0.0,
            stolen_ms: 0.0,
        }
    }

    /// How long a server took to start, what that cost, and what it needs when nothing happens.
    pub fn of_start(subject: &Subject, server: &Server) -> anyhow::Result<Self> {
        Ok(Self {
            cpu_ms: Some(ms(server.start_cpu)),
            last_ms: Some(ms(server.ready_after)),
            memory_mb: Some(server.process.memory()? as f64 / MB),
            proxies: 0,
            ..Self::empty(subject, Phase::Start)
        })
    }

    /// With delays in microseconds, in order.
    #[must_use]
    pub fn with_delays(self, delays: &[u32]) -> Self {
        let at = |share: f64| {
            let index = ((delays.len() as f64 * share).ceil() as usize).saturating_sub(1);
            delays.get(index).map(|delay| f64::from(*delay) / 1_000.0)
        };
        Self { p50_ms: at(0.5), p99_ms: at(0.99), last_ms: at(1.0), ..self }
    }
}

pub(crate) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

/// The one in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
