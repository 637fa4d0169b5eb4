use std::sync::Arc;

use pilot_base::{FastMap, Name};
use pilot_model::{CertificateFiles, Proxy, ProxyId};

/// How many kinds of proxies there are.
///
/// Some of what a proxy says of itself shapes what it is told of every host. Nearly all proxies say the same there; who says
/// something that he made up has everything worked out anew, and kept, for himself alone: tens of megabytes in a mesh of a
/// thousand services. So there is a limit, and no waiting for who was the last of its kind where there are many.
pub(super) struct Kinds {
    most: usize,
    of: FastMap<ProxyId, Arc<Kind>>,
    counts: FastMap<Arc<Kind>, usize>,
}

/// What of a proxy shapes all that it is told, as far as it may say what it likes.
#[derive(PartialEq, Eq, Hash)]
struct Kind {
    cluster: Name,
    network: Name,
    network_view: Vec<Name>,
    domain: Name,
    files: [CertificateFiles; 2],
}

/// Clusters and networks of a mesh, and not of somebody who tries how many there can be.
const FEW: usize = 16;

impl Kind {
    fn of(proxy: &Proxy) -> Self {
        let domain = proxy.dns_domain.as_str();
        Self {
            cluster: proxy.cluster.clone(),
            network: proxy.network.clone(),
            network_view: proxy.network_view.clone(),
            // What stands before that is a namespace.
            domain: domain.find(".svc.").map_or_else(|| proxy.dns_domain.clone(), |at| domain[at..].into()),
            files: [proxy.client_files.clone(), proxy.server_files.clone()],
        }
    }
}

impl Kinds {
    pub(super) fn new(most: Option<usize>) -> Self {
        Self { most: most.unwrap_or(usize::MAX), of: FastMap::default(), counts: FastMap::default() }
    }

    /// May it come? Who is of a kind that is here already always may.
    pub(super) fn come(&mut self, id: ProxyId, proxy: &Proxy) -> bool {
        let kind = Kind::of(proxy);
        let kind = match self.counts.get_key_value(&kind) {
            Some((known, _)) => Arc::clone(known),
            None if self.counts.len() >= self.most => return false,
            None => Arc::new(kind),
        };
        *self.counts.entry(Arc::clone(&kind)).or_default() += 1;
        self.of.insert(id, kind);
        true
    }

    /// Nothing is kept for it any more.
    pub(super) fn leave(&mut self, id: ProxyId) {
        let Some(kind) = self.of.remove(&id) else { return };
        let Some(count) = self.counts.get_mut(&kind) else { return };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&kind);
        }
    }

    /// Is it worth it to keep for a while what was worked out for a proxy that has left?
    pub(super) fn is_worth_keeping(&self, id: ProxyId) -> bool {
        let of_its_kind = self.of.get(&id).and_then(|kind| self.counts.get(kind)).copied().unwrap_or(0);
        of_its_kind > 1 || of_its_kind == 1 && self.counts.len() <= FEW
    }

    pub(super) fn count(&self) -> usize {
        self.counts.len()
    }
}

#[cfg(test)]
mod tests {
    use pilot_base::Name;
    use pilot_model::{Proxy, ProxyId, ProxyType};

    use super::{FEW, Kinds};

    fn proxy(cluster: usize, namespace: &str) -> Proxy {
        Proxy {
            cluster: Name::from(format!("c{cluster}")),
            dns_domain: Name::from(format!("{namespace}.svc.cluster.local")),
            ..Proxy::new(ProxyType::Sidecar, "p", namespace, Vec::new())
        }
    }

    #[test]
    fn who_makes_up_clusters_does_not_get_far_and_others_come_all_the_same() {
        let mut kinds = Kinds::new(Some(3));
        assert!(kinds.come(ProxyId(1), &proxy(0, "a")));
        let may_come: Vec<bool> = (2..6).map(|n| kinds.come(ProxyId(n), &proxy(n as usize, "a"))).collect();
        assert_eq!(may_come, [true, true, false, false]);
        assert!(kinds.come(ProxyId(9), &proxy(0, "b")), "a namespace makes no kind");
        kinds.leave(ProxyId(2));
        kinds.leave(ProxyId(4));
        assert!(kinds.come(ProxyId(10), &proxy(7, "a")), "there is room again");
        assert_eq!(kinds.count(), 3);
        [1, 3, 9, 10].into_iter().for_each(|id| kinds.leave(ProxyId(id)));
        assert!(kinds.counts.is_empty() && kinds.of.is_empty());
    }

    #[test]
    fn the_last_of_its_kind_is_waited_for_where_there_are_few() {
        let mut kinds = Kinds::new(None);
        for n in 0..FEW {
            assert!(kinds.come(ProxyId(n as u64), &proxy(n, "a")));
        }
        assert!(kinds.is_worth_keeping(ProxyId(0)));
        kinds.come(ProxyId(100), &proxy(100, "a"));
        kinds.come(ProxyId(101), &proxy(100, "a"));
        assert!(!kinds.is_worth_keeping(ProxyId(0)), "there are many");
        assert!(kinds.is_worth_keeping(ProxyId(100)), "and it is not the last");
        assert!(!kinds.is_worth_keeping(ProxyId(102)), "it never came");
    }
}
