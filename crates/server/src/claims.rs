//! Which source an object belongs to. Two stores that have the same object are a mistake that names both.

use std::collections::BTreeMap;

use pilot_base::{FastMap, Issue, Name};
use pilot_incr::Shard;
use pilot_model::{ConfigId, Kind, Object, ObjectKey};

/// Who said what first.
#[derive(Default)]
pub(crate) struct Claims {
    owners: FastMap<ObjectKey, Shard>,
    /// What others say about an object that is not theirs; it counts when the owner has gone silent.
    waiting: BTreeMap<ObjectKey, BTreeMap<Shard, Object>>,
    names: BTreeMap<Shard, Name>,
}

/// What becomes of an object that its source says no more.
pub(crate) enum Release {
    /// It did not count.
    Nothing,
    Gone,
    /// Another source has it too.
    Next(Shard, Box<Object>),
}

impl Claims {
    pub(crate) fn name(&mut self, shard: Shard, name: &Name) {
        self.names.entry(shard).or_insert_with(|| name.clone());
    }

    /// The object, if it is the source's to say.
    pub(crate) fn claim(&mut self, shard: Shard, object: Object) -> Option<Object> {
        if !is_owned(&object) {
            return Some(object);
        }
        let key = object.key();
        match self.owners.get(&key) {
            Some(owner) if *owner != shard => {
                self.waiting.entry(key).or_default().insert(shard, object);
                None
            }
            Some(_) => Some(object),
            None => {
                self.owners.insert(key, shard);
                Some(object)
            }
        }
    }

    pub(crate) fn release(&mut self, shard: Shard, key: &ObjectKey) -> Release {
        if let Some(waiting) = self.waiting.get_mut(key)
            && waiting.remove(&shard).is_some()
        {
            if waiting.is_empty() {
                self.waiting.remove(key);
            }
            return Release::Nothing;
        }
        if self.owners.get(key).is_none_or(|owner| *owner != shard) {
            // Nobody owns what only one source can have.
            return Release::Gone;
        }
        self.owners.remove(key);
        let next = self.waiting.get_mut(key).and_then(BTreeMap::pop_first);
        if self.waiting.get(key).is_some_and(BTreeMap::is_empty) {
            self.waiting.remove(key);
        }
        match next {
            None => Release::Gone,
            Some((next, object)) => {
                self.owners.insert(key.clone(), next);
                Release::Next(next, Box::new(object))
            }
        }
    }

    /// What a source says, as far as it is recorded here.
    pub(crate) fn of(&self, shard: Shard) -> Vec<ObjectKey> {
        let owned = self.owners.iter().filter(|(_, owner)| **owner == shard).map(|(key, _)| key.clone());
        let waiting =
            self.waiting.iter().filter(|(_, all)| all.contains_key(&shard)).map(|(key, _)| key.clone());
        owned.chain(waiting).collect()
    }

    /// How many objects a source has that count.
    pub(crate) fn count(&self, shard: Shard) -> usize {
        self.owners.values().filter(|owner| **owner == shard).count()
    }

    /// Where issues about an object that several sources have are kept.
    pub(crate) fn place((kind, id): &ObjectKey) -> Name {
        Name::from(format!("{kind} {id}"))
    }

    /// What is wrong with an object that several sources have.
    pub(crate) fn issues(&self, key: &ObjectKey) -> Vec<Issue> {
        let name = |shard: &Shard| self.names.get(shard).cloned().unwrap_or_default();
        let Some(owner) = self.owners.get(key).map(name) else { return Vec::new() };
        let (kind, id): (&Kind, &ConfigId) = (&key.0, &key.1);
        let others = self.waiting.get(key).into_iter().flatten();
        let issue = |(shard, _): (&Shard, &Object)| {
            let other = name(shard);
            let message = format!("both {owner} and {other} have this object; what {owner} says counts");
            Issue::error(id.object(*kind), "", message).at(other.as_str())
        };
        others.map(issue).collect()
    }
}

/// Kubernetes' own objects come from one cluster, and a registry's from that registry; their names differ.
fn is_owned(object: &Object) -> bool {
    match object {
        Object::ServiceEntry(config) => config.spec.registry.is_none(),
        _ => is_owned_kind(object.key().0),
    }
}

fn is_owned_kind(kind: Kind) -> bool {
    !matches!(
        kind,
        Kind::Service
            | Kind::EndpointSlice
            | Kind::Endpoints
            | Kind::Pod
            | Kind::Node
            | Kind::Namespace
            | Kind::Secret
    )
}

#[cfg(test)]
mod tests {
    use pilot_base::Name;
    use pilot_config::ReadOptions;
    use pilot_incr::Shard;
    use pilot_model::Object;

    use super::{Claims, Release};

    fn rule(host: &str) -> Object {
        let head = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: rule, namespace: shop}";
        let text = format!("{head}\nspec: {{host: {host}}}\n");
        let mut read = pilot_config::read(&text, "x", &ReadOptions::default()).unwrap();
        read.objects.remove(0).2
    }

    #[test]
    fn two_sources_with_one_object_are_both_named() {
        let mut claims = Claims::default();
        claims.name(Shard(1), &Name::new("files"));
        claims.name(Shard(2), &Name::new("etcd"));
        let (mine, yours) = (rule("a.com"), rule("b.com"));
        let key = mine.key();
        assert!(claims.claim(Shard(1), mine).is_some());
        assert!(claims.issues(&key).is_empty());
        assert!(claims.claim(Shard(2), yours.clone()).is_none());
        let issue = claims.issues(&key)[0].to_string();
        assert!(issue.contains("both files and etcd have this object; what files says counts"), "{issue}");
        assert_eq!((claims.count(Shard(1)), claims.of(Shard(2)).len()), (1, 1));
        assert!(
            matches!(claims.release(Shard(1), &key), Release::Next(Shard(2), object) if *object == yours)
        );
        assert!(claims.issues(&key).is_empty());
        assert!(matches!(claims.release(Shard(2), &key), Release::Gone));
    }
}
