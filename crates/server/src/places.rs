use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use pilot_base::{Clock, Micros};
use tokio::sync::{Notify, oneshot};

/// So many may do something at a time, in the order of asking.
///
/// Invariant: the time for which a place is had begins when it is given, whether who asked for it sees that or not. A client
/// that does not read keeps its stream from running, and so from giving back what it was given.
pub(crate) struct Places {
    clock: Arc<dyn Clock>,
    /// For how long a place is had, unless it is [had until](Self::had_until) another time.
    patience: Micros,
    queue: Mutex<Queue>,
    /// A place was given, so there is a time to wait for.
    given: Notify,
}

/// A place, until it is dropped or was had for long enough.
pub(crate) struct Place(Arc<Seat>);

struct Seat {
    /// Nothing once it was given back.
    of: Mutex<Option<Arc<Places>>>,
    until: AtomicU64,
}

#[derive(Default)]
struct Queue {
    free: usize,
    waiting: VecDeque<oneshot::Sender<Place>>,
    /// When to look after places that are had, each under a number of its own.
    had: BTreeMap<(Micros, u64), Weak<Seat>>,
    count: u64,
}

impl Places {
    pub(crate) fn new(free: usize, patience: Micros, clock: Arc<dyn Clock>) -> Arc<Self> {
        let queue = Mutex::new(Queue { free, ..Queue::default() });
        Arc::new(Self { clock, patience, queue, given: Notify::new() })
    }

    pub(crate) fn now(&self) -> Micros {
        self.clock.micros()
    }

    pub(crate) fn ask(self: &Arc<Self>) -> oneshot::Receiver<Place> {
        let (give, given) = oneshot::channel();
        let mut queue = self.queue.lock();
        if queue.free == 0 {
            queue.waiting.push_back(give);
            return given;
        }
        queue.free -= 1;
        let place = self.give(&mut queue);
        drop(queue);
        // Whoever asked is about to wait for it.
        let _taken = give.send(place);
        given
    }

    /// A place is had for as long as this, however long that was to be. One that was given back already stays so.
    pub(crate) fn had_until(&self, until: Micros, place: &Place) {
        let before = place.0.until.swap(until, Ordering::Relaxed);
        // When it should have ended it is seen that it goes on.
        if until < before {
            self.queue.lock().look_after(until, &place.0);
            self.given.notify_one();
        }
    }

    /// Gives places to others that were had for long enough, for as long as it is asked. Sleeps while no place is had.
    pub(crate) async fn release(&self) {
        loop {
            let now = self.now();
            let next = self.release_until(now).map(|next| Duration::from_micros(next - now));
            tokio::select! {
                // One may have been given that is had for less long.
                () = self.given.notified() => {}
                () = tokio::time::sleep(next.unwrap_or_default()), if next.is_some() => {}
            }
        }
    }

    /// Tells when to look again.
    fn release_until(&self, now: Micros) -> Option<Micros> {
        loop {
            let mut queue = self.queue.lock();
            let (&(at, _), seat) = queue.had.first_key_value()?;
            let seat = seat.upgrade();
            if at > now && seat.is_some() {
                return Some(at);
            }
            queue.had.pop_first();
            let Some(seat) = seat else { continue };
            let until = seat.until.load(Ordering::Relaxed);
            if until > now {
                queue.look_after(until, &seat);
                continue;
            }
            drop(queue);
            seat.give_back();
        }
    }

    /// Somebody has a place less: the next one has it, or nobody.
    fn freed(self: &Arc<Self>) {
        let mut queue = self.queue.lock();
        while let Some(next) = queue.waiting.pop_front() {
            if next.is_closed() {
                continue;
            }
            match next.send(self.give(&mut queue)) {
                Ok(()) => return,
                // Who asked has just left. This is not given back as places are: it goes to the one after.
                Err(place) => drop(place.0.of.lock().take()),
            }
        }
        queue.free += 1;
    }

    fn give(self: &Arc<Self>, queue: &mut Queue) -> Place {
        let until = self.now() + self.patience;
        let seat = Arc::new(Seat { of: Mutex::new(Some(Arc::clone(self))), until: AtomicU64::new(until) });
        queue.look_after(until, &seat);
        self.given.notify_one();
        Place(seat)
    }
}

impl Queue {
    fn look_after(&mut self, at: Micros, seat: &Arc<Seat>) {
        self.count += 1;
        self.had.insert((at, self.count), Arc::downgrade(seat));
    }
}

impl Seat {
    fn give_back(&self) {
        let of = self.of.lock().take();
        if let Some(places) = of {
            places.freed();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// For tests: what the task does that looks after places, and how many of them are free.
#[cfg(test)]
impl Places {
    pub(crate) fn look(&self) -> Option<Micros> {
        self.release_until(self.now())
    }

    pub(crate) fn free(&self) -> usize {
        self.queue.lock().free
    }

    pub(crate) fn is_had(&self) -> bool {
        !self.queue.lock().had.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pilot_base::Micros;

    use super::Places;
    use crate::clock::Held;

    const PATIENCE: Micros = 100;

    #[test]
    fn a_place_is_had_for_longer_or_less_long_than_it_was_to_be() {
        let clock = Arc::new(Held::default());
        let places = Places::new(1, PATIENCE, clock.clone());
        let place = places.ask().try_recv().expect("it is free");
        let mut next = places.ask();
        for later in 2..10 {
            clock.go_on(PATIENCE / 2);
            places.had_until(later * PATIENCE / 2, &place);
            places.look();
            assert!(next.try_recv().is_err(), "it goes on");
        }
        assert!(places.queue.lock().had.len() <= 2, "nothing is written down again and again");
        places.had_until(clock.now_micros() + 1, &place);
        clock.go_on(1);
        assert!(places.look().is_some(), "the next one has it");
        let next = next.try_recv().expect("it was given");
        places.had_until(clock.now_micros() + PATIENCE, &place);
        drop((place, next));
        assert_eq!((places.look(), places.free(), places.is_had()), (None, 1, false));
    }
}
