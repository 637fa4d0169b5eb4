//! Keeps Envoy running and ends it well. Decides only: no process, no clock, no chance; all of them come in as events.
//!
//! ```text
//!              Spawn            Terminate        DrainAsked          time, or no connections
//!   Starting ────────► Running ──────────► Asking ────────► Draining ─────────► Stopping ──► Killed
//!      ▲                 │  ▲                                                      │           │
//!      │ time   Exited   │  │ another has taken over (`handover`)                  └───────────┴──► Done
//!   Pausing ◄────────────┘  └─ …
//! ```
//!
//! Ways in which the agent ends:
//!
//! 1. Envoy ends by itself (or cannot be started) and is not to be started again, or was too often: the agent ends with
//!    Envoy's status.
//! 2. `/quitquitquit`: Envoy is told to end at once, without draining. Status 0.
//! 3. A signal: Envoy drains its listeners, is given time (or as long as it has connections), is told to end, and is killed
//!    if it does not. Status 0.
//! 4. A second signal: Envoy is killed at once. Status 0.
//! 5. A signal or `/quitquitquit` while there is no Envoy, between two tries: nothing is left to do. Status 0.
//! 6. `/drain` and later a signal: Envoy drained in the meantime and is told to end at once. Status 0.
//! 7. Envoy ends by itself while it drains: what was wanted came sooner. Status 0.
//!
//! While one Envoy takes over from another there are two of them; `handover` has what becomes of the second.
//! Invariant: the agent never ends while one of them runs.

mod handover;
#[cfg(test)]
mod handover_tests;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use pilot_base::Millis;

use handover::{Hurry, Other};

/// The pause after the first failure; each further one doubles it.
const FIRST_PAUSE: Millis = 200;
const LONGEST_PAUSE: Millis = 30_000;
/// An Envoy that ran this long was well: its end is not one more in a row of failures.
const STEADY: Millis = 60_000;
/// How long Envoy may take to end after it was told to.
const PATIENCE: Millis = 5_000;
const COUNT_INTERVAL: Millis = 1_000;
/// So many counts may fail in a row before nobody waits for connections any more.
const FAILED_COUNTS: u32 = 5;

/// Which Envoy: one that starts from nothing is 0, one that takes over from another has the next number.
pub(crate) type Epoch = u32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    pub(crate) restart: Restart,
    pub(crate) drain: Drain,
    pub(crate) hot_restart: HotRestart,
}

/// What the end of Envoy means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Restart {
    /// The end of the agent: somebody else, such as Kubernetes, starts both again.
    Never,
    /// A new Envoy, after a pause; so many ends in a row are the end of the agent. 0: no limit.
    UpTo(u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Drain {
    For(Millis),
    /// At least this long, and then for as long as there are connections.
    UntilIdle(Millis),
}

/// May a new Envoy take over the sockets of the one that runs?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HotRestart {
    Off,
    /// The old one has this long to finish what it began.
    On {
        parent_shutdown: Millis,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Start,
    /// Envoy's process is there.
    Spawned(Epoch),
    /// Envoy's process is gone, or never came to be.
    Exited {
        epoch: Epoch,
        exit: Exit,
        jitter: Jitter,
    },
    /// SIGTERM or SIGINT.
    Terminate,
    /// `/quitquitquit`.
    Quit,
    /// `/drain`: drain now, end when told to.
    DrainEarly,
    /// The answer to [`Action::Drain`], whatever it was.
    DrainAsked,
    /// The answer to [`Action::CountConnections`].
    Counted(Count),
    /// SIGHUP, or a file that Envoy's start depends on was changed.
    Renew,
    /// The answer to [`Action::Check`].
    Checked(Verdict),
    /// The answer to [`Action::Probe`].
    Probed(Epoch, Life),
    /// Time has passed; due at [`Supervisor::wake_at`].
    Tick,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
    NotStarted,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Count {
    Connections(u64),
    /// Envoy has no such statistic: there never was a connection, or it is not kept.
    Unknown,
    Failed,
}

/// Would an Envoy start with what is there now?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Good,
    /// It would not, or nothing is new.
    Useless,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    /// It has its configuration and takes connections.
    Live,
    NotYet,
}

/// Chance, in thousandths: where between half of a pause and all of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Jitter(pub(crate) u16);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Start Envoy and answer with [`Event::Spawned`] or [`Event::Exited`].
    Spawn(Epoch),
    /// Ask Envoy to take no new connections and to end the ones it has gracefully; answer with [`Event::DrainAsked`] when
    /// it took the request, refused it, or was silent for too long.
    Drain(Afterwards),
    /// Answer with [`Event::Counted`].
    CountConnections,
    /// Make what a new Envoy would start with and see whether it would; answer with [`Event::Checked`].
    Check,
    /// Answer with [`Event::Probed`].
    Probe(Epoch),
    /// This Envoy has taken over.
    Promote(Epoch),
    /// The Envoy that was to take over did not.
    GiveUp(Epoch),
    /// Tell Envoy to end (SIGTERM).
    Stop(Epoch),
    /// SIGKILL.
    Kill(Epoch),
    /// End the agent.
    Exit(i32),
}

/// What Envoy does when it has drained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Afterwards {
    End,
    /// It goes on with what it still has, until it is told to end.
    Stay,
}

/// What becomes of the Envoy that serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Before the start.
    New,
    /// A process was asked for.
    Starting,
    /// A process was asked for and is no longer wanted.
    Unwanted,
    Running {
        since: Millis,
    },
    /// Envoy ended; the next one comes later.
    Pausing {
        until: Millis,
    },
    /// Envoy is being asked to drain.
    Asking,
    /// Envoy takes no new work.
    Draining {
        until: Millis,
    },
    /// Envoy drains for as long as it has connections. `next` is none while a count is under way.
    Counting {
        next: Option<Millis>,
        failures: u32,
    },
    /// Envoy was told to end.
    Stopping {
        kill_at: Millis,
    },
    /// Envoy was killed; the kernel will say when it is gone.
    Killed,
    /// It is gone, and the other one was killed and is not yet.
    Clearing(Next),
    Done,
}

/// What follows when no Envoy is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    Exit(i32),
    Pause { until: Millis },
}

pub(crate) struct Supervisor {
    settings: Settings,
    state: State,
    /// Of the Envoy that serves.
    epoch: Epoch,
    other: Other,
    /// Was a new Envoy asked for while there were two?
    again: bool,
    /// Ends in a row without a steady run between them.
    failures: u32,
    /// Was this Envoy asked to drain before anybody asked for its end?
    drained: bool,
    /// What to do, in this order.
    actions: Vec<Action>,
}

impl Supervisor {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            state: State::New,
            epoch: 0,
            other: Other::Nobody,
            again: false,
            failures: 0,
            drained: false,
            actions: Vec::new(),
        }
    }

    /// When an [`Event::Tick`] is due though nothing happened.
    pub(crate) fn wake_at(&self) -> Option<Millis> {
        self.own_wake().into_iter().chain(self.other.wake_at()).min()
    }

    fn own_wake(&self) -> Option<Millis> {
        match self.state {
            State::Pausing { until } | State::Draining { until } => Some(until),
            State::Counting { next, .. } => next,
            State::Stopping { kill_at } => Some(kill_at),
            State::New
            | State::Starting
            | State::Unwanted
            | State::Running { .. }
            | State::Asking
            | State::Killed
            | State::Clearing(_)
            | State::Done => None,
        }
    }

    pub(crate) fn on(&mut self, now: Millis, event: Event) -> Vec<Action> {
        match event {
            Event::Start => self.start(),
            Event::Spawned(epoch) if epoch != self.epoch => self.other_spawned(now, epoch),
            Event::Spawned(_) => self.spawned(now),
            Event::Exited { epoch, .. } if epoch != self.epoch => self.other_exited(now, epoch),
            Event::Exited { exit, jitter, .. } => self.exited(now, exit, jitter),
            Event::Terminate => self.terminate(now),
            Event::DrainEarly => self.drain_early(),
            Event::Quit => self.quit(now),
            Event::DrainAsked => self.drain_asked(now),
            Event::Counted(count) => self.counted(now, count),
            Event::Renew => self.again |= self.settings.hot_restart != HotRestart::Off,
            Event::Checked(verdict) => self.checked(verdict),
            Event::Probed(epoch, life) => self.probed(now, epoch, life),
            Event::Tick => self.tick(now),
        }
        self.renew_if_asked();
        std::mem::take(&mut self.actions)
    }

    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    fn go(&mut self, state: State, action: Action) {
        self.state = state;
        self.act(action);
    }

    fn start(&mut self) {
        if self.state == State::New {
            self.go(State::Starting, Action::Spawn(self.epoch));
        }
    }

    fn spawned(&mut self, now: Millis) {
        match self.state {
            State::Starting => {
                self.state = State::Running { since: now };
                self.drained = false;
            }
            // It has served nobody yet, so there is nothing to drain.
            State::Unwanted => self.stop(now),
            _ => (),
        }
    }

    fn exited(&mut self, now: Millis, exit: Exit, jitter: Jitter) {
        let next = match self.state {
            State::New | State::Pausing { .. } | State::Clearing(_) | State::Done => return,
            State::Starting | State::Running { .. } if !self.other.is_hurried(Hurry::End) => {
                self.after_end(now, exit, jitter)
            }
            _ => Next::Exit(0),
        };
        if self.other.has_process() {
            // Without the one it was to take over from, or that took over from it, it is of no use.
            self.doom_other();
            self.state = State::Clearing(next);
        } else {
            self.proceed(next);
        }
    }

    fn after_end(&mut self, now: Millis, exit: Exit, jitter: Jitter) -> Next {
        let Restart::UpTo(limit) = self.settings.restart else { return Next::Exit(exit.status()) };
        if matches!(self.state, State::Running { since } if now.saturating_sub(since) >= STEADY) {
            self.failures = 0;
        }
        let doubled = 1_u64.checked_shl(self.failures).and_then(|factor| FIRST_PAUSE.checked_mul(factor));
        let pause = doubled.unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        if limit != 0 && self.failures > limit {
            return Next::Exit(exit.status());
        }
        // Proxies that fell together should not get up together.
        let pause = pause / 2 + pause / 2 * Millis::from(jitter.0.min(1_000)) / 1_000;
        Next::Pause { until: now + pause }
    }

    /// No Envoy is left.
    fn proceed(&mut self, next: Next) {
        self.epoch = 0;
        match next {
            Next::Exit(status) => {
                self.other = Other::Nobody;
                self.again = false;
                self.go(State::Done, Action::Exit(status));
            }
            Next::Pause { until } => self.state = State::Pausing { until },
        }
    }

    fn drain_early(&mut self) {
        if !matches!(self.state, State::Running { .. }) || self.drained || self.hurry(Hurry::Drain) {
            return;
        }
        self.drained = true;
        self.act(Action::Drain(Afterwards::Stay));
    }

    fn terminate(&mut self, now: Millis) {
        match self.state {
            State::New | State::Pausing { .. } => self.proceed(Next::Exit(0)),
            State::Starting => self.state = State::Unwanted,
            State::Running { .. } if self.other.is_hurried(Hurry::End) => self.kill(),
            State::Running { .. } => {
                if !self.hurry(Hurry::End) {
                    self.end(now);
                }
            }
            State::Asking | State::Draining { .. } | State::Counting { .. } | State::Stopping { .. } => {
                self.kill();
            }
            State::Clearing(_) => self.state = State::Clearing(Next::Exit(0)),
            State::Unwanted | State::Killed | State::Done => (),
        }
    }

    fn end(&mut self, now: Millis) {
        if self.drained {
            self.stop(now);
        } else {
            self.go(State::Asking, Action::Drain(Afterwards::End));
        }
    }

    fn kill(&mut self) {
        self.doom_other();
        self.go(State::Killed, Action::Kill(self.epoch));
    }

    fn quit(&mut self, now: Millis) {
        match self.state {
            State::New | State::Pausing { .. } => self.proceed(Next::Exit(0)),
            State::Starting => self.state = State::Unwanted,
            State::Running { .. } | State::Asking | State::Draining { .. } | State::Counting { .. } => {
                self.doom_other();
                self.stop(now);
            }
            State::Clearing(_) => self.state = State::Clearing(Next::Exit(0)),
            State::Unwanted | State::Stopping { .. } | State::Killed | State::Done => (),
        }
    }

    /// Time counts from here: an Envoy that is slow to answer has no less of it.
    fn drain_asked(&mut self, now: Millis) {
        if self.state == State::Asking {
            let (Drain::For(time) | Drain::UntilIdle(time)) = self.settings.drain;
            self.state = State::Draining { until: now + time };
        }
    }

    fn counted(&mut self, now: Millis, count: Count) {
        let State::Counting { next: None, failures } = self.state else { return };
        let failures = match count {
            Count::Unknown | Count::Connections(0) => return self.stop(now),
            Count::Connections(_) => 0,
            Count::Failed if failures + 1 >= FAILED_COUNTS => return self.stop(now),
            Count::Failed => failures + 1,
        };
        self.state = State::Counting { next: Some(now + COUNT_INTERVAL), failures };
    }

    fn tick(&mut self, now: Millis) {
        if self.other.wake_at().is_some_and(|due| due <= now) {
            self.other_due(now);
        }
        if self.own_wake().is_none_or(|due| due > now) {
            return;
        }
        match (self.state, self.settings.drain) {
            (State::Pausing { .. }, _) => self.go(State::Starting, Action::Spawn(self.epoch)),
            (State::Draining { .. }, Drain::For(_)) => self.stop(now),
            (State::Draining { .. }, Drain::UntilIdle(_)) => {
                self.go(State::Counting { next: None, failures: 0 }, Action::CountConnections);
            }
            (State::Counting { failures, .. }, _) => {
                self.go(State::Counting { next: None, failures }, Action::CountConnections);
            }
            (State::Stopping { .. }, _) => self.go(State::Killed, Action::Kill(self.epoch)),
            _ => (),
        }
    }

    fn stop(&mut self, now: Millis) {
        self.go(State::Stopping { kill_at: now + PATIENCE }, Action::Stop(self.epoch));
    }
}

impl Exit {
    /// The status that a shell would show.
    fn status(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
            Self::NotStarted => 1,
        }
    }
}
