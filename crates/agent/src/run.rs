mod renewal;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::ExitStatus;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::Method;
use pilot_base::Millis;
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::connections;
use crate::hot_restart::{BaseError, BaseId};
use crate::http_client::Question;
use crate::life;
use crate::node::ProxyType;
use crate::ready::Readiness;
use crate::setup::Envoy;
use crate::status::Order;
use crate::supervise::{
    Action, Afterwards, Count, Epoch, Event, Exit, HotRestart, Jitter, Settings, Supervisor, Verdict,
};
use crate::{process, taken_ports};
pub(crate) use renewal::Plan;
use renewal::{Proposal, Watched, Wish, propose};

const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// The operating system will not tell of signals.
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Base(#[from] BaseError),
}

/// Does what the supervisor decides and tells it what happens.
struct Runner {
    envoy: Envoy,
    /// How the next one is to be started, if not like this one.
    proposal: Option<Proposal>,
    plan: Plan,
    wish: Wish,
    /// None: no Envoy takes over from another.
    base: Option<BaseId>,
    supervisor: Supervisor,
    readiness: Arc<Readiness>,
    children: BTreeMap<Epoch, Child>,
    /// What is asked of others and not answered yet.
    calls: JoinSet<Answer>,
    started: Instant,
}

/// What comes of a call.
enum Answer {
    Event(Event),
    Proposed(anyhow::Result<Option<Proposal>>),
}

/// What is asked of the agent from outside.
struct Orders {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Option<Signal>,
    files: Option<Watched>,
    told: mpsc::Receiver<Order>,
}

impl Orders {
    fn new(told: mpsc::Receiver<Order>, files: Option<Watched>) -> Result<Self, RunError> {
        let listen = |kind: SignalKind| signal(kind).map_err(RunError::Signals);
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: files.is_some().then(|| listen(SignalKind::hangup())).transpose()?,
            files,
            told,
        })
    }
}

/// Waits until the agent is to end, where there is no Envoy to look after.
pub(crate) async fn without_envoy(
    readiness: Arc<Readiness>,
    told: mpsc::Receiver<Order>,
) -> Result<i32, RunError> {
    let mut orders = Orders::new(told, None)?;
    loop {
        tokio::select! {
            _ = orders.terminate.recv() => break,
            _ = orders.interrupt.recv() => break,
            Some(order) = orders.told.recv() => {
                if order == Order::Quit {
                    break;
                }
            }
        }
    }
    tracing::info!("told to end");
    readiness.terminating();
    Ok(0)
}

/// Runs Envoy until the agent is to end, and says with which status. Must run on the thread that the process began with:
/// Envoy dies with the thread that starts it.
pub(crate) async fn run(
    (envoy, plan): (Envoy, Plan),
    settings: Settings,
    readiness: Arc<Readiness>,
    told: mpsc::Receiver<Order>,
) -> Result<i32, RunError> {
    let hot = settings.hot_restart != HotRestart::Off;
    let mut orders = Orders::new(told, hot.then(|| Watched::new(envoy.inputs.clone())))?;
    let base = hot.then(|| BaseId::in_directory(&envoy.directory));
    if let Some(base) = &base {
        base.clear();
    }
    let mut runner = Runner {
        envoy,
        proposal: None,
        plan,
        wish: Wish::Files,
        base,
        supervisor: Supervisor::new(settings),
        readiness,
        children: BTreeMap::new(),
        calls: JoinSet::new(),
        started: Instant::now(),
    };
    let mut event = Event::Start;
    loop {
        if let Some(status) = runner.handle(event) {
            if let Some(base) = &runner.base {
                base.clear();
            }
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
            (epoch, status) = ended(&mut self.children) => self.ended(epoch, status),
            _ = orders.terminate.recv() => Event::Terminate,
            _ = orders.interrupt.recv() => Event::Terminate,
            () = hung_up(&mut orders.hang_up) => self.renew(Wish::Signal),
            () = changed(&mut orders.files) => self.renew(Wish::Files),
            Some(order) = orders.told.recv() => match order {
                Order::Quit => Event::Quit,
                Order::Drain => Event::DrainEarly,
            },
            Some(done) = self.calls.join_next() => {
                self.answered(done.expect("calls neither panic nor are they cut off"))
            }
            () = sleep_or_forever(wake) => Event::Tick,
        }
    }

    fn answered(&mut self, answer: Answer) -> Event {
        match answer {
            Answer::Event(event) => event,
            Answer::Proposed(Ok(Some(proposal))) => {
                self.proposal = Some(proposal);
                Event::Checked(Verdict::Good)
            }
            Answer::Proposed(Ok(None)) => {
                tracing::info!("files were touched, and Envoy would start as before: nothing to do");
                Event::Checked(Verdict::Useless)
            }
            Answer::Proposed(Err(error)) => {
                let reason = format!("{error:#}");
                tracing::error!(reason, "no hot restart, the running Envoy goes on as it is");
                Event::Checked(Verdict::Useless)
            }
        }
    }

    fn renew(&mut self, wish: Wish) -> Event {
        tracing::info!(because_of = ?wish, "hot restart asked for");
        if wish == Wish::Signal {
            self.wish = wish;
        }
        Event::Renew
    }

    /// The status to end with, if it is time to.
    fn handle(&mut self, event: Event) -> Option<i32> {
        if matches!(event, Event::Terminate | Event::Quit) {
            tracing::info!("told to end");
            self.readiness.terminating();
        }
        let mut next = vec![event];
        while let Some(event) = next.pop() {
            for action in self.supervisor.on(self.now(), event) {
                match action {
                    Action::Spawn(epoch) => next.push(self.spawn(epoch)),
                    Action::Drain(afterwards) => self.drain(afterwards),
                    Action::CountConnections => self.count_connections(),
                    Action::Check => self.check(),
                    Action::Probe(epoch) => self.probe(epoch),
                    Action::Promote(epoch) => self.promote(epoch),
                    Action::GiveUp(epoch) => self.give_up(epoch),
                    Action::Stop(epoch) => self.stop(epoch),
                    Action::Kill(epoch) => self.kill(epoch),
                    Action::Exit(status) => return Some(status),
                }
            }
        }
        if let Some(at) = self.supervisor.wake_at() {
            tracing::debug!(millis = at.saturating_sub(self.now()), "next step");
        }
        None
    }

    fn spawn(&mut self, epoch: Epoch) -> Event {
        let not_started = || Event::Exited { epoch, exit: Exit::NotStarted, jitter: jitter() };
        if epoch == 0 {
            if let Some(base) = &self.base {
                base.clear();
            }
            if let Some(proposal) = self.proposal.take() {
                self.envoy = proposal.adopt();
            }
        }
        let mut args = match &self.proposal {
            Some(proposal) => proposal.envoy.command_line(proposal.file()),
            None => self.envoy.command_line(&self.envoy.file),
        };
        match self.base.as_ref().map_or(Ok(Vec::new()), |base| base.args(epoch)) {
            Ok(more) => args.extend(more),
            Err(error) => {
                tracing::error!(%error, "cannot start an Envoy that takes over");
                return not_started();
            }
        }
        let binary = &self.proposal.as_ref().map_or(&self.envoy, |proposal| &proposal.envoy).binary;
        let mut command = Command::new(binary);
        // In a group of its own, so that ^C in a terminal reaches the agent alone, which then drains.
        command.args(&args).kill_on_drop(true).process_group(0);
        process::die_with_parent(&mut command);
        match command.spawn() {
            Ok(child) => {
                tracing::info!(pid = child.id(), epoch, binary = %binary.display(), args = args.join(" "), "Envoy started");
                self.children.insert(epoch, child);
                if epoch == 0 {
                    self.readiness.envoy_started();
                }
                Event::Spawned(epoch)
            }
            Err(error) => {
                tracing::error!(
                    %error,
                    binary = %binary.display(),
                    "cannot start Envoy; its path can be set as binaryPath in PROXY_CONFIG"
                );
                not_started()
            }
        }
    }

    fn ended(&mut self, epoch: Epoch, status: io::Result<ExitStatus>) -> Event {
        self.children.remove(&epoch);
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
            Exit::Code(0) => tracing::info!(epoch, "Envoy ended"),
            Exit::Signal(libc::SIGKILL) => {
                tracing::warn!(
                    epoch,
                    "Envoy was killed; if nobody did, it may have used more memory than it may"
                );
            }
            exit => {
                tracing::warn!(epoch, ?exit, "Envoy ended");
                if self.children.is_empty() && matches!(exit, Exit::Code(_)) {
                    for reason in taken_ports::find(&self.envoy) {
                        tracing::error!("{reason}");
                    }
                }
            }
        }
        Event::Exited { epoch, exit, jitter: jitter() }
    }

    fn drain(&mut self, afterwards: Afterwards) {
        let scope = match self.envoy.proxy_type {
            // A workload goes on calling others while it finishes its work.
            ProxyType::Sidecar => "inboundonly&graceful",
            ProxyType::Router => "graceful",
        };
        let stay = match afterwards {
            Afterwards::End => "",
            Afterwards::Stay => "&skip_exit",
        };
        let question = Question {
            method: Method::POST,
            url: format!("http://localhost:{}/drain_listeners?{scope}{stay}", self.envoy.admin_port),
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
            Answer::Event(Event::DrainAsked)
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
            Answer::Event(Event::Counted(count))
        });
    }

    fn check(&mut self) {
        let (plan, running) = (Arc::clone(&self.plan), self.envoy.clone());
        let wish = std::mem::replace(&mut self.wish, Wish::Files);
        self.calls.spawn(async move { Answer::Proposed(propose(plan, running, wish).await) });
    }

    fn probe(&mut self, epoch: Epoch) {
        let port = self.proposal.as_ref().map_or(&self.envoy, |proposal| &proposal.envoy).admin_port;
        self.calls.spawn(async move { Answer::Event(Event::Probed(epoch, life::ask(port, epoch).await)) });
    }

    fn promote(&mut self, epoch: Epoch) {
        if let Some(proposal) = self.proposal.take() {
            self.envoy = proposal.adopt();
        }
        self.readiness.envoy_started();
        tracing::info!(epoch, "hot restart done: the new Envoy serves, the old one finishes what it began");
    }

    fn give_up(&mut self, epoch: Epoch) {
        self.proposal = None;
        if let Some(base) = &self.base {
            base.unmark();
        }
        tracing::error!(
            epoch,
            "hot restart failed: the new Envoy did not come up; its own messages say why. The old one goes on serving, though its administrator may be gone"
        );
    }

    fn stop(&mut self, epoch: Epoch) {
        tracing::info!(epoch, "stopping Envoy");
        if let Some(pid) = self.children.get(&epoch).and_then(Child::id)
            && let Err(error) = process::stop(pid)
        {
            tracing::warn!(%error, "cannot stop Envoy");
        }
    }

    fn kill(&mut self, epoch: Epoch) {
        tracing::warn!(epoch, "killing Envoy");
        if let Some(child) = self.children.get_mut(&epoch)
            && let Err(error) = child.start_kill()
        {
            tracing::warn!(%error, "cannot kill Envoy");
        }
    }
}

/// Whichever ends first.
async fn ended(children: &mut BTreeMap<Epoch, Child>) -> (Epoch, io::Result<ExitStatus>) {
    poll_fn(|context| {
        for (epoch, child) in children.iter_mut() {
            if let Poll::Ready(status) = pin!(child.wait()).poll(context) {
                return Poll::Ready((*epoch, status));
            }
        }
        Poll::Pending
    })
    .await
}

async fn hung_up(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

async fn changed(files: &mut Option<Watched>) {
    match files {
        Some(files) => files.changed().await,
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
