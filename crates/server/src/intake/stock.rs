//! How much each source has told, whether or not it counts.

use std::collections::BTreeMap;

use pilot_base::FastMap;
use pilot_incr::Shard;
use pilot_model::{Object, ObjectKey};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Amount {
    pub(crate) services: usize,
    pub(crate) endpoints: usize,
}

/// All of it, by source.
#[derive(Default)]
pub(crate) struct Stock {
    by_shard: BTreeMap<Shard, Shelf>,
}

/// What each object of a source comes to. Most kinds come to nothing, and are not here.
#[derive(Default)]
struct Shelf {
    objects: FastMap<ObjectKey, (u32, u32)>,
    total: Amount,
}

impl Stock {
    pub(crate) fn put(&mut self, shard: Shard, object: &Object) {
        let Some(amount) = amount(object) else { return };
        let shelf = self.by_shard.entry(shard).or_default();
        let before = shelf.objects.insert(object.key(), amount);
        shelf.add(amount);
        shelf.take(before);
    }

    pub(crate) fn remove(&mut self, shard: Shard, key: &ObjectKey) {
        let Some(shelf) = self.by_shard.get_mut(&shard) else { return };
        let before = shelf.objects.remove(key);
        shelf.take(before);
    }

    /// The source tells everything anew.
    pub(crate) fn clear(&mut self, shard: Shard) {
        self.by_shard.remove(&shard);
    }

    pub(crate) fn of(&self, shard: Shard) -> Amount {
        self.by_shard.get(&shard).map(|shelf| shelf.total).unwrap_or_default()
    }
}

impl Shelf {
    fn add(&mut self, (services, endpoints): (u32, u32)) {
        self.total.services += services as usize;
        self.total.endpoints += endpoints as usize;
    }

    fn take(&mut self, before: Option<(u32, u32)>) {
        let (services, endpoints) = before.unwrap_or_default();
        self.total.services -= services as usize;
        self.total.endpoints -= endpoints as usize;
    }
}

/// Services and endpoints that an object stands for.
fn amount(object: &Object) -> Option<(u32, u32)> {
    let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
    match object {
        Object::ServiceEntry(entry) => {
            Some((count(entry.spec.hosts.len()), count(entry.spec.endpoints.len())))
        }
        Object::Service(..) => Some((1, 0)),
        Object::EndpointSlice(_, slice) => Some((0, count(slice.endpoints.len()))),
        Object::WorkloadEntry(_) => Some((0, 1)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use pilot_config::ReadOptions;
    use pilot_incr::Shard;

    use super::{Amount, Stock};

    const FILES: &str = "
apiVersion: v1
kind: Service
metadata: {name: shop, namespace: default}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: shop-1, namespace: default, labels: {kubernetes.io/service-name: shop}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.0.0.1]}, {addresses: [10.0.0.2]}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: far, namespace: default}
spec:
  hosts: [a.example.com, b.example.com]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 10.0.0.3}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: far, namespace: default}
spec: {host: a.example.com}
";

    #[test]
    fn what_a_source_has_is_counted_whatever_it_is() {
        let options = ReadOptions { platform: true, ..ReadOptions::default() };
        let read = pilot_config::read(FILES, "files", &options).unwrap();
        let (mut stock, shard) = (Stock::default(), Shard(7));
        for (_, _, object) in &read.objects {
            stock.put(shard, object);
            stock.put(shard, object);
        }
        assert_eq!(stock.of(shard), Amount { services: 3, endpoints: 3 });
        assert_eq!(stock.of(Shard(8)), Amount::default());
        for (_, _, object) in &read.objects {
            stock.remove(shard, &object.key());
            stock.remove(shard, &object.key());
        }
        assert_eq!(stock.of(shard), Amount::default());
    }
}
