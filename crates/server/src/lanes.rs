use std::num::NonZero;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Who may put a large response together now.
///
/// What is small, such as word of an endpoint that is gone, never waits. What is large waits for a place, in the order of
/// asking, so that few large responses stand before a small one in the processor's queue, however many proxies are pushed
/// to. What a new proxy is sent first has places of its own and does not wait behind a push to everybody. A place is taken
/// only while a response is put together, so no client can keep one, and none is idle while somebody waits.
pub(crate) struct Lanes {
    first: Arc<Semaphore>,
    push: Arc<Semaphore>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    /// What a proxy is sent before it has anything.
    First,
    Push,
}

/// Smaller responses cost less than waiting does.
pub(crate) const LARGE: usize = 64 << 10;

impl Default for Lanes {
    /// As many places as there are processors.
    fn default() -> Self {
        Self::new(std::thread::available_parallelism().map_or(1, NonZero::get))
    }
}

impl Lanes {
    fn new(places: usize) -> Self {
        let lane = || Arc::new(Semaphore::new(places));
        Self { first: lane(), push: lane() }
    }

    /// Waits for a place. Lanes are never closed; who is there without a place would only be early.
    pub(crate) async fn place(&self, lane: Lane) -> Option<OwnedSemaphorePermit> {
        let lane = match lane {
            Lane::First => &self.first,
            Lane::Push => &self.push,
        };
        Arc::clone(lane).acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::{Lane, Lanes};

    #[test]
    fn a_new_proxy_does_not_wait_behind_a_push() {
        let lanes = Lanes::new(1);
        let cx = &mut Context::from_waker(Waker::noop());
        let Poll::Ready(pushing) = pin!(lanes.place(Lane::Push)).poll(cx) else {
            panic!("nobody pushes yet")
        };
        let mut second = pin!(lanes.place(Lane::Push));
        let mut third = pin!(lanes.place(Lane::Push));
        assert!(second.as_mut().poll(cx).is_pending() && third.as_mut().poll(cx).is_pending());
        assert!(pin!(lanes.place(Lane::First)).poll(cx).is_ready());
        drop(pushing);
        assert!(third.as_mut().poll(cx).is_pending(), "it asked later");
        assert!(second.as_mut().poll(cx).is_ready());
    }
}
