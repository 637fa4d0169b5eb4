use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use pilot_base::Millis;
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::connections;
use crate::http_client::Question;
use crate::node::ProxyType;
use crate::process;
use crate::ready::Readiness;
use crate::setup::Envoy;
use crate::status::Order;
use crate::supervise::{Action, Count, Event, Exit, Jitter, Settings, Supervisor};

const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// The operating system will not tell of signals.
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
}

/// Does what the supervisor decides and tells it what happens.
struct Runner {
    envoy: Envoy,
    supervisor: Supervisor,
    readiness: Arc<Readiness>,
    child: Option<Child>,
    /// Calls to Envoy's administrator that are under way.
    calls: JoinSet<Event>,
    started: Instant,
}

/// What ends the agent from outside.
struct Orders {
    terminate: Signal,
    interrupt: Signal,
    told: mpsc::Receiver<Order>,
}

/// Runs Envoy until the agent is to end, and says with which status. Must run on the thread that the process began with:
/// Envoy dies with the thread that starts it.
pub(crate) async fn run(
    envoy: Envoy,
    settings: Settings,
    readiness: Arc<Readiness>,
    told: mpsc::Receiver<Order>,
) -> Result<i32, RunError> {
    let mut orders = Orders {
        terminate: signal(SignalKind::terminate()).map_err(RunError::Signals)?,
        interrupt: signal(SignalKind::interrupt()).map_err(RunError::Signals)?,
        told,
    };
    let mut runner = Runner {
        envoy,
        supervisor: Supervisor::new(settings),
        readiness,
        child: None,
        calls: JoinSet::new(),
        started: Instant::now(),
    };
    let mut event = Event::Start;
    loop {
        if let Some(status) = runner.handle(event) {
            return Ok(status);
        }
        event = runner.next(&mut orders).await;
    }
}

impl Runner {
    fn now(&self) -> Millis {
        Millis::try_from(self.started.elapsed().as_millis()).expect("milliseconds of a process fit")
    }

    async fn next(&mut self, orders: &mut Orders) -> Event {
        let wake = self.supervisor.wake_at().map(|at| self.started + Duration::from_millis(at));
        tokio::select! {
            status = ended(&mut self.child) => self.ended(status),
            _ = orders.terminate.recv() => Event::Terminate,
            _ = orders.interrupt.recv() => Event::Terminate,
            Some(order) = orders.told.recv() => match order {
                Order::Quit => Event::Quit,
                Order::Drain => Event::DrainEarly,
            },
            Some(done) = self.calls.join_next() => done.expect("calls neither panic nor are they cut off"),
            () = sleep_or_forever(wake) => Event::Tick,
        }
    }

    /// The status to end with, if it is time to.
    fn handle(&mut self, event: Event) -> Option<i32> {
        if matches!(event, Event::Terminate | Event::Quit) {
            tracing::info!("told to end");
            self.readiness.terminating();
        }
        let mut next = Some(event);
        while let Some(event) = next.take() {
            match self.supervisor.on(self.now(), event) {
                None => (),
                Some(Action::Spawn) => next = Some(self.spawn()),
                Some(Action::Drain) => self.drain(),
                Some(Action::CountConnections) => self.count_connections(),
                Some(Action::Stop) => self.stop(),
                Some(Action::Kill) => self.kill(),
                Some(Action::Exit(status)) => return Some(status),
            }
        }
        if let Some(at) = self.supervisor.wake_at() {
            tracing::debug!(millis = at.saturating_sub(self.now()), "next step");
        }
        None
    }

    fn spawn(&mut self) -> Event {
        let Envoy { binary, args, .. } = &self.envoy;
        let mut command = Command::new(binary);
        // In a group of its own, so that ^C in a terminal reaches the agent alone, which then drains.
        command.args(args).kill_on_drop(true).process_group(0);
        process::die_with_parent(&mut command);
        match command.spawn() {
            Ok(child) => {
                tracing::info!(pid = child.id(), binary = %binary.display(), args = args.join(" "), "Envoy started");
                self.child = Some(child);
                self.readiness.envoy_started();
                Event::Spawned
            }
            Err(error) => {
                tracing::error!(
                    %error,
                    binary = %binary.display(),
                    "cannot start Envoy; its path can be set as binaryPath in PROXY_CONFIG"
                );
                Event::Exited { exit: Exit::NotStarted, jitter: jitter() }
            }
        }
    }

    fn ended(&mut self, status: io::Result<ExitStatus>) -> Event {
        self.child = None;
        let exit = match status {
            Ok(status) => {
                status.code().map_or_else(|| Exit::Signal(status.signal().unwrap_or(0)), Exit::Code)
            }
            Err(error) => {
                tracing::error!(%error, "cannot tell how Envoy ended");
                Exit::Code(1)
            }
        };
        match exit {
            Exit::Code(0) => tracing::info!("Envoy ended"),
            Exit::Signal(libc::SIGKILL) => {
                tracing::warn!("Envoy was killed; if nobody did, it may have used more memory than it may");
            }
            exit => tracing::warn!(?exit, "Envoy ended"),
        }
        Event::Exited { exit, jitter: jitter() }
    }

    fn drain(&mut self) {
        let scope = match self.envoy.proxy_type {
            // A workload goes on calling others while it finishes its work.
            ProxyType::Sidecar => "inboundonly&graceful",
            ProxyType::Router => "graceful",
        };
        let question = Question {
            method: Method::POST,
            url: format!("http://localhost:{}/drain_listeners?{scope}", self.envoy.admin_port),
            body: String::new(),
            timeout: DRAIN_TIMEOUT,
        };
        tracing::info!("draining Envoy");
        self.calls.spawn(async {
            match question.ask().await {
                Ok(answer) if answer.status.is_success() => (),
                Ok(answer) => tracing::warn!(status = answer.status.as_u16(), "Envoy does not drain"),
                Err(error) => tracing::warn!(%error, "cannot ask Envoy to drain"),
            }
            Event::DrainAsked
        });
    }

    fn count_connections(&mut self) {
        let Envoy { admin_port, own_ports, .. } = self.envoy;
        self.calls.spawn(async move {
            let count = connections::count(admin_port, &own_ports).await.unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot count connections");
                Count::Failed
            });
            tracing::info!(?count, "connections while draining");
            Event::Counted(count)
        });
    }

    fn stop(&mut self) {
        tracing::info!("stopping Envoy");
        if let Some(pid) = self.child.as_ref().and_then(Child::id)
            && let Err(error) = process::stop(pid)
        {
            tracing::warn!(%error, "cannot stop Envoy");
        }
    }

    fn kill(&mut self) {
        tracing::warn!("killing Envoy");
        if let Some(child) = &mut self.child
            && let Err(error) = child.start_kill()
        {
            tracing::warn!(%error, "cannot kill Envoy");
        }
    }
}

async fn ended(child: &mut Option<Child>) -> io::Result<ExitStatus> {
    match child {
        Some(child) => child.wait().await,
        None => std::future::pending().await,
    }
}

async fn sleep_or_forever(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// The standard library's only source of chance is the seed of its maps.
fn jitter() -> Jitter {
    let dice = RandomState::new().build_hasher().finish() % 1_001;
    Jitter(u16::try_from(dice).expect("the rest of a division by 1001 fits"))
}
