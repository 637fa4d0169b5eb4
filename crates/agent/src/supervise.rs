//! Keeps Envoy running and ends it well. Decides only: no process, no clock, no chance; all of them come in as events.
//!
//! Ways in which the agent ends:
//!
//! 1. Envoy ends by itself (or cannot be started) and is not to be started again: the agent ends with Envoy's status.
//! 2. `/quitquitquit`: Envoy is told to end at once, without draining. Status 0.
//! 3. A signal: Envoy drains its listeners, is given time (or as long as it has connections), is told to end, and is killed
//!    if it does not. Status 0.
//! 4. A second signal: Envoy is killed at once. Status 0.
//! 5. A signal or `/quitquitquit` while there is no Envoy, between two tries: nothing is left to do. Status 0.
//! 6. `/drain` and later a signal: Envoy drained in the meantime and is told to end at once. Status 0.
//! 7. Envoy ends by itself while it drains: what was wanted came sooner. Status 0.

#[cfg(test)]
mod tests;

use pilot_base::Millis;

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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    pub(crate) restart: Restart,
    pub(crate) drain: Drain,
}

/// What the end of Envoy means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Restart {
    /// The end of the agent: somebody else, such as Kubernetes, starts both again.
    Never,
    /// A new Envoy, after a pause.
    Always,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Drain {
    For(Millis),
    /// At least this long, and then for as long as there are connections.
    UntilIdle(Millis),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Start,
    /// Envoy's process is there.
    Spawned,
    /// Envoy's process is gone, or never came to be.
    Exited {
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

/// Chance, in thousandths: where between half of a pause and all of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Jitter(pub(crate) u16);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Start Envoy and answer with [`Event::Spawned`] or [`Event::Exited`].
    Spawn,
    /// Ask Envoy to take no new connections and to end the ones it has gracefully; answer with [`Event::DrainAsked`] when
    /// it took the request, refused it, or was silent for too long.
    Drain,
    /// Answer with [`Event::Counted`].
    CountConnections,
    /// Tell Envoy to end (SIGTERM).
    Stop,
    /// SIGKILL.
    Kill,
    /// End the agent.
    Exit(i32),
}

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
    Done,
}

pub(crate) struct Supervisor {
    settings: Settings,
    state: State,
    /// Ends in a row without a steady run between them.
    failures: u32,
    /// Was this Envoy asked to drain before anybody asked for its end?
    drained: bool,
}

impl Supervisor {
    pub(crate) fn new(settings: Settings) -> Self {
        Self { settings, state: State::New, failures: 0, drained: false }
    }

    /// When an [`Event::Tick`] is due though nothing happened.
    pub(crate) fn wake_at(&self) -> Option<Millis> {
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
            | State::Done => None,
        }
    }

    pub(crate) fn on(&mut self, now: Millis, event: Event) -> Option<Action> {
        match event {
            Event::Start => self.start(),
            Event::Spawned => self.spawned(now),
            Event::Exited { exit, jitter } => self.exited(now, exit, jitter),
            Event::Terminate => self.terminate(now),
            Event::DrainEarly => self.drain_early(),
            Event::Quit => self.quit(now),
            Event::DrainAsked => self.drain_asked(now),
            Event::Counted(count) => self.counted(now, count),
            Event::Tick => self.tick(now),
        }
    }

    fn go(&mut self, state: State, action: Action) -> Option<Action> {
        self.state = state;
        Some(action)
    }

    fn start(&mut self) -> Option<Action> {
        match self.state {
            State::New => self.go(State::Starting, Action::Spawn),
            _ => None,
        }
    }

    fn spawned(&mut self, now: Millis) -> Option<Action> {
        match self.state {
            State::Starting => {
                self.state = State::Running { since: now };
                self.drained = false;
                None
            }
            // It has served nobody yet, so there is nothing to drain.
            State::Unwanted => self.stop(now),
            _ => None,
        }
    }

    fn exited(&mut self, now: Millis, exit: Exit, jitter: Jitter) -> Option<Action> {
        match self.state {
            State::Starting | State::Running { .. } if self.settings.restart == Restart::Never => {
                self.go(State::Done, Action::Exit(exit.status()))
            }
            State::Starting | State::Running { .. } => {
                self.pause(now, jitter);
                None
            }
            State::New | State::Pausing { .. } | State::Done => None,
            State::Unwanted
            | State::Asking
            | State::Draining { .. }
            | State::Counting { .. }
            | State::Stopping { .. }
            | State::Killed => self.go(State::Done, Action::Exit(0)),
        }
    }

    fn pause(&mut self, now: Millis, jitter: Jitter) {
        if matches!(self.state, State::Running { since } if now.saturating_sub(since) >= STEADY) {
            self.failures = 0;
        }
        let doubled = 1_u64.checked_shl(self.failures).and_then(|factor| FIRST_PAUSE.checked_mul(factor));
        let pause = doubled.unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        // Proxies that fell together should not get up together.
        let pause = pause / 2 + pause / 2 * Millis::from(jitter.0.min(1_000)) / 1_000;
        self.state = State::Pausing { until: now + pause };
    }

    fn drain_early(&mut self) -> Option<Action> {
        if !matches!(self.state, State::Running { .. }) || self.drained {
            return None;
        }
        self.drained = true;
        Some(Action::Drain)
    }

    fn terminate(&mut self, now: Millis) -> Option<Action> {
        match self.state {
            State::New | State::Pausing { .. } => self.go(State::Done, Action::Exit(0)),
            State::Starting => {
                self.state = State::Unwanted;
                None
            }
            State::Running { .. } if self.drained => self.stop(now),
            State::Running { .. } => self.go(State::Asking, Action::Drain),
            State::Asking | State::Draining { .. } | State::Counting { .. } | State::Stopping { .. } => {
                self.go(State::Killed, Action::Kill)
            }
            State::Unwanted | State::Killed | State::Done => None,
        }
    }

    fn quit(&mut self, now: Millis) -> Option<Action> {
        match self.state {
            State::New | State::Pausing { .. } => self.go(State::Done, Action::Exit(0)),
            State::Starting => {
                self.state = State::Unwanted;
                None
            }
            State::Running { .. } | State::Asking | State::Draining { .. } | State::Counting { .. } => {
                self.stop(now)
            }
            State::Unwanted | State::Stopping { .. } | State::Killed | State::Done => None,
        }
    }

    /// Time counts from here: an Envoy that is slow to answer has no less of it.
    fn drain_asked(&mut self, now: Millis) -> Option<Action> {
        if self.state == State::Asking {
            let (Drain::For(time) | Drain::UntilIdle(time)) = self.settings.drain;
            self.state = State::Draining { until: now + time };
        }
        None
    }

    fn counted(&mut self, now: Millis, count: Count) -> Option<Action> {
        let State::Counting { next: None, failures } = self.state else { return None };
        let failures = match count {
            Count::Unknown | Count::Connections(0) => return self.stop(now),
            Count::Connections(_) => 0,
            Count::Failed if failures + 1 >= FAILED_COUNTS => return self.stop(now),
            Count::Failed => failures + 1,
        };
        self.state = State::Counting { next: Some(now + COUNT_INTERVAL), failures };
        None
    }

    fn tick(&mut self, now: Millis) -> Option<Action> {
        if self.wake_at().is_none_or(|due| due > now) {
            return None;
        }
        match (self.state, self.settings.drain) {
            (State::Pausing { .. }, _) => self.go(State::Starting, Action::Spawn),
            (State::Draining { .. }, Drain::For(_)) => self.stop(now),
            (State::Draining { .. }, Drain::UntilIdle(_)) => {
                self.go(State::Counting { next: None, failures: 0 }, Action::CountConnections)
            }
            (State::Counting { failures, .. }, _) => {
                self.go(State::Counting { next: None, failures }, Action::CountConnections)
            }
            (State::Stopping { .. }, _) => self.go(State::Killed, Action::Kill),
            _ => None,
        }
    }

    fn stop(&mut self, now: Millis) -> Option<Action> {
        self.go(State::Stopping { kill_at: now + PATIENCE }, Action::Stop)
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
