use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::{FastMap, Keyed};
use pilot_model::ProxyId;
use pilot_pipeline::{Audience, Changes};
use tokio::sync::watch;

use crate::cause::{Cause, News};

/// What the proxies of one audience are to have, always the newest.
pub(crate) type Feed = watch::Receiver<News>;

/// What one stream follows: the feed of its audience, and that the audience has become another.
pub(crate) struct Seat(pub(crate) watch::Receiver<Place>);

/// The feed of an audience, and the commit that made a proxy belong to it; none if it belonged to it from the beginning.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) feed: Feed,
    pub(crate) moved_by: Option<Arc<Cause>>,
}

/// Hands out what commits changed. Streams that share an audience share a channel, so that publishing costs what changed
/// and not how many are connected.
#[derive(Default)]
pub(crate) struct Publisher {
    feeds: FastMap<Keyed<Audience>, watch::Sender<News>>,
    seats: BTreeMap<ProxyId, watch::Sender<Place>>,
}

impl Publisher {
    pub(crate) fn publish(&mut self, changes: &Changes, cause: &Arc<Cause>) {
        for (audience, manifests) in &changes.manifests {
            let Some(manifests) = manifests else { continue };
            if let Some(feed) = self.feeds.get(audience) {
                feed.send_modify(|news| news.replace(Arc::clone(manifests), cause));
            } else {
                let news = News::new(Arc::clone(manifests), cause);
                self.feeds.insert(audience.clone(), watch::Sender::new(news));
            }
        }
        for (proxy, audience) in &changes.proxies {
            let feed = audience.as_ref().and_then(|audience| self.feeds.get(audience));
            if let (Some(seat), Some(feed)) = (self.seats.get(proxy), feed) {
                seat.send_replace(Place { feed: feed.subscribe(), moved_by: Some(Arc::clone(cause)) });
            }
        }
        for (audience, _) in changes.manifests.iter().filter(|(_, manifests)| manifests.is_none()) {
            self.feeds.remove(audience);
        }
    }

    /// The seat of a proxy whose row was committed.
    pub(crate) fn seat(&mut self, proxy: ProxyId, audience: &Keyed<Audience>) -> Option<Seat> {
        let feed = self.feeds.get(audience)?;
        let (sender, receiver) = watch::channel(Place { feed: feed.subscribe(), moved_by: None });
        self.seats.insert(proxy, sender);
        Some(Seat(receiver))
    }

    /// When what an audience is to have last changed.
    pub(crate) fn version(&self, audience: &Keyed<Audience>) -> Option<u64> {
        self.feeds.get(audience).map(|feed| feed.borrow().manifests.version)
    }

    #[cfg(test)]
    pub(crate) fn seats(&self) -> usize {
        self.seats.len()
    }

    pub(crate) fn leave(&mut self, proxy: ProxyId) {
        self.seats.remove(&proxy);
    }
}
