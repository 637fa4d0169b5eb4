//! The loop around every adapter: ask, tell, and after a loss wait longer each time before asking again.

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use crate::{Batch, Shelf, Sink};

/// Why an adapter stopped following its registry.
#[derive(Debug)]
pub enum Ended {
    /// Nobody listens any more.
    Closed,
    /// The registry cannot be asked, for a reason that people read; it has no secrets in it.
    Lost(String),
}

impl Ended {
    pub fn lost(why: impl fmt::Display) -> Self {
        Self::Lost(why.to_string())
    }
}

/// An adapter while it is connected.
pub trait Session<K = Shelf>: Send {
    /// Follows the backend until that is no longer possible. What was told before stays.
    fn follow(&mut self, teller: &mut Teller<K>) -> impl Future<Output = Ended> + Send;
}

/// What an adapter keeps of what it told.
pub trait Keeps: Send {
    /// The backend cannot be asked: that is told once, and nothing is taken back.
    fn lose(&mut self, why: &str) -> Batch;
}

impl Keeps for Shelf {
    fn lose(&mut self, why: &str) -> Batch {
        Self::lose(self, &why)
    }
}

/// What is told, and to whom.
pub struct Teller<K = Shelf> {
    pub shelf: K,
    sink: Sink,
    /// Losses since something was told.
    losses: u32,
}

impl<K> Teller<K> {
    pub async fn tell(&mut self, batch: Batch) -> Result<(), Ended> {
        self.losses = 0;
        if batch.is_empty() {
            return Ok(());
        }
        self.sink.send(batch).await.map_err(|_| Ended::Closed)
    }
}

/// Runs an adapter for as long as somebody listens.
pub async fn follow<K: Keeps>(mut session: impl Session<K>, shelf: K, sink: Sink) {
    let closed = sink.clone();
    let mut teller = Teller { shelf, sink, losses: 0 };
    let following = async {
        loop {
            let why = match session.follow(&mut teller).await {
                Ended::Closed => return,
                Ended::Lost(why) => why,
            };
            let batch = teller.shelf.lose(&why);
            if !batch.is_empty() && teller.sink.send(batch).await.is_err() {
                return;
            }
            teller.losses = teller.losses.saturating_add(1);
            tokio::time::sleep(pause(teller.losses, chance())).await;
        }
    };
    tokio::select! {
        () = following => {}
        () = closed.closed() => {}
    }
}

/// The first pause is not felt by anybody; the longest still finds a registry that came back soon enough.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(15);

/// How long to wait after so many losses: twice as long each time, half of it by chance, so that replicas do not come
/// back together.
fn pause(losses: u32, chance: u64) -> Duration {
    let whole = SHORTEST.saturating_mul(1 << losses.min(10)).min(LONGEST);
    let share = u32::try_from(chance % 1000).unwrap_or_default();
    whole / 2 + whole / 2 * share / 1000
}

/// A number that nobody can foretell; the standard library draws its seeds for maps that way.
fn chance() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, SHORTEST, pause};

    #[test]
    fn pauses_grow_up_to_a_limit() {
        assert!(pause(1, 0) >= SHORTEST && pause(1, 999) < SHORTEST * 2);
        assert!(pause(5, 0) > pause(2, 999));
        assert!(pause(u32::MAX, 999) <= LONGEST && pause(20, 0) >= LONGEST / 2);
    }
}
