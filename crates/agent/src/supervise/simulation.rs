//! Everything that can happen, in any order, under a seed. The world here does to the supervisor what processes, users and
//! time could do, and checks what must hold whatever they do.

use std::collections::{BTreeMap, BTreeSet};

use pilot_base::Millis;

use super::{
    Action, Count, Drain, Event, Exit, HotRestart, Jitter, Life, Restart, Settings, Supervisor, Verdict,
};

/// Enough for every pair of things to meet; `PILOT_SEEDS` says how many for long runs.
const SEEDS: u64 = 20_000;
const STEPS: usize = 120;
/// Longer than all that may happen after a signal: a probe, a drain, counts that fail, a stop, a kill.
const LONGEST_END: Millis = 60_000;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn pick<T: Copy>(&mut self, among: &[T]) -> Option<T> {
        let at = usize::try_from(self.roll(u64::try_from(among.len().max(1)).unwrap())).unwrap();
        among.get(at).copied()
    }
}

struct World {
    seed: u64,
    dice: Dice,
    supervisor: Supervisor,
    now: Millis,
    /// Processes that were asked for and are not there yet.
    asked: BTreeSet<u32>,
    /// Processes, and whether they were killed.
    alive: BTreeMap<u32, bool>,
    /// Answers that are under way.
    answers: Vec<Event>,
    /// When the end was first asked for.
    ending: Option<Millis>,
    status: Option<i32>,
    /// How often one Envoy took over from another.
    promoted: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let restart = dice.pick(&[Restart::Never, Restart::UpTo(0), Restart::UpTo(2)]).unwrap();
        let drain = dice.pick(&[Drain::For(0), Drain::For(5_000), Drain::UntilIdle(3_000)]).unwrap();
        let hot_restart = dice.pick(&[HotRestart::Off, HotRestart::On { parent_shutdown: 10_000 }]).unwrap();
        let supervisor = Supervisor::new(Settings { restart, drain, hot_restart });
        Self {
            seed,
            dice,
            supervisor,
            now: 0,
            asked: BTreeSet::new(),
            alive: BTreeMap::new(),
            answers: Vec::new(),
            ending: None,
            status: None,
            promoted: 0,
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Spawned(epoch) => {
                self.asked.remove(&epoch);
                self.alive.insert(epoch, false);
            }
            Event::Exited { epoch, .. } => {
                self.asked.remove(&epoch);
                self.alive.remove(&epoch);
            }
            Event::Terminate | Event::Quit => self.ending = self.ending.or(Some(self.now)),
            _ => (),
        }
        let over = self.status.is_some();
        let actions = self.supervisor.on(self.now, event);
        assert!(!over || actions.is_empty(), "seed {}: {event:?} after the end", self.seed);
        for action in actions {
            self.act(event, action);
        }
    }

    fn act(&mut self, event: Event, action: Action) {
        let seed = self.seed;
        match action {
            Action::Spawn(epoch) => {
                let free = !self.asked.contains(&epoch) && !self.alive.contains_key(&epoch);
                assert!(free, "seed {seed}: {event:?}: a second Envoy of epoch {epoch}");
                let parent = epoch == 0 || self.alive.contains_key(&(epoch - 1));
                assert!(parent, "seed {seed}: {event:?}: nobody to take over from for {epoch}");
                let before = self.asked.len() + self.alive.len();
                let most = usize::from(epoch != 0);
                assert!(before <= most, "seed {seed}: {event:?}: {before} others when {epoch} starts");
                self.asked.insert(epoch);
            }
            Action::Drain(_) => self.answers.push(Event::DrainAsked),
            Action::CountConnections => {
                let counts = [Count::Connections(0), Count::Connections(1), Count::Unknown, Count::Failed];
                let count = self.dice.pick(&counts).unwrap();
                // Connections end some time, or nothing could.
                let count =
                    if self.ending.is_some_and(|at| self.now > at + 20_000) { Count::Unknown } else { count };
                self.answers.push(Event::Counted(count));
            }
            Action::Check => {
                let verdict = self.dice.pick(&[Verdict::Good, Verdict::Useless]).unwrap();
                self.answers.push(Event::Checked(verdict));
            }
            Action::Probe(epoch) => {
                assert!(self.alive.contains_key(&epoch), "seed {seed}: {event:?}: {epoch} is not there");
                let life = self.dice.pick(&[Life::Live, Life::NotYet, Life::NotYet]).unwrap();
                self.answers.push(Event::Probed(epoch, life));
            }
            Action::Promote(epoch) => {
                self.promoted += 1;
                assert!(self.alive.contains_key(&epoch), "seed {seed}: {event:?}: {epoch} is not there");
            }
            Action::GiveUp(epoch) => {
                assert!(!self.alive.contains_key(&epoch), "seed {seed}: {event:?}: {epoch} still runs");
            }
            Action::Stop(epoch) => {
                assert!(self.alive.contains_key(&epoch), "seed {seed}: {event:?}: {epoch} is not there");
            }
            Action::Kill(epoch) => {
                let killed = self.alive.insert(epoch, true);
                assert_eq!(killed, Some(false), "seed {seed}: {event:?}: {epoch} cannot be killed");
            }
            Action::Exit(status) => {
                let idle = self.asked.is_empty() && self.alive.is_empty();
                assert!(idle, "seed {seed}: {event:?} leaves {:?} {:?} behind", self.asked, self.alive);
                assert_eq!(self.status, None, "seed {seed}: a second end");
                self.status = Some(status);
            }
        }
    }

    fn exited(&mut self, epoch: u32) -> Event {
        let exit = self.dice.pick(&[Exit::Code(0), Exit::Code(7), Exit::Signal(9)]).unwrap();
        let jitter = Jitter(u16::try_from(self.dice.roll(1_001)).unwrap());
        Event::Exited { epoch, exit, jitter }
    }

    /// Something that processes or the kernel do.
    fn of_the_world(&mut self) -> Event {
        let asked: Vec<u32> = self.asked.iter().copied().collect();
        let alive: Vec<u32> = self.alive.keys().copied().collect();
        match self.dice.roll(12) {
            0..=3 if !asked.is_empty() => {
                let epoch = self.dice.pick(&asked).unwrap();
                if self.dice.roll(8) == 0 { self.exited(epoch) } else { Event::Spawned(epoch) }
            }
            4 if !alive.is_empty() => {
                let epoch = self.dice.pick(&alive).unwrap();
                self.exited(epoch)
            }
            5..=8 if !self.answers.is_empty() => {
                let at = self.dice.roll(u64::try_from(self.answers.len()).unwrap());
                self.answers.swap_remove(usize::try_from(at).unwrap())
            }
            _ => self.time(),
        }
    }

    /// Mostly what is due, sometimes a tick that nobody waits for.
    fn time(&mut self) -> Event {
        match self.supervisor.wake_at() {
            Some(at) if self.dice.roll(5) != 0 => self.now = self.now.max(at),
            _ => self.now += self.dice.roll(500),
        }
        Event::Tick
    }

    fn of_users(&mut self) -> Event {
        match self.dice.roll(24) {
            0 => Event::Terminate,
            1 => Event::Quit,
            2 | 3 => Event::DrainEarly,
            _ => Event::Renew,
        }
    }

    /// After a signal the world does what it is asked: processes come, answers arrive, who was killed is gone. Nobody ends
    /// of its own will, though.
    fn wind_down(&mut self) {
        self.happen(Event::Terminate);
        let begun = self.now;
        for _ in 0..10_000 {
            if self.status.is_some() {
                return;
            }
            let killed = self.alive.iter().find(|(_, killed)| **killed).map(|(epoch, _)| *epoch);
            let event = if let Some(epoch) = self.asked.first().copied() {
                Event::Spawned(epoch)
            } else if let Some(epoch) = killed {
                self.exited(epoch)
            } else if let Some(answer) = self.answers.pop() {
                answer
            } else {
                let at = self.supervisor.wake_at();
                let at = at.unwrap_or_else(|| panic!("seed {}: nothing would ever happen", self.seed));
                self.now = self.now.max(at);
                Event::Tick
            };
            self.happen(event);
            assert!(
                self.now - begun <= LONGEST_END,
                "seed {}: {} ms and no end",
                self.seed,
                self.now - begun
            );
        }
        panic!("seed {}: no end", self.seed);
    }
}

#[allow(clippy::disallowed_methods, reason = "long runs say how long by the environment")]
fn seeds() -> u64 {
    std::env::var("PILOT_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS)
}

#[test]
fn whatever_happens_no_envoy_is_doubled_or_left_behind_and_the_end_comes() {
    let (mut took_over, mut ended_alone) = (0, 0);
    for seed in 0..seeds() {
        let mut world = World::new(seed);
        world.happen(Event::Start);
        for _ in 0..STEPS {
            let event = match world.dice.roll(12) {
                0 => world.of_users(),
                _ => world.of_the_world(),
            };
            world.happen(event);
        }
        took_over += u64::from(world.promoted > 1);
        ended_alone += u64::from(world.status.is_some() && world.ending.is_none());
        world.wind_down();
    }
    // The dice reach what they are meant to reach.
    assert!(took_over > 0 && ended_alone > 0, "{took_over} {ended_alone}");
}
