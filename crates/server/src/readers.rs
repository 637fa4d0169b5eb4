use std::future::Future;
use std::num::NonZero;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Who may have a long request put together now.
///
/// What a proxy asks for first can be a megabyte of names, and a thousand of them may come at once. What nobody reads yet
/// stays with the client, where it costs nothing here.
#[derive(Clone)]
pub(crate) struct Readers(Arc<Semaphore>);

/// What is no longer is read as it comes.
pub(crate) const LONG: usize = 64 << 10;
/// So many for each processor, so that none waits for a network.
const AT_ONCE: usize = 4;
/// A client that takes longer than this to say one thing does not keep others from being heard.
const PATIENCE: Duration = Duration::from_millis(200);

/// Whether one stream may read on.
#[derive(Default)]
pub(crate) enum Turn {
    #[default]
    Nothing,
    Waiting(Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>),
    Had {
        _permit: Option<OwnedSemaphorePermit>,
        until: Instant,
    },
    /// It took too long, and goes on without keeping others waiting.
    Over,
}

impl Default for Readers {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self::with_places(processors * AT_ONCE)
    }
}

impl Readers {
    pub(crate) fn with_places(places: usize) -> Self {
        Self(Arc::new(Semaphore::new(places)))
    }
}

impl Turn {
    /// May a long request be read on?
    pub(crate) fn has_come(&self) -> bool {
        matches!(self, Self::Had { .. } | Self::Over)
    }

    /// Waits for it. Whoever gives up and comes back has kept his place.
    pub(crate) async fn come(&mut self, readers: &Readers) {
        if matches!(self, Self::Nothing) {
            let places = Arc::clone(&readers.0);
            *self = Self::Waiting(Box::pin(async move { places.acquire_owned().await.ok() }));
        }
        if let Self::Waiting(place) = self {
            let permit = place.await;
            *self = Self::Had { _permit: permit, until: Instant::now() + PATIENCE };
        }
    }

    /// Waits for something that the client is to say, and for no longer than others can wait for.
    pub(crate) async fn within<T>(&mut self, said: impl Future<Output = T>) -> T {
        let mut said = pin!(said);
        if let Self::Had { until, .. } = self {
            let until = *until;
            tokio::select! {
                biased;
                said = &mut said => return said,
                () = tokio::time::sleep_until(until) => *self = Self::Over,
            }
        }
        said.await
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use super::{PATIENCE, Readers, Turn};

    const MOMENT: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn who_is_slow_keeps_nobody_waiting_for_long() {
        let readers = Readers::with_places(1);
        let (mut slow, mut next) = (Turn::default(), Turn::default());
        slow.come(&readers).await;
        assert!(tokio::time::timeout(MOMENT, next.come(&readers)).await.is_err());
        assert!(!next.has_come());
        assert_eq!(slow.within(ready(7)).await, 7);
        assert!(tokio::time::timeout(2 * PATIENCE, slow.within(pending::<()>())).await.is_err());
        assert!(slow.has_come(), "it goes on");
        tokio::time::timeout(MOMENT, next.come(&readers)).await.expect("the place is free");
    }
}
