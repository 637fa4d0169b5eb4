use super::{
    Action, Afterwards, Drain, Event, Exit, HotRestart, Jitter, Life, Restart, Settings, Supervisor, Verdict,
};

const SETTINGS: Settings = Settings {
    restart: Restart::UpTo(0),
    drain: Drain::For(5_000),
    hot_restart: HotRestart::On { parent_shutdown: 60_000 },
};
const GOOD: Event = Event::Checked(Verdict::Good);
const LIVE: Event = Event::Probed(1, Life::Live);
const NOT_YET: Event = Event::Probed(1, Life::NotYet);

fn gone(epoch: u32) -> Event {
    Event::Exited { epoch, exit: Exit::Code(3), jitter: Jitter(1_000) }
}

struct Run {
    supervisor: Supervisor,
    now: u64,
}

impl Run {
    /// One Envoy runs.
    fn started(settings: Settings) -> Self {
        let mut run = Self { supervisor: Supervisor::new(settings), now: 0 };
        run.step(Event::Start, &[Action::Spawn(0)]);
        run.step(Event::Spawned(0), &[]);
        run
    }

    /// Another was started and is not live yet.
    fn coming() -> Self {
        let mut run = Self::started(SETTINGS);
        run.step(Event::Renew, &[Action::Check]);
        run.step(GOOD, &[Action::Spawn(1)]);
        run.step(Event::Spawned(1), &[]);
        run
    }

    /// The other one has taken over, the first one drains.
    fn taken_over() -> Self {
        let mut run = Self::coming();
        run.due(&[Action::Probe(1)]);
        run.step(LIVE, &[Action::Promote(1)]);
        run
    }

    fn step(&mut self, event: Event, actions: &[Action]) {
        assert_eq!(self.supervisor.on(self.now, event), actions, "{event:?} at {}", self.now);
    }

    /// Time passes until something is due.
    fn due(&mut self, actions: &[Action]) {
        self.now = self.supervisor.wake_at().expect("something is due");
        self.step(Event::Tick, actions);
    }
}

#[test]
fn a_new_envoy_takes_over_and_the_old_one_ends() {
    let mut run = Run::taken_over();
    assert_eq!(run.supervisor.wake_at(), Some(200 + 65_000));
    run.step(gone(0), &[]);
    assert_eq!(run.supervisor.wake_at(), None);
    run.step(Event::Renew, &[Action::Check]);
    run.step(GOOD, &[Action::Spawn(2)]);
    run.step(Event::Spawned(2), &[]);
}

#[test]
fn an_old_one_that_does_not_end_is_ended() {
    let mut run = Run::taken_over();
    run.due(&[Action::Stop(0)]);
    run.due(&[Action::Kill(0)]);
    assert_eq!(run.supervisor.wake_at(), None);
    run.step(gone(0), &[]);
}

#[test]
fn one_that_does_not_come_up_changes_nothing() {
    let mut run = Run::coming();
    run.step(gone(1), &[Action::GiveUp(1)]);
    run.step(Event::Renew, &[Action::Check]);
    run.step(Event::Checked(Verdict::Useless), &[]);
    run.step(Event::Terminate, &[Action::Drain(Afterwards::End)]);

    let mut run = Run::coming();
    while run.now < 60_000 - 200 {
        run.due(&[Action::Probe(1)]);
        run.step(NOT_YET, &[]);
    }
    run.due(&[Action::Kill(1)]);
    assert_eq!(run.now, 60_000);
    run.step(LIVE, &[]);
    run.step(gone(1), &[Action::GiveUp(1)]);
    run.step(gone(0), &[]);
    run.due(&[Action::Spawn(0)]);
}

#[test]
fn without_the_switch_nothing_is_renewed() {
    let mut run = Run::started(Settings { hot_restart: HotRestart::Off, ..SETTINGS });
    run.step(Event::Renew, &[]);
}

#[test]
fn one_at_a_time() {
    let mut run = Run::taken_over();
    run.step(Event::Renew, &[]);
    run.step(Event::Renew, &[]);
    run.step(gone(0), &[Action::Check]);
    run.step(Event::Renew, &[]);
    run.step(Event::Checked(Verdict::Useless), &[Action::Check]);
    run.step(Event::Checked(Verdict::Useless), &[]);
}

#[test]
fn an_end_waits_for_one_probe() {
    let mut run = Run::coming();
    run.step(Event::Terminate, &[Action::Probe(1)]);
    run.step(NOT_YET, &[Action::Kill(1), Action::Drain(Afterwards::End)]);
    run.step(Event::DrainAsked, &[]);
    run.due(&[Action::Stop(0)]);
    run.step(gone(0), &[]);
    run.step(gone(1), &[Action::GiveUp(1), Action::Exit(0)]);

    let mut run = Run::coming();
    run.step(Event::Terminate, &[Action::Probe(1)]);
    run.step(LIVE, &[Action::Promote(1), Action::Drain(Afterwards::End)]);
    run.step(Event::DrainAsked, &[]);
    run.due(&[Action::Stop(1)]);
    run.step(gone(1), &[Action::Kill(0)]);
    run.step(gone(0), &[Action::Exit(0)]);

    let mut run = Run::coming();
    run.step(Event::Terminate, &[Action::Probe(1)]);
    run.step(Event::Terminate, &[Action::Kill(1), Action::Kill(0)]);
    run.step(gone(0), &[]);
    run.step(gone(1), &[Action::GiveUp(1), Action::Exit(0)]);
}

#[test]
fn a_drain_waits_for_one_probe_too() {
    let mut run = Run::coming();
    run.step(Event::DrainEarly, &[Action::Probe(1)]);
    run.step(Event::Terminate, &[]);
    run.step(Event::DrainEarly, &[]);
    run.step(LIVE, &[Action::Promote(1), Action::Drain(Afterwards::End)]);

    let mut run = Run::coming();
    run.step(Event::DrainEarly, &[Action::Probe(1)]);
    run.step(LIVE, &[Action::Promote(1), Action::Drain(Afterwards::Stay)]);
    run.step(gone(0), &[]);
    run.step(Event::Renew, &[]);
    run.step(Event::Terminate, &[Action::Stop(1)]);
}

#[test]
fn one_that_is_not_there_yet_is_killed_when_it_is() {
    let mut run = Run::started(SETTINGS);
    run.step(Event::Renew, &[Action::Check]);
    run.step(GOOD, &[Action::Spawn(1)]);
    run.step(Event::Terminate, &[]);
    run.step(Event::Spawned(1), &[Action::Kill(1), Action::Drain(Afterwards::End)]);
}

#[test]
fn quitting_waits_for_nobody() {
    let mut run = Run::coming();
    run.step(Event::Quit, &[Action::Kill(1), Action::Stop(0)]);
    run.step(gone(1), &[Action::GiveUp(1)]);
    run.step(gone(0), &[Action::Exit(0)]);
}

#[test]
fn who_is_left_alone_ends_before_the_next_begins() {
    let mut run = Run::coming();
    run.step(gone(0), &[Action::Kill(1)]);
    assert_eq!(run.supervisor.wake_at(), None);
    run.step(gone(1), &[Action::GiveUp(1)]);
    run.due(&[Action::Spawn(0)]);

    let mut run = Run::taken_over();
    run.step(gone(1), &[Action::Kill(0)]);
    run.step(gone(0), &[]);
    run.due(&[Action::Spawn(0)]);
}

#[test]
fn what_was_renewed_between_two_tries_is_used() {
    let mut run = Run::started(SETTINGS);
    run.step(gone(0), &[]);
    run.step(Event::Renew, &[Action::Check]);
    run.due(&[Action::Spawn(0)]);
    run.step(GOOD, &[]);
    run.step(Event::Spawned(0), &[Action::Check]);
    run.step(gone(0), &[]);
    run.step(GOOD, &[]);
    run.due(&[Action::Spawn(0)]);
}
