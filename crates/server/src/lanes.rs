use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_base::{Clock, Micros};

use crate::places::{Place, Places};

/// Who may send a large response now.
///
/// What is small, such as word of an endpoint that is gone, never waits. What is large waits for a place, in the order of
/// asking, so that few large responses stand before a small one in the processor's queue, however many proxies come or are
/// pushed to. What a new proxy is sent first has places of its own and does not wait behind a push to everybody.
///
/// What was put together still has to be written and read, over a network that may be slow. So a push keeps its place until
/// the client has answered, or for a while; and pushes let small news go first that everybody is being told: a new service
/// has reached all proxies before the first is sent its table of routes.
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
        let latest = self.push.now() + MOST;
        loop {
            let now = self.push.now();
            let over = self.news.lock().over_at(now).map(|over| over.min(latest));
            let Some(over) = over.filter(|over| now < *over) else { return place };
            tokio::time::sleep(Duration::from_micros(over - now)).await;
        }
    }

    /// A client begins to read what a place was taken for.
    pub(crate) fn keep(&self, place: &Place) {
        self.push.had_until(self.push.now() + KEPT, place);
    }

    /// Gives places to others that were had for long enough, for as long as it is asked.
    pub(crate) async fn release(&self) {
        tokio::join!(self.first.release(), self.push.release());
    }

    /// Something small and new was told.
    pub(crate) fn told(&self) {
        self.news.lock().told(self.push.now());
    }
}

#[cfg(test)]
mod tests;
