use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::http_client::{HttpError, Question};

const CLUSTERS: &str = "cluster_manager.cds.update_success";
const CLUSTERS_REFUSED: &str = "cluster_manager.cds.update_rejected";
const LISTENERS: &str = "listener_manager.lds.update_success";
const LISTENERS_REFUSED: &str = "listener_manager.lds.update_rejected";
const STATE: &str = "server.state";
const WORKERS: &str = "listener_manager.workers_started";
const FILTER: &str = "^(server.state|listener_manager.workers_started|(cluster_manager.cds|listener_manager.lds).update_(success|rejected))$";
/// As long as the probes of Istio's charts wait.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Why a proxy is not ready.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotReady {
    /// The agent is ending.
    #[error("the proxy is terminating")]
    Terminating,
    /// Envoy's administrator does not answer.
    #[error("Envoy does not tell its state: {0}")]
    Silent(#[from] HttpError),
    /// The server has sent nothing yet.
    #[error("no configuration from the xDS server yet, is it running? ({0})")]
    Nothing(Updates),
    /// The server sent something that Envoy cannot use.
    #[error("configuration from the xDS server was rejected ({0})")]
    Rejected(Updates),
    /// Only one of clusters and listeners is there.
    #[error("configuration from the xDS server is not complete yet ({0})")]
    Partial(Updates),
    /// Envoy has its configuration and is not done with it.
    #[error("Envoy is not live, its state is {0}")]
    NotLive(&'static str),
    #[error("Envoy's workers have not started yet")]
    NoWorkers,
    /// A client of gRPC could not start yet.
    #[error("there is no gRPC bootstrap in {} yet", .0.display())]
    NoFile(PathBuf),
    /// Names would be answered with failures.
    #[error("no table of names from the xDS server yet")]
    NoNames,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Updates {
    clusters: u64,
    clusters_rejected: u64,
    listeners: u64,
    listeners_rejected: u64,
}

impl std::fmt::Display for Updates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { clusters, clusters_rejected, listeners, listeners_rejected } = self;
        write!(f, "cds updates: {clusters} successful, {clusters_rejected} rejected; ")?;
        write!(f, "lds updates: {listeners} successful, {listeners_rejected} rejected")
    }
}

/// What must be there besides a working Envoy.
#[derive(Clone, Debug)]
pub(crate) enum Condition {
    /// The bootstrap for clients of gRPC.
    GrpcBootstrap(PathBuf),
    /// A name table, where the agent answers DNS queries.
    Names(watch::Receiver<Option<Bytes>>),
}

impl Condition {
    fn check(&self) -> Result<(), NotReady> {
        match self {
            Self::GrpcBootstrap(file) if !file.exists() => Err(NotReady::NoFile(file.clone())),
            Self::Names(names) if names.borrow().is_none() => Err(NotReady::NoNames),
            Self::GrpcBootstrap(_) | Self::Names(_) => Ok(()),
        }
    }
}

/// Whether the proxy can serve. An Envoy that was ready once stays so until it is replaced: probes come through Envoy, so
/// one that is stuck fails them by itself.
pub(crate) struct Readiness {
    /// None: there is no Envoy to ask.
    admin_port: Option<u16>,
    conditions: Vec<Condition>,
    started: Instant,
    /// Which Envoy runs, and which was last found ready. The first is 1, so that none is ready at the start.
    envoy: AtomicU64,
    ready: AtomicU64,
    terminating: AtomicBool,
}

impl Readiness {
    pub(crate) fn new(admin_port: Option<u16>, conditions: Vec<Condition>) -> Self {
        Self {
            admin_port,
            conditions,
            started: Instant::now(),
            envoy: AtomicU64::new(1),
            ready: AtomicU64::new(0),
            terminating: AtomicBool::new(false),
        }
    }

    /// Another Envoy was started.
    pub(crate) fn envoy_started(&self) {
        self.envoy.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn terminating(&self) {
        self.terminating.store(true, Ordering::SeqCst);
    }

    /// Also, the first time that all is well, how long that took.
    pub(crate) async fn check(&self) -> Result<Option<Duration>, NotReady> {
        if self.terminating.load(Ordering::SeqCst) {
            return Err(NotReady::Terminating);
        }
        // Taken before Envoy is asked: what an old one answers must not count for a new one.
        let envoy = self.envoy.load(Ordering::SeqCst);
        if self.ready.load(Ordering::SeqCst) == envoy {
            return Ok(None);
        }
        if let Some(port) = self.admin_port {
            let url = format!("http://localhost:{port}/stats?usedonly&filter={}", escaped(FILTER));
            judge(&Question::get(url, TIMEOUT).ask().await?.body)?;
        }
        self.conditions.iter().try_for_each(Condition::check)?;
        let before = self.ready.swap(envoy, Ordering::SeqCst);
        Ok((before == 0).then(|| self.started.elapsed()))
    }
}

fn escaped(filter: &str) -> String {
    filter.replace('^', "%5E").replace('|', "%7C")
}

fn judge(statistics: &str) -> Result<(), NotReady> {
    let pairs = statistics.lines().filter_map(|line| line.split_once(':'));
    let values: BTreeMap<&str, u64> =
        pairs.filter_map(|(name, value)| Some((name, value.trim().parse().ok()?))).collect();
    let value = |name: &str| values.get(name).copied().unwrap_or(0);
    let updates = Updates {
        clusters: value(CLUSTERS),
        clusters_rejected: value(CLUSTERS_REFUSED),
        listeners: value(LISTENERS),
        listeners_rejected: value(LISTENERS_REFUSED),
    };
    let rejected = updates.clusters_rejected + updates.listeners_rejected > 0;
    match (updates.clusters > 0, updates.listeners > 0) {
        (true, true) => (),
        _ if rejected => return Err(NotReady::Rejected(updates)),
        (false, false) => return Err(NotReady::Nothing(updates)),
        _ => return Err(NotReady::Partial(updates)),
    }
    match values.get(STATE) {
        Some(0) => (),
        Some(1) => return Err(NotReady::NotLive("DRAINING")),
        Some(2) => return Err(NotReady::NotLive("PRE_INITIALIZING")),
        Some(3) => return Err(NotReady::NotLive("INITIALIZING")),
        _ => return Err(NotReady::NotLive("UNKNOWN")),
    }
    if value(WORKERS) == 1 { Ok(()) } else { Err(NotReady::NoWorkers) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::judge;

    pub(crate) const READY: &str = "cluster_manager.cds.update_success: 1\nlistener_manager.lds.update_success: 2\nlistener_manager.workers_started: 1\nserver.state: 0\n";

    #[test]
    fn ready_is_configured_live_and_working() {
        assert!(judge(READY).is_ok());
        let but = |line: &str, instead: &str| judge(&READY.replace(line, instead)).unwrap_err().to_string();
        let counts = "cds updates: 0 successful, 0 rejected; lds updates: 0 successful, 0 rejected";
        assert_eq!(
            judge("").unwrap_err().to_string(),
            format!("no configuration from the xDS server yet, is it running? ({counts})")
        );
        assert!(but("cds.update_success", "cds.update_rejected").contains("was rejected"));
        assert!(but("lds.update_success: 2", "x: 0").contains("not complete"));
        assert!(but("server.state: 0", "server.state: 2").contains("PRE_INITIALIZING"));
        assert!(but("server.state: 0\n", "").contains("UNKNOWN"));
        assert!(but("workers_started: 1", "workers_started: 0").contains("workers"));
    }
}
