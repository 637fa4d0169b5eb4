use std::collections::{BTreeMap, VecDeque};
use std::num::NonZero;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use pilot_base::{Clock, Micros};
use tokio::sync::{Notify, oneshot};

/// Who may send a large response now.
///
/// What is small, such as word of an endpoint that is gone, never waits. What is large waits for a place, in the order of
/// asking, so that few large responses stand before a small one in the processor's queue, however many proxies come or are
/// pushed to. What a new proxy is sent first has places of its own and does not wait behind a push to everybody.
///
/// What was put together still has to be written and read, over a network that may be slow. So a push keeps its place until
/// the client has answered, or for a while; and pushes let small news go first that everybody is being told: a new service
/// has reached all proxies before the first is sent its table of routes.
///
/// Invariant: the time for which a place is had begins when it is given, whether who asked for it sees that or not. A client
/// that does not read keeps its stream from running, and so from giving back what it was given.
pub(crate) struct Lanes {
    first: Arc<Places>,
    push: Arc<Places>,
    news: Mutex<News>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    /// What a proxy is sent before it has anything. Its place is had only while it is put together.
    First,
    Push,
}

/// A place, until it is dropped or was had for long enough.
pub(crate) struct Place(Arc<Seat>);

struct Seat {
    /// Nothing once it was given back.
    of: Mutex<Option<Arc<Places>>>,
}

struct Places {
    clock: Arc<dyn Clock>,
    /// For how long a place may be had before what it was asked for is sent.
    patience: Micros,
    queue: Mutex<Queue>,
    /// A place was given, so there is a time to wait for.
    given: Notify,
}

#[derive(Default)]
struct Queue {
    free: usize,
    waiting: VecDeque<oneshot::Sender<Place>>,
    /// Until when places are had, each under a number of its own.
    had: BTreeMap<(Micros, u64), Weak<Seat>>,
    count: u64,
}

/// So many tables of a push may be under way for each processor: enough that none is idle while clients read.
const UNDER_WAY: usize = 8;
/// A client that has not answered by then is far away, or waits for something else: others need not wait for it.
const KEPT: Micros = 20_000;

/// Small news that streams tell their clients one after the other.
#[derive(Clone, Copy, Default, Debug)]
struct News {
    began: Micros,
    last: Micros,
    over: Micros,
}

/// As long as it takes a client to answer, so that what follows the answer still belongs to the same news.
const SILENCE: Micros = 3_000;
/// Where there is always news a push waits no longer than this, and then not again.
const MOST: Micros = 30_000;

impl News {
    fn told(&mut self, now: Micros) {
        if now >= self.last + SILENCE {
            self.began = now;
        }
        self.last = now;
        self.over = (now + SILENCE).min(self.began + MOST);
    }

    /// Until when a push lets them go first, if it does.
    fn over_at(self, now: Micros) -> Option<Micros> {
        Some(self.over).filter(|over| now < *over)
    }
}

/// What is no longer than this costs less than waiting does.
pub(crate) const LARGE: usize = 64 << 10;

impl Lanes {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        // One more for each processor, so that it need not wait until who was given a place is run.
        Self::with_places(2 * processors, processors * UNDER_WAY, clock)
    }

    pub(crate) fn with_places(first: usize, push: usize, clock: Arc<dyn Clock>) -> Self {
        let first = Places::new(first, KEPT, Arc::clone(&clock));
        Self { first, push: Places::new(push, MOST + KEPT, clock), news: Mutex::default() }
    }

    /// Waits for a place, and with it, if this is a push, until small news has gone first. Nothing comes of it if the lanes
    /// are gone; who is there without a place would only be early.
    pub(crate) async fn place(&self, lane: Lane) -> Option<Place> {
        if lane == Lane::First {
            return self.first.ask().await.ok();
        }
        let place = self.push.ask().await.ok();
        let latest = self.push.clock.micros() + MOST;
        loop {
            let now = self.push.clock.micros();
            let over = self.news.lock().over_at(now).map(|over| over.min(latest));
            let Some(over) = over.filter(|over| now < *over) else { return place };
            tokio::time::sleep(Duration::from_micros(over - now)).await;
        }
    }

    /// A client begins to read what a place was taken for.
    pub(crate) fn keep(&self, place: &Place) {
        let until = self.push.clock.micros() + KEPT;
        self.push.queue.lock().is_had(until, &place.0);
        self.push.given.notify_one();
    }

    /// Gives places to others that were had for long enough, for as long as it is asked.
    pub(crate) async fn release(&self) {
        tokio::join!(self.first.release(), self.push.release());
    }

    /// Something small and new was told.
    pub(crate) fn told(&self) {
        self.news.lock().told(self.push.clock.micros());
    }
}

impl Places {
    fn new(free: usize, patience: Micros, clock: Arc<dyn Clock>) -> Arc<Self> {
        let queue = Mutex::new(Queue { free, ..Queue::default() });
        Arc::new(Self { clock, patience, queue, given: Notify::new() })
    }

    fn ask(self: &Arc<Self>) -> oneshot::Receiver<Place> {
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
        let seat = Arc::new(Seat { of: Mutex::new(Some(Arc::clone(self))) });
        queue.is_had(self.clock.micros() + self.patience, &seat);
        self.given.notify_one();
        Place(seat)
    }

    /// Sleeps while no place is had.
    async fn release(&self) {
        loop {
            let now = self.clock.micros();
            let next = self.release_until(now).map(|next| Duration::from_micros(next - now));
            tokio::select! {
                // One may have been given that is had for less long.
                () = self.given.notified() => {}
                () = tokio::time::sleep(next.unwrap_or_default()), if next.is_some() => {}
            }
        }
    }

    /// Tells when the next one has been had for long enough.
    fn release_until(&self, now: Micros) -> Option<Micros> {
        loop {
            let mut queue = self.queue.lock();
            let (&(until, _), seat) = queue.had.first_key_value()?;
            let seat = seat.upgrade();
            if until > now && seat.is_some() {
                return Some(until);
            }
            queue.had.pop_first();
            drop(queue);
            seat.iter().for_each(|seat| seat.give_back());
        }
    }
}

impl Queue {
    fn is_had(&mut self, until: Micros, seat: &Arc<Seat>) {
        self.count += 1;
        self.had.insert((until, self.count), Arc::downgrade(seat));
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

#[cfg(test)]
mod tests;
