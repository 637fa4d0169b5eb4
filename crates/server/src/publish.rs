use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::FastMap;
use pilot_model::ProxyId;
use pilot_pipeline::{Audience, Changes};
use pilot_xds::Manifests;
use tokio::sync::watch;

/// What the proxies of one audience are to have, always the newest.
pub(crate) type Feed = watch::Receiver<Arc<Manifests>>;

/// What one stream follows: the feed of its audience, and that the audience has become another.
pub(crate) struct Seat(pub(crate) watch::Receiver<Feed>);

/// Hands out what commits changed. Streams that share an audience share a channel, so that publishing costs what changed
/// and not how many are connected.
#[derive(Default)]
pub(crate) struct Publisher {
    feeds: FastMap<Arc<Audience>, watch::Sender<Arc<Manifests>>>,
    seats: BTreeMap<ProxyId, watch::Sender<Feed>>,
}

impl Publisher {
    pub(crate) fn publish(&mut self, changes: &Changes) {
        for (audience, manifests) in &changes.manifests {
            let Some(manifests) = manifests else { continue };
            if let Some(feed) = self.feeds.get(audience) {
                feed.send_replace(Arc::clone(manifests));
            } else {
                self.feeds.insert(Arc::clone(audience), watch::Sender::new(Arc::clone(manifests)));
            }
        }
        for (proxy, audience) in &changes.proxies {
            let feed = audience.as_ref().and_then(|audience| self.feeds.get(audience));
            if let (Some(seat), Some(feed)) = (self.seats.get(proxy), feed) {
                seat.send_replace(feed.subscribe());
            }
        }
        for (audience, _) in changes.manifests.iter().filter(|(_, manifests)| manifests.is_none()) {
            self.feeds.remove(audience);
        }
    }

    /// The seat of a proxy whose row was committed.
    pub(crate) fn seat(&mut self, proxy: ProxyId, audience: &Arc<Audience>) -> Option<Seat> {
        let feed = self.feeds.get(audience)?;
        let (sender, receiver) = watch::channel(feed.subscribe());
        self.seats.insert(proxy, sender);
        Some(Seat(receiver))
    }

    pub(crate) fn leave(&mut self, proxy: ProxyId) {
        self.seats.remove(&proxy);
    }
}
