//! The way between Envoy and the control plane.
//!
//! ```text
//!   Envoy ──► <configPath>/XDS ──► one connection ──► control plane
//!                  │  ▲                 │
//!                  │  └─── bytes as they came
//!                  └─ after the first request for listeners also: name table, dynamic proxy configuration, health
//! ```
//!
//! Each stream of a client has one of its own to the control plane, and when the one ends so does the other: Envoy then
//! begins anew, at whichever replica. Messages are not decoded; a few fields tell whose they are.

mod errands;
mod snapshot;
mod stream;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use crate::backoff::{Backoff, Chance};
use crate::grpc::{self, Asked, Code, Socket, SocketError, Status, Upstream};
use crate::health::HealthEvent;
use crate::metrics::Metrics;
use crate::wire::Protocol;
pub(crate) use errands::Errands;
pub(crate) use snapshot::Keeper;

/// Under `configPath`, as Istio's bootstrap has it.
const SOCKET: &str = "XDS";
const ADVICE: &str = "another place can be set as configPath in PROXY_CONFIG";
/// A control plane that is down is not asked more often than every ten seconds, however often Envoy does.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What all streams share.
pub(crate) struct Relay {
    pub(crate) upstream: Upstream,
    pub(crate) errands: Errands,
    /// What the workload's probes said last.
    pub(crate) health: watch::Receiver<Option<HealthEvent>>,
    pub(crate) metrics: Arc<Metrics>,
    /// Keeps what Envoy has, if that is wanted.
    pub(crate) keeper: Option<Arc<Keeper>>,
    backoff: Mutex<Backoff>,
}

/// Where the name table and more roots of the mesh go, as far as somebody wants them.
#[derive(Clone, Default)]
pub(crate) struct Receivers {
    pub(crate) names: Option<watch::Sender<Option<Bytes>>>,
    pub(crate) roots: Option<watch::Sender<Vec<String>>>,
}

impl Relay {
    pub(crate) fn new(
        upstream: Upstream,
        receivers: Receivers,
        health: watch::Receiver<Option<HealthEvent>>,
        metrics: Arc<Metrics>,
        keeper: Option<Arc<Keeper>>,
    ) -> Self {
        let backoff = Mutex::new(Backoff::new(FIRST_PAUSE, LONGEST_PAUSE));
        Self { upstream, errands: Errands::new(receivers), health, metrics, keeper, backoff }
    }

    /// Serves until it is dropped.
    pub(crate) async fn serve(self, socket: Socket) {
        let relay = Arc::new(self);
        grpc::serve(socket, move |asked| answer(Arc::clone(&relay), asked)).await;
    }

    fn pause(&self) -> Duration {
        self.with_backoff(|backoff| backoff.pause(Chance::draw()))
    }

    fn with_backoff<T>(&self, act: impl FnOnce(&mut Backoff) -> T) -> T {
        // Nothing that could panic happens under this lock.
        act(&mut self.backoff.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(crate) fn socket_path(config_path: &Path) -> PathBuf {
    config_path.join(SOCKET)
}

pub(crate) fn bind(config_path: &Path) -> Result<Socket, SocketError> {
    Socket::bind(&socket_path(config_path), ADVICE)
}

/// Keeps the last that was said about the workload, for streams that begin later.
pub(crate) async fn remember(
    mut events: mpsc::Receiver<HealthEvent>,
    health: watch::Sender<Option<HealthEvent>>,
) {
    while let Some(event) = events.recv().await {
        health.send_replace(Some(event));
    }
    // The probes ended or there are none; what they said last stays true for streams to come.
    std::future::pending::<()>().await;
}

async fn answer(relay: Arc<Relay>, Asked { path, body, answer }: Asked) {
    let Some(protocol) = Protocol::of_path(&path) else {
        let message = format!("the agent relays aggregated discovery only, not {path}");
        return answer.end(Status::new(Code::Unimplemented, message)).await;
    };
    let status = stream::run(&relay, protocol, body, &answer).await;
    answer.end(status).await;
}
