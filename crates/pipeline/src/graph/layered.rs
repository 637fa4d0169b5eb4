//! Things made of hosts, for everyone and again where a namespace differs.

use std::sync::Arc;

use pilot_base::{Host, Name, SharedMap};
use pilot_envoy::{AutoChain, Part, PartKey, Place, RouteTable, VirtualHost};
use pilot_incr::{Graph, Key, Reader, Table, Value};
use pilot_mesh::Layer;
use pilot_xds::Encoded;

/// Something that is known by a key among others of its kind.
pub(super) trait Item: PartialEq + Clone + Send + Sync + 'static {
    type Key: Key;
    fn key(&self) -> Self::Key;
}

impl Item for Arc<Encoded> {
    type Key = Name;
    fn key(&self) -> Name {
        self.name().clone()
    }
}

impl Item for Part {
    type Key = (Place, PartKey);
    fn key(&self) -> Self::Key {
        (self.place.clone(), self.key.clone())
    }
}

impl Item for AutoChain {
    type Key = Name;
    fn key(&self) -> Name {
        self.key.clone()
    }
}

impl Item for VirtualHost {
    type Key = (RouteTable, Name);
    fn key(&self) -> Self::Key {
        (self.table.clone(), self.name.clone())
    }
}

/// What stands over a lower layer: `None` hides what is there.
pub(super) type Overlay<I> = Vec<(<I as Item>::Key, Option<I>)>;

/// The items of each host, by layer and kind of asker.
pub(super) struct Layered<T, I: Item> {
    pub(super) shared: Table<(Layer, Host, T), Vec<I>>,
    pub(super) own: Table<(Layer, Host, T), Overlay<I>>,
}

impl<T, I: Item> Clone for Layered<T, I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, I: Item> Copy for Layered<T, I> {}

impl<T: Key, I: Item> Layered<T, I> {
    /// The items of a host as a layer sees it, what it has of its own over what everyone has.
    pub(super) fn all(&self, layer: &Layer, host: &Host, asker: &T, reader: &Reader<'_>) -> Vec<I> {
        let key = |layer: &Layer| (layer.clone(), host.clone(), asker.clone());
        let Layer::Namespace(_) = layer else {
            return reader.get(&self.shared, &key(layer)).cloned().unwrap_or_default();
        };
        let base = reader.get(&self.shared, &key(&Layer::Base)).map(Vec::as_slice).unwrap_or_default();
        let own = reader.get(&self.own, &key(layer)).map(Vec::as_slice).unwrap_or_default();
        let is_below = |item: &&I| own.iter().all(|(key, _)| *key != item.key());
        let over = own.iter().filter_map(|(_, item)| item.clone());
        base.iter().filter(is_below).cloned().chain(over).collect()
    }
}

/// How the tables of a family are called, and which hosts they are made of.
pub(super) struct Family<'a, X, Y> {
    /// Hosts with something for everyone; with something of a namespace's own.
    pub(super) names: [&'static str; 4],
    pub(super) shared: &'a Table<(Layer, Host), X>,
    pub(super) own: &'a Table<(Layer, Host), Y>,
}

impl<X: Value, Y: Value> Family<'_, X, Y> {
    /// Declares the tables: `compute` makes the items of a host as a layer sees it, for one kind of asker.
    pub(super) fn declare<T: Key, I: Item, Z: Value>(
        &self,
        graph: &mut Graph,
        askers: &Table<(Layer, T), Z>,
        compute: impl Fn(&(Layer, Host, T), &Reader<'_>) -> Option<Vec<I>> + Send + Sync + Clone + 'static,
    ) -> Layered<T, I> {
        let [shared_keys, shared, own_keys, own] = self.names;
        let shared_keys = graph.product(shared_keys, self.shared, askers);
        let own_keys = graph.product(own_keys, self.own, askers);
        let for_all = compute.clone();
        let shared = graph.map(shared, &shared_keys, for_all);
        let own = graph.map(own, &own_keys, move |key, reader| {
            let (_, host, asker) = key;
            let base = reader.get(&shared, &(Layer::Base, host.clone(), asker.clone()));
            let over =
                over(compute(key, reader).unwrap_or_default(), base.map(Vec::as_slice).unwrap_or_default());
            (!over.is_empty()).then_some(over)
        });
        Layered { shared, own }
    }
}

impl<T: Key> Layered<T, Arc<Encoded>> {
    /// All resources of a layer for one kind of asker.
    pub(super) fn gather(
        &self,
        graph: &mut Graph,
        name: &'static str,
    ) -> Table<(Layer, T), pilot_xds::Layer> {
        self.collect(graph, name)
    }
}

impl<T: Key, I: Item> Layered<T, I> {
    /// All items of a layer for one kind of asker, by their keys.
    pub(super) fn collect(
        &self,
        graph: &mut Graph,
        name: &'static str,
    ) -> Table<(Layer, T), SharedMap<I::Key, Option<I>>> {
        graph.group(name, |feeds| {
            feeds.from(&self.shared, |(layer, _, asker): &(Layer, Host, T), items: &Vec<I>, out| {
                for item in items {
                    out.emit((layer.clone(), asker.clone()), item.key(), Some(item.clone()));
                }
            });
            feeds.from(&self.own, |(layer, _, asker): &(Layer, Host, T), items: &Overlay<I>, out| {
                for (key, item) in items {
                    out.emit((layer.clone(), asker.clone()), key.clone(), item.clone());
                }
            });
        })
    }
}

/// What has to stand over `base` so that only `own` is seen.
fn over<I: Item>(own: Vec<I>, base: &[I]) -> Overlay<I> {
    let mut out: Overlay<I> = Vec::new();
    for item in base {
        let key = item.key();
        if !own.iter().any(|own| own.key() == key) {
            out.push((key, None));
        }
    }
    for item in own {
        if !base.contains(&item) {
            out.push((item.key(), Some(item)));
        }
    }
    out
}

/// The entries of two layers as one, in order.
pub(super) fn merged<'a, K: Ord + Clone, V: Clone>(
    base: Option<&'a SharedMap<K, Option<V>>>,
    own: Option<&'a SharedMap<K, Option<V>>>,
) -> impl Iterator<Item = (&'a K, &'a V)> {
    let mut base = base.into_iter().flatten().peekable();
    let mut own = own.into_iter().flatten().peekable();
    let entries = std::iter::from_fn(move || {
        let from_base = match (base.peek(), own.peek()) {
            (Some((a, _)), Some((b, _))) => {
                if a == b {
                    base.next();
                    false
                } else {
                    a < b
                }
            }
            (from_base, _) => from_base.is_some(),
        };
        if from_base { base.next() } else { own.next() }
    });
    entries.filter_map(|(key, value)| Some((key, value.as_ref()?)))
}

#[cfg(test)]
mod tests {
    use super::merged;
    use pilot_base::SharedMap;

    #[test]
    fn two_layers_read_as_one() {
        let map = |entries: &[(u8, Option<u8>)]| entries.iter().copied().collect::<SharedMap<_, _>>();
        let base = map(&[(1, Some(1)), (2, Some(2)), (4, Some(4))]);
        let own = map(&[(0, Some(0)), (2, None), (3, Some(3)), (4, Some(5))]);
        let merged: Vec<_> = merged(Some(&base), Some(&own)).map(|(k, v)| (*k, *v)).collect();
        assert_eq!(merged, [(0, 0), (1, 1), (3, 3), (4, 5)]);
    }
}
