use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use pilot_base::{Clock, Micros};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Who may send a large response now.
///
/// What is small, such as word of an endpoint that is gone, never waits. What is large waits for a place, in the order of
/// asking, so that few large responses stand before a small one in the processor's queue, however many proxies are pushed
/// to. What a new proxy is sent first has places of its own and does not wait behind a push to everybody. There a place is
/// taken only while a response is put together, so no client can keep one, and none is idle while somebody waits.
///
/// What was put together still has to be written and read, over a network that may be slow. So the tables of a push keep
/// their places until the client has answered, or for a while; and they let small news go first that everybody is being
/// told: a new service has reached all proxies before the first is sent its table of routes.
pub(crate) struct Lanes {
    first: Arc<Semaphore>,
    push: Arc<Semaphore>,
    /// Places that wait for an answer, and until when, the oldest first.
    kept: Mutex<VecDeque<(Micros, Kept)>>,
    /// Somebody keeps a place.
    keeps: Notify,
    news: Mutex<News>,
}

/// A place that is kept until it is dropped, or for long enough. Who stops reading stops dropping, too.
type Kept = Weak<Mutex<Option<OwnedSemaphorePermit>>>;

/// What keeps a place.
pub(crate) struct Keeping {
    _place: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    /// What a proxy is sent before it has anything.
    First,
    Push,
}

/// What is no longer than this costs less than waiting does.
pub(crate) const LARGE: usize = 64 << 10;

impl Default for Lanes {
    /// As many places as there are processors, and more for what is under way.
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self::new(processors, processors * UNDER_WAY)
    }
}

impl Lanes {
    pub(crate) fn new(first: usize, push: usize) -> Self {
        let lane = |places| Arc::new(Semaphore::new(places));
        let (kept, keeps, news) = Default::default();
        Self { first: lane(first), push: lane(push), kept, keeps, news }
    }

    /// Waits for a place, and with it, if this is a push, until small news has gone first. Lanes are never closed; who is
    /// there without a place would only be early.
    pub(crate) async fn place(&self, lane: Lane, clock: &dyn Clock) -> Option<OwnedSemaphorePermit> {
        if lane == Lane::First {
            return Arc::clone(&self.first).acquire_owned().await.ok();
        }
        let place = Arc::clone(&self.push).acquire_owned().await.ok();
        loop {
            let now = clock.micros();
            let Some(over) = self.news.lock().over_at(now) else { return place };
            tokio::time::sleep(Duration::from_micros(over - now)).await;
        }
    }

    /// Keeps a place while a client reads what it was taken for.
    pub(crate) fn keep(&self, place: OwnedSemaphorePermit, now: Micros) -> Keeping {
        let place = Arc::new(Mutex::new(Some(place)));
        self.kept.lock().push_back((now + KEPT, Arc::downgrade(&place)));
        self.keeps.notify_one();
        Keeping { _place: place }
    }

    /// Gives places to others that were kept for long enough. Sleeps while none is.
    pub(crate) async fn release(&self, clock: &dyn Clock) {
        loop {
            let now = clock.micros();
            match self.release_until(now) {
                Some(next) => tokio::time::sleep(Duration::from_micros(next - now)).await,
                None => self.keeps.notified().await,
            }
        }
    }

    /// Tells when the next one has been kept for long enough.
    fn release_until(&self, now: Micros) -> Option<Micros> {
        let mut kept = self.kept.lock();
        while let Some((until, place)) = kept.front() {
            match place.upgrade() {
                Some(_) if *until > now => return Some(*until),
                Some(place) => drop(place.lock().take()),
                None => {}
            }
            kept.pop_front();
        }
        None
    }

    /// Something small and new was told.
    pub(crate) fn told(&self, now: Micros) {
        self.news.lock().told(now);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use tokio::sync::OwnedSemaphorePermit;

    use super::{KEPT, Lane, Lanes, MOST, News, SILENCE};
    use crate::SystemClock;

    fn take(lanes: &Lanes, lane: Lane) -> Option<OwnedSemaphorePermit> {
        let clock = SystemClock::default();
        match pin!(lanes.place(lane, &clock)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(place) => place,
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_place_is_kept_until_the_client_answers_or_for_long_enough() {
        let lanes = Lanes::new(1, 1);
        let answered = lanes.keep(take(&lanes, Lane::Push).expect("it is free"), 0);
        assert!(take(&lanes, Lane::Push).is_none());
        drop(answered);
        let silent = lanes.keep(take(&lanes, Lane::Push).expect("it is free again"), 10);
        assert_eq!(lanes.release_until(KEPT), Some(KEPT + 10));
        assert!(take(&lanes, Lane::Push).is_none());
        assert_eq!(lanes.release_until(KEPT + 10), None);
        assert!(take(&lanes, Lane::Push).is_some(), "nobody waits for that client any more");
        drop(silent);
        assert!(lanes.kept.lock().is_empty());
    }

    #[test]
    fn a_push_lets_small_news_go_first_but_not_for_ever() {
        let mut news = News::default();
        assert_eq!(news.over_at(10 * MOST), None, "there is none");
        let start = 10 * MOST;
        news.told(start);
        assert_eq!(news.over_at(start), Some(start + SILENCE));
        assert_eq!(news.over_at(start + SILENCE), None);
        let mut now = start;
        while now < start + 2 * MOST {
            now += SILENCE / 2;
            news.told(now);
            assert_eq!(news.over_at(now).is_some(), now < start + MOST, "{now}: news without end");
        }
        now += SILENCE;
        news.told(now);
        assert!(news.over_at(now).is_some(), "it was silent, so this is news again");
    }

    #[test]
    fn a_new_proxy_does_not_wait_behind_a_push() {
        let lanes = Lanes::new(1, 1);
        let clock = SystemClock::default();
        let cx = &mut Context::from_waker(Waker::noop());
        let pushing = take(&lanes, Lane::Push).expect("nobody pushes yet");
        let mut second = pin!(lanes.place(Lane::Push, &clock));
        let mut third = pin!(lanes.place(Lane::Push, &clock));
        assert!(second.as_mut().poll(cx).is_pending() && third.as_mut().poll(cx).is_pending());
        assert!(take(&lanes, Lane::First).is_some());
        drop(pushing);
        assert!(third.as_mut().poll(cx).is_pending(), "it asked later");
        assert!(second.as_mut().poll(cx).is_ready());
    }
}
