use super::{
    Action, Afterwards, Count, Drain, Event, Exit, HotRestart, Jitter, Restart, Settings, State, Supervisor,
};

const FULL: Jitter = Jitter(1_000);
const OK: Event = Event::Exited { epoch: 0, exit: Exit::Code(0), jitter: FULL };
const BAD: Event = Event::Exited { epoch: 0, exit: Exit::Code(7), jitter: FULL };
const KILLED: Event = Event::Exited { epoch: 0, exit: Exit::Signal(9), jitter: FULL };
const MISSING: Event = Event::Exited { epoch: 0, exit: Exit::NotStarted, jitter: FULL };

const KUBERNETES: Settings =
    Settings { restart: Restart::Never, drain: Drain::For(5_000), hot_restart: HotRestart::Off };
const MACHINE: Settings = Settings { restart: Restart::UpTo(0), ..KUBERNETES };
const PATIENT: Settings = Settings { drain: Drain::UntilIdle(3_000), ..KUBERNETES };

const SPAWN: Action = Action::Spawn(0);
const SPAWNED: Event = Event::Spawned(0);
const STOP: Action = Action::Stop(0);
const KILL: Action = Action::Kill(0);
const DRAIN_TO_END: Action = Action::Drain(Afterwards::End);

/// One event, what it makes the agent do, and when it wants to be woken afterwards.
type Step = (u64, Event, Option<Action>, Option<u64>);

fn check(name: &str, settings: Settings, steps: &[Step]) {
    let mut supervisor = Supervisor::new(settings);
    for (at, (now, event, action, wake)) in steps.iter().enumerate() {
        let wanted: Vec<Action> = action.iter().copied().collect();
        assert_eq!(supervisor.on(*now, *event), wanted, "{name}: step {at}: {event:?}");
        assert_eq!(supervisor.wake_at(), *wake, "{name}: wake after step {at}: {event:?}");
    }
}

const START: Step = (0, Event::Start, Some(SPAWN), None);
const UP: Step = (0, SPAWNED, None, None);
const DRAIN: Step = (5, Event::Terminate, Some(DRAIN_TO_END), None);

#[test]
fn where_others_restart_the_agent_ends_as_envoy_does() {
    for (event, status) in [(OK, 0), (BAD, 7), (KILLED, 137), (MISSING, 1)] {
        check("running", KUBERNETES, &[START, UP, (9, event, Some(Action::Exit(status)), None)]);
        check("starting", KUBERNETES, &[START, (9, event, Some(Action::Exit(status)), None)]);
    }
}

#[test]
fn elsewhere_envoy_comes_back_after_longer_and_longer_pauses() {
    let mut supervisor = Supervisor::new(MACHINE);
    assert_eq!(supervisor.on(0, Event::Start), [SPAWN]);
    for pause in [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000] {
        assert_eq!(supervisor.on(0, SPAWNED), []);
        assert_eq!(supervisor.on(0, BAD), []);
        assert_eq!(supervisor.wake_at(), Some(pause));
        assert_eq!(supervisor.on(pause - 1, Event::Tick), []);
        assert_eq!(supervisor.on(pause, Event::Tick), [SPAWN]);
        assert_eq!(supervisor.wake_at(), None);
    }
    supervisor.failures = u32::MAX;
    assert_eq!(supervisor.on(0, MISSING), []);
    assert_eq!(supervisor.wake_at(), Some(30_000));
}

#[test]
fn too_many_ends_in_a_row_are_the_end() {
    let settings = Settings { restart: Restart::UpTo(2), ..MACHINE };
    let back = |at: u64| (at, Event::Tick, Some(SPAWN), None);
    let up = |at: u64| (at, SPAWNED, None, None);
    let two =
        [START, UP, (0, BAD, None, Some(200)), back(200), up(200), (200, BAD, None, Some(600)), back(600)];
    let third = (700, BAD, Some(Action::Exit(7)), None);
    check("three ends", settings, &[&two[..], &[up(600), third]].concat());
    let steady = (60_600, BAD, None, Some(60_800));
    check("a steady run between them", settings, &[&two[..], &[up(600), steady]].concat());
}

#[test]
fn chance_takes_up_to_half_of_a_pause() {
    for (jitter, wake) in [(0, 100), (500, 150), (1_000, 200), (u16::MAX, 200)] {
        let exit = Event::Exited { epoch: 0, exit: Exit::Code(1), jitter: Jitter(jitter) };
        check("jitter", MACHINE, &[START, UP, (0, exit, None, Some(wake))]);
    }
}

#[test]
fn a_steady_run_forgets_failures() {
    let back = |at: u64| (at, Event::Tick, Some(SPAWN), None);
    let up = |at: u64| (at, SPAWNED, None, None);
    check(
        "steady",
        MACHINE,
        &[
            START,
            UP,
            (0, BAD, None, Some(200)),
            back(200),
            up(200),
            (200 + 59_999, BAD, None, Some(60_599)),
            back(60_599),
            up(60_599),
            (60_599 + 60_000, BAD, None, Some(120_799)),
        ],
    );
}

#[test]
fn a_signal_drains_then_stops_then_kills() {
    let drain = (10, Event::DrainAsked, None, Some(5_010));
    let early = (5_009, Event::Tick, None, Some(5_010));
    let stop = (5_010, Event::Tick, Some(STOP), Some(10_010));
    for settings in [KUBERNETES, MACHINE] {
        check(
            "obeys",
            settings,
            &[START, UP, DRAIN, drain, early, stop, (5_100, OK, Some(Action::Exit(0)), None)],
        );
        let kill = (10_010, Event::Tick, Some(KILL), None);
        check(
            "stubborn",
            settings,
            &[START, UP, DRAIN, drain, stop, kill, (10_020, KILLED, Some(Action::Exit(0)), None)],
        );
        check("ends when asked", settings, &[START, UP, DRAIN, (20, BAD, Some(Action::Exit(0)), None)]);
        check("ends in drain", settings, &[START, UP, DRAIN, drain, (20, BAD, Some(Action::Exit(0)), None)]);
    }
}

#[test]
fn a_second_signal_kills_at_once() {
    let drain = (10, Event::DrainAsked, None, Some(5_010));
    let kill = |at: u64| (at, Event::Terminate, Some(KILL), None);
    let gone = (9_000, KILLED, Some(Action::Exit(0)), None);
    check("draining", KUBERNETES, &[START, UP, DRAIN, drain, kill(20), gone]);
    check("asking", KUBERNETES, &[START, UP, DRAIN, kill(8), (9, Event::DrainAsked, None, None), gone]);
    let third = (21, Event::Terminate, None, None);
    check("a third is too many", KUBERNETES, &[START, UP, DRAIN, drain, kill(20), third, gone]);
    let stop = (5_010, Event::Tick, Some(STOP), Some(10_010));
    check("stopping", KUBERNETES, &[START, UP, DRAIN, drain, stop, kill(5_020), gone]);
    let drain = (10, Event::DrainAsked, None, Some(3_010));
    let count = (3_010, Event::Tick, Some(Action::CountConnections), None);
    check("counting", PATIENT, &[START, UP, DRAIN, drain, count, kill(3_020), gone]);
}

#[test]
fn quitting_does_not_drain() {
    let stop = |at: u64| (at, Event::Quit, Some(STOP), Some(at + 5_000));
    let gone = (9_000, OK, Some(Action::Exit(0)), None);
    check("running", KUBERNETES, &[START, UP, stop(10), gone]);
    check("running outside", MACHINE, &[START, UP, stop(10), gone]);
    check("twice", KUBERNETES, &[START, UP, stop(10), (20, Event::Quit, None, Some(5_010)), gone]);
    check(
        "then a signal",
        KUBERNETES,
        &[START, UP, stop(10), (20, Event::Terminate, Some(KILL), None), gone],
    );
    let drain = (10, Event::DrainAsked, None, Some(5_010));
    check("while draining", KUBERNETES, &[START, UP, DRAIN, drain, stop(20), gone]);
    check(
        "while asking",
        KUBERNETES,
        &[START, UP, DRAIN, stop(8), (9, Event::DrainAsked, None, Some(5_008)), gone],
    );
    let kill = (20, Event::Terminate, Some(KILL), None);
    check("after a kill", KUBERNETES, &[START, UP, DRAIN, drain, kill, (30, Event::Quit, None, None), gone]);
}

#[test]
fn without_an_envoy_there_is_nothing_to_wait_for() {
    for event in [Event::Terminate, Event::Quit] {
        check("new", MACHINE, &[(0, event, Some(Action::Exit(0)), None), (0, Event::Start, None, None)]);
        let fell = (0, BAD, None, Some(200));
        check("pausing", MACHINE, &[START, UP, fell, (10, event, Some(Action::Exit(0)), None)]);
        let unwanted = (1, event, None, None);
        let stop = (2, SPAWNED, Some(STOP), Some(5_002));
        check("starting", MACHINE, &[START, unwanted, (1, event, None, None), stop]);
        check("never started", MACHINE, &[START, unwanted, (2, MISSING, Some(Action::Exit(0)), None)]);
    }
}

#[test]
fn connections_are_waited_for() {
    let drain = (0, Event::DrainAsked, None, Some(3_000));
    let count = |at: u64| (at, Event::Tick, Some(Action::CountConnections), None);
    let busy = |at: u64| (at, Event::Counted(Count::Connections(2)), None, Some(at + 1_000));
    let failed = |at: u64| (at, Event::Counted(Count::Failed), None, Some(at + 1_000));
    let done = |at: u64, count: Count| (at, Event::Counted(count), Some(STOP), Some(at + 5_000));
    let head = [START, UP, DRAIN, drain, count(3_000)];
    let with = |tail: &[Step]| [&head, tail].concat();
    check("idle", PATIENT, &with(&[done(3_010, Count::Connections(0))]));
    check("unknown", PATIENT, &with(&[done(3_010, Count::Unknown)]));
    let early = (3_500, Event::Tick, None, Some(4_010));
    check("busy", PATIENT, &with(&[busy(3_010), early, count(4_010), done(4_020, Count::Connections(0))]));
    let mut tail = Vec::new();
    for at in [3_010, 4_010, 5_010, 6_010] {
        tail.extend([failed(at), count(at + 1_000)]);
    }
    check("five failures", PATIENT, &with(&[&tail[..], &[done(7_010, Count::Failed)]].concat()));
    let again = [&tail[..], &[busy(7_010), count(8_010), failed(8_020)]].concat();
    check("failures in a row", PATIENT, &with(&again));
    check("envoy ends", PATIENT, &with(&[(3_010, BAD, Some(Action::Exit(0)), None)]));
    let late = (3_020, Event::Counted(Count::Unknown), None, Some(8_010));
    check("a late answer", PATIENT, &with(&[done(3_010, Count::Connections(0)), late]));
}

/// No event in any state, however unexpected, makes the agent act after its end, forget an Envoy that runs, or start a
/// second one.
#[test]
fn no_script_of_six_events_starts_two_or_leaves_one_behind() {
    let events = [
        Event::Start,
        SPAWNED,
        BAD,
        Event::Terminate,
        Event::Quit,
        Event::DrainAsked,
        Event::Counted(Count::Connections(1)),
        Event::Counted(Count::Connections(0)),
        Event::Tick,
    ];
    for settings in [KUBERNETES, MACHINE, PATIENT, Settings { restart: Restart::UpTo(0), ..PATIENT }] {
        for script in 0..events.len().pow(6) {
            let chosen = (0..6_u32).map(|at| events[script / events.len().pow(at) % events.len()]);
            let mut supervisor = Supervisor::new(settings);
            let (mut asked, mut alive, mut now) = (false, false, 0);
            for event in chosen {
                now += 100_000;
                match event {
                    // The world answers only what it was asked, and only what runs can end.
                    Event::Spawned(_) if !asked => continue,
                    Event::Exited { .. } if !asked && !alive => continue,
                    Event::Spawned(_) => (asked, alive) = (false, true),
                    Event::Exited { .. } => (asked, alive) = (false, false),
                    _ => (),
                }
                let over = supervisor.state == State::Done;
                let actions = supervisor.on(now, event);
                assert!(!over || actions.is_empty(), "{script}: {event:?} after the end");
                for action in actions {
                    match action {
                        Action::Spawn(_) => {
                            assert!(!asked && !alive, "{script}: {event:?} starts a second one");
                            asked = true;
                        }
                        Action::Exit(_) => {
                            assert!(!asked && !alive, "{script}: {event:?} leaves one behind");
                        }
                        _ => assert!(alive, "{script}: {event:?} speaks to nobody"),
                    }
                }
            }
        }
    }
}

#[test]
fn who_drained_early_ends_at_once() {
    let early = (3, Event::DrainEarly, Some(Action::Drain(Afterwards::Stay)), None);
    let end = (9, Event::Terminate, Some(STOP), Some(5_009));
    check("once", KUBERNETES, &[START, UP, early, (4, Event::DrainAsked, None, None), end]);
    check("twice", KUBERNETES, &[START, UP, early, (4, Event::DrainEarly, None, None), end]);
    check("not there", KUBERNETES, &[START, (1, Event::DrainEarly, None, None)]);
    let again = (250, Event::Tick, Some(SPAWN), None);
    let anew = (300, Event::Terminate, Some(DRAIN_TO_END), None);
    check(
        "another one",
        MACHINE,
        &[START, UP, early, (5, BAD, None, Some(205)), again, (260, SPAWNED, None, None), anew],
    );
}
