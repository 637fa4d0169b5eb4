//! The second Envoy: one that is to take over, or one that was taken over from.
//!
//! ```text
//!                    Checked            Spawned            Probed: live
//!   Nobody ─► Checking ─────► Coming: Asked ─────► Booting ────────────► (it serves) Leaving ─► Nobody
//!                │                                    │ ended, or time is up            ended, or time is up
//!                └────────────► Nobody ◄──────────────┘
//! ```
//!
//! Until the new one is live the old one serves as before, so a new one that does not come up is no loss. What is asked of
//! the agent in the meantime is put off by one probe at most: the new one may have just begun to serve.

use pilot_base::Millis;

use super::{Action, Epoch, HotRestart, Life, PATIENCE, State, Supervisor, Verdict};

/// A new Envoy waits for its configuration as long as the server needs; the old one serves all that time.
const LONGEST_BOOT: Millis = 60_000;
const PROBE_INTERVAL: Millis = 200;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Other {
    Nobody,
    /// What the next one would start with is being looked at. No process yet.
    Checking,
    Coming {
        epoch: Epoch,
        step: Step,
        hurry: Option<Hurry>,
    },
    Leaving {
        epoch: Epoch,
        farewell: Farewell,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// A process was asked for.
    Asked,
    /// `probe_at` is none while a probe is under way.
    Booting { give_up_at: Millis, probe_at: Option<Millis> },
    /// It is not wanted any more: it was killed, or will be as soon as it is there.
    Doomed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Farewell {
    /// It finishes what it began. The one that took over tells it to end at that time.
    Draining {
        until: Millis,
    },
    Stopping {
        kill_at: Millis,
    },
    Killed,
}

/// What waits for the next probe.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Hurry {
    Drain,
    End,
}

impl Other {
    pub(super) fn has_process(self) -> bool {
        matches!(self, Self::Coming { .. } | Self::Leaving { .. })
    }

    pub(super) fn is_hurried(self, for_what: Hurry) -> bool {
        matches!(self, Self::Coming { hurry, .. } if hurry == Some(for_what))
    }

    pub(super) fn wake_at(self) -> Option<Millis> {
        match self {
            Self::Coming { step: Step::Booting { give_up_at, probe_at }, .. } => {
                Some(probe_at.map_or(give_up_at, |at| at.min(give_up_at)))
            }
            Self::Leaving { farewell: Farewell::Draining { until: at }, .. }
            | Self::Leaving { farewell: Farewell::Stopping { kill_at: at }, .. } => Some(at),
            _ => None,
        }
    }
}

impl Supervisor {
    /// The end of every step: a new Envoy is due as soon as nothing stands in its way.
    pub(super) fn renew_if_asked(&mut self) {
        let possible = match self.state {
            State::Running { .. } => !self.drained,
            State::Pausing { .. } => true,
            _ => false,
        };
        if self.again && possible && self.other == Other::Nobody {
            self.again = false;
            self.other = Other::Checking;
            self.act(Action::Check);
        }
    }

    pub(super) fn checked(&mut self, verdict: Verdict) {
        if self.other != Other::Checking {
            return;
        }
        self.other = Other::Nobody;
        match (verdict, self.state) {
            (Verdict::Good, State::Running { .. }) if !self.drained => {
                let epoch = self.epoch + 1;
                self.other = Other::Coming { epoch, step: Step::Asked, hurry: None };
                self.act(Action::Spawn(epoch));
            }
            // The one that is on its way was asked for with what there was before.
            (Verdict::Good, State::Starting) => self.again = true,
            _ => (),
        }
    }

    pub(super) fn other_spawned(&mut self, now: Millis, spawned: Epoch) {
        let Other::Coming { epoch, step, hurry } = self.other else { return };
        if epoch != spawned {
            return;
        }
        match step {
            Step::Asked => {
                let (give_up_at, probe_at) = (now + LONGEST_BOOT, Some(now + PROBE_INTERVAL));
                self.other = Other::Coming { epoch, step: Step::Booting { give_up_at, probe_at }, hurry };
                if hurry.is_some() {
                    // It has served nobody yet.
                    self.abandon(now);
                }
            }
            Step::Doomed => self.act(Action::Kill(epoch)),
            Step::Booting { .. } => (),
        }
    }

    pub(super) fn other_exited(&mut self, now: Millis, exited: Epoch) {
        match self.other {
            Other::Coming { epoch, hurry, .. } if epoch == exited => {
                self.other = Other::Nobody;
                self.act(Action::GiveUp(epoch));
                self.resume(now, hurry);
            }
            Other::Leaving { epoch, .. } if epoch == exited => self.other = Other::Nobody,
            _ => return,
        }
        if let State::Clearing(next) = self.state {
            self.proceed(next);
        }
    }

    pub(super) fn probed(&mut self, now: Millis, probed: Epoch, life: Life) {
        let Other::Coming { epoch, step: Step::Booting { give_up_at, .. }, hurry } = self.other else {
            return;
        };
        if epoch != probed || !matches!(self.state, State::Running { .. }) {
            return;
        }
        match (life, hurry) {
            (Life::Live, hurry) => {
                self.promote(now, epoch);
                self.resume(now, hurry);
            }
            (Life::NotYet, Some(_)) => self.abandon(now),
            (Life::NotYet, None) => {
                let step = Step::Booting { give_up_at, probe_at: Some(now + PROBE_INTERVAL) };
                self.other = Other::Coming { epoch, step, hurry };
            }
        }
    }

    fn promote(&mut self, now: Millis, epoch: Epoch) {
        let HotRestart::On { parent_shutdown } = self.settings.hot_restart else { return };
        let farewell = Farewell::Draining { until: now + parent_shutdown + PATIENCE };
        self.other = Other::Leaving { epoch: self.epoch, farewell };
        self.epoch = epoch;
        self.state = State::Running { since: now };
        self.act(Action::Promote(epoch));
    }

    pub(super) fn other_due(&mut self, now: Millis) {
        match self.other {
            Other::Coming { epoch, step: Step::Booting { give_up_at, probe_at }, hurry } => {
                if give_up_at <= now {
                    return self.abandon(now);
                }
                if probe_at.is_some() {
                    let step = Step::Booting { give_up_at, probe_at: None };
                    self.other = Other::Coming { epoch, step, hurry };
                    self.act(Action::Probe(epoch));
                }
            }
            Other::Leaving { epoch, farewell: Farewell::Draining { .. } } => {
                self.other =
                    Other::Leaving { epoch, farewell: Farewell::Stopping { kill_at: now + PATIENCE } };
                self.act(Action::Stop(epoch));
            }
            Other::Leaving { epoch, farewell: Farewell::Stopping { .. } } => {
                self.other = Other::Leaving { epoch, farewell: Farewell::Killed };
                self.act(Action::Kill(epoch));
            }
            _ => (),
        }
    }

    /// Puts something off until the one that is coming was asked once more. False: nobody is coming.
    pub(super) fn hurry(&mut self, for_what: Hurry) -> bool {
        let Other::Coming { epoch, step, hurry } = self.other else { return false };
        let step = match step {
            Step::Doomed => return false,
            Step::Booting { give_up_at, probe_at: Some(_) } => {
                self.act(Action::Probe(epoch));
                Step::Booting { give_up_at, probe_at: None }
            }
            step => step,
        };
        // Who is to end need not be drained first.
        self.other = Other::Coming { epoch, step, hurry: hurry.max(Some(for_what)) };
        true
    }

    /// The one that is coming is killed, and what waited for it is done with the old one.
    fn abandon(&mut self, now: Millis) {
        let Other::Coming { hurry, .. } = self.other else { return };
        self.doom_other();
        self.resume(now, hurry);
    }

    /// What waited, now that there is nobody to wait for.
    fn resume(&mut self, now: Millis, hurry: Option<Hurry>) {
        if !matches!(self.state, State::Running { .. }) {
            return;
        }
        match hurry {
            None => (),
            Some(Hurry::Drain) => self.drain_early(),
            Some(Hurry::End) => self.end(now),
        }
    }

    pub(super) fn doom_other(&mut self) {
        match self.other {
            Other::Nobody | Other::Checking => (),
            Other::Coming { epoch, step, .. } => {
                if matches!(step, Step::Booting { .. }) {
                    self.act(Action::Kill(epoch));
                }
                self.other = Other::Coming { epoch, step: Step::Doomed, hurry: None };
            }
            Other::Leaving { epoch, farewell } => {
                if farewell != Farewell::Killed {
                    self.act(Action::Kill(epoch));
                }
                self.other = Other::Leaving { epoch, farewell: Farewell::Killed };
            }
        }
    }
}
