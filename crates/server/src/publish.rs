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
    /// Who belongs to an audience for which nothing could be worked out: what they had is what they keep until there is
    /// something.
    astray: BTreeMap<ProxyId, (Keyed<Audience>, Arc<Cause>)>,
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
            self.astray.remove(proxy);
            if let Some(audience) = audience.as_ref().filter(|_| self.seats.contains_key(proxy)) {
                self.astray.insert(*proxy, (audience.clone(), Arc::clone(cause)));
            }
        }
        let (feeds, seats) = (&self.feeds, &self.seats);
        self.astray.retain(|proxy, (audience, moved_by)| {
            let (Some(feed), Some(seat)) = (feeds.get(audience), seats.get(proxy)) else { return true };
            seat.send_replace(Place { feed: feed.subscribe(), moved_by: Some(Arc::clone(moved_by)) });
            false
        });
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
        self.astray.remove(&proxy);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pilot_base::{Keyed, Name};
    use pilot_incr::{Shard, Txn};
    use pilot_model::{MeshConfig, MeshOptions, Proxy, ProxyId, ProxyType};
    use pilot_pipeline::{Audience, Changes, Pipeline};

    use super::{Publisher, Seat};
    use crate::cause::Cause;

    const SHARD: Shard = Shard(1);

    fn proxy(namespace: &str) -> Arc<Proxy> {
        let ip = "10.9.0.1".parse().expect("an address");
        Arc::new(Proxy {
            dns_domain: Name::from(format!("{namespace}.svc.cluster.local")),
            ..Proxy::new(ProxyType::Sidecar, &format!("p.{namespace}"), namespace, vec![ip])
        })
    }

    fn commit(pipeline: &mut Pipeline, namespace: &str) -> Changes {
        let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
        txn.upsert(&inputs.options, SHARD, (), MeshOptions::default());
        txn.upsert(&inputs.mesh, SHARD, (), MeshConfig::default());
        txn.upsert(&inputs.proxies, SHARD, ProxyId(1), proxy(namespace));
        pipeline.commit(txn)
    }

    #[test]
    fn who_is_moved_to_where_there_is_nothing_is_seated_when_there_is() {
        let (mut pipeline, mut publisher) = (Pipeline::new(), Publisher::default());
        let cause = Arc::new(Cause::new(1, (0, 0), Vec::new()));
        publisher.publish(&commit(&mut pipeline, "here"), &cause);
        let audience: Keyed<Audience> = pipeline.audience_of(ProxyId(1)).expect("it is connected");
        let Seat(mut seat) = publisher.seat(ProxyId(1), &audience).expect("there is something to send");

        // A row above what it is to have failed, so there is nothing; and the feed that it had is given up.
        let mut moved = commit(&mut pipeline, "there");
        let late: Vec<_> = moved.manifests.extract_if(.., |(_, manifests)| manifests.is_some()).collect();
        assert_eq!((late.len(), moved.proxies.len()), (1, 1));
        publisher.publish(&moved, &cause);
        assert!(!seat.has_changed().expect("it is there"), "it keeps what it has");
        let version = late[0].1.as_ref().expect("it is there now").version;
        publisher.publish(&Changes { manifests: late, proxies: Vec::new(), ..moved }, &cause);
        assert!(seat.has_changed().expect("it is there"));
        let place = seat.borrow_and_update();
        assert_eq!(place.feed.borrow().manifests.version, version);
        assert!(publisher.astray.is_empty());
    }
}
