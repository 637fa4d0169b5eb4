use std::num::NonZero;
use std::sync::Arc;

use pilot_base::{Clock, Micros};
use tokio::sync::oneshot;

use crate::places::{Place, Places};

/// Who may have a long request put together now.
///
/// What a proxy asks for first can be a megabyte of names, and a thousand of them may come at once. What nobody reads yet
/// stays with the client, where it costs nothing here.
#[derive(Clone)]
pub(crate) struct Readers(Arc<Places>);

/// What is no longer is read as it comes.
pub(crate) const LONG: usize = 64 << 10;
/// So many for each processor, so that none waits for a network.
const AT_ONCE: usize = 4;
/// A client that takes longer than this to say one thing does not keep others from being heard: it goes on beside them.
const PATIENCE: Micros = 200_000;

/// Whether one stream may read on.
#[derive(Default)]
pub(crate) enum Turn {
    #[default]
    Nothing,
    Waiting(oneshot::Receiver<Place>),
    /// Nothing only if nobody looks after places any more.
    Had {
        _place: Option<Place>,
    },
}

impl Readers {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self::with_places(processors * AT_ONCE, clock)
    }

    pub(crate) fn with_places(places: usize, clock: Arc<dyn Clock>) -> Self {
        Self(Places::new(places, PATIENCE, clock))
    }

    /// Lets others read whose turn it is, for as long as it is asked.
    pub(crate) async fn release(&self) {
        self.0.release().await;
    }
}

impl Turn {
    /// May a long request be read on?
    pub(crate) fn has_come(&self) -> bool {
        matches!(self, Self::Had { .. })
    }

    /// Waits for it. Whoever gives up and comes back has kept his place.
    pub(crate) async fn come(&mut self, readers: &Readers) {
        if matches!(self, Self::Nothing) {
            *self = Self::Waiting(readers.0.ask());
        }
        if let Self::Waiting(place) = self {
            let place = place.await.ok();
            *self = Self::Had { _place: place };
        }
    }
}

/// For tests: what the task does that looks after places.
#[cfg(test)]
impl Readers {
    pub(crate) fn look(&self) {
        self.0.look();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Waker};

    use super::{PATIENCE, Readers, Turn};
    use crate::clock::Held;

    fn has_come(turn: &mut Turn, readers: &Readers) -> bool {
        // Who waits gives up, and comes back.
        let come = pin!(turn.come(readers));
        come.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn who_is_slow_keeps_nobody_waiting_for_long() {
        let clock = Arc::new(Held::default());
        let readers = Readers::with_places(1, clock.clone());
        let [mut slow, mut next] = [Turn::default(), Turn::default()];
        assert!(has_come(&mut slow, &readers));
        clock.go_on(PATIENCE - 1);
        readers.look();
        assert!(!has_come(&mut next, &readers));
        clock.go_on(1);
        readers.look();
        assert!(slow.has_come(), "it goes on");
        assert!(has_come(&mut next, &readers), "the place is free");
    }

    #[test]
    fn who_is_not_run_keeps_nobody_waiting_with_a_turn_that_came_unseen() {
        let clock = Arc::new(Held::default());
        let readers = Readers::with_places(1, clock.clone());
        let [mut first, mut stuck, mut next] = [Turn::default(), Turn::default(), Turn::default()];
        assert!(has_come(&mut first, &readers));
        assert!(!has_come(&mut stuck, &readers) && !has_come(&mut next, &readers));
        drop(first);
        assert!(!has_come(&mut next, &readers), "it is another's turn");
        clock.go_on(PATIENCE);
        readers.look();
        assert!(has_come(&mut next, &readers), "who was given the place was never seen again");
        assert!(has_come(&mut stuck, &readers), "it may go on, late");
    }
}
