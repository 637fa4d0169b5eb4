//! What sources hold back because it cannot be true: that most of what there was is gone all at once. It counts after a
//! while if it stays so, or as soon as somebody says that it is true.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pilot_base::Name;
use tokio::sync::watch;
use tokio::time::Instant;

/// Long enough for somebody to be woken and to look, short enough for what is true after all.
const HOLD: Duration = Duration::from_secs(300);

/// All doubts of a server. Copies are one and the same.
#[derive(Clone)]
pub struct Doubts(Arc<Inner>);

struct Inner {
    hold: Duration,
    open: Mutex<(u64, BTreeMap<u64, Open>)>,
}

struct Open {
    place: Name,
    what: String,
    until: Instant,
    confirmed: watch::Sender<bool>,
}

/// Something that is held back, until this is dropped.
pub struct Doubt {
    of: Arc<Inner>,
    id: u64,
    until: Instant,
    confirmed: watch::Receiver<bool>,
}

/// The same for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// What was listed, and where.
    pub place: Name,
    pub what: String,
    /// How long until it counts.
    pub left: Duration,
}

impl Default for Doubts {
    fn default() -> Self {
        Self::new(HOLD)
    }
}

impl Doubts {
    /// What is not confirmed counts after so long.
    pub fn new(hold: Duration) -> Self {
        Self(Arc::new(Inner { hold, open: Mutex::default() }))
    }

    pub fn hold(&self) -> Duration {
        self.0.hold
    }

    pub fn raise(&self, place: Name, what: String) -> Doubt {
        let until = Instant::now() + self.0.hold;
        let (sender, confirmed) = watch::channel(false);
        let id = self.0.with(|(next, open)| {
            *next += 1;
            open.insert(*next, Open { place, what, until, confirmed: sender });
            *next
        });
        Doubt { of: Arc::clone(&self.0), id, until, confirmed }
    }

    /// Everything that is held back now. What several ask for is one.
    pub fn held(&self) -> Vec<Held> {
        let now = Instant::now();
        let mut all: BTreeMap<Name, Held> = BTreeMap::new();
        self.0.with(|(_, open)| {
            for Open { place, what, until, .. } in open.values() {
                let left = until.saturating_duration_since(now);
                all.entry(place.clone()).or_insert_with(|| Held {
                    place: place.clone(),
                    what: what.clone(),
                    left,
                });
            }
        });
        all.into_values().collect()
    }

    /// Somebody says that it is true: of a place, or of all. Tells of which.
    pub fn confirm(&self, place: Option<&str>) -> Vec<Name> {
        let mut places = self.0.with(|(_, open)| {
            let meant = open.values().filter(|open| place.is_none_or(|place| open.place == place));
            meant
                .map(|open| {
                    open.confirmed.send_replace(true);
                    open.place.clone()
                })
                .collect::<Vec<Name>>()
        });
        places.sort_unstable();
        places.dedup();
        places
    }
}

impl Inner {
    fn with<T>(&self, act: impl FnOnce(&mut (u64, BTreeMap<u64, Open>)) -> T) -> T {
        // Nothing that is done here can be left half done.
        act(&mut self.open.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Doubt {
    /// Resolves when it counts.
    pub async fn is_over(&mut self) {
        let confirmed = async {
            // Who could confirm it is there as long as the doubt is.
            if self.confirmed.wait_for(|confirmed| *confirmed).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = confirmed => {}
            () = tokio::time::sleep_until(self.until) => {}
        }
    }
}

impl Drop for Doubt {
    fn drop(&mut self) {
        self.of.with(|(_, open)| drop(open.remove(&self.id)));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pilot_base::Name;

    use super::Doubts;

    #[tokio::test(start_paused = true)]
    async fn what_is_held_back_counts_when_it_is_confirmed_or_after_a_while() {
        let doubts = Doubts::new(Duration::from_secs(60));
        let mut pods = doubts.raise(Name::new("east: pods"), "9 of 10 are gone".to_owned());
        let mut nodes = doubts.raise(Name::new("east: nodes"), "all are gone".to_owned());
        assert_eq!(doubts.held().len(), 2);
        assert!(doubts.confirm(Some("west: pods")).is_empty());
        assert_eq!(doubts.confirm(Some("east: pods")), ["east: pods"]);
        let begun = tokio::time::Instant::now();
        pods.is_over().await;
        assert!(begun.elapsed().is_zero());
        drop(pods);
        assert_eq!(doubts.held()[0].place, "east: nodes");
        nodes.is_over().await;
        assert_eq!(begun.elapsed(), Duration::from_secs(60));
        drop(nodes);
        assert!(doubts.held().is_empty() && doubts.confirm(None).is_empty());
    }
}
