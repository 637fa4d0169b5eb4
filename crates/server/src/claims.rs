//! Which source an object belongs to. Two stores that have the same object are a mistake that names both.

use std::collections::{BTreeMap, BTreeSet};

use pilot_base::{FastMap, Issue, Name};
use pilot_incr::Shard;
use pilot_model::{ConfigId, Kind, Object, ObjectKey};

/// Who says what. Of several the first one counts in the order in which they are followed, which is the same in every
/// replica, and not the one that happened to answer first. What counts is for the tables to know; here is who else is there.
#[derive(Default)]
pub(crate) struct Claims {
    owners: FastMap<ObjectKey, Shard>,
    /// Those that have an object which is another one's.
    others: BTreeMap<ObjectKey, BTreeSet<Shard>>,
    names: BTreeMap<Shard, Name>,
}

impl Claims {
    pub(crate) fn name(&mut self, shard: Shard, name: &Name) {
        self.names.entry(shard).or_insert_with(|| name.clone());
    }

    /// A source has an object. Tells whether others have it too, if that is new.
    pub(crate) fn claim(&mut self, shard: Shard, object: &Object) -> bool {
        if !is_owned(object) {
            return false;
        }
        let key = object.key();
        let Some(owner) = self.owners.get_mut(&key) else {
            self.owners.insert(key, shard);
            return false;
        };
        if *owner == shard {
            return false;
        }
        let other = shard.max(*owner);
        *owner = shard.min(*owner);
        self.others.entry(key).or_default().insert(other)
    }

    /// A source has it no more. Tells whether others had it too.
    pub(crate) fn release(&mut self, shard: Shard, key: &ObjectKey) -> bool {
        let is_owner = self.owners.get(key) == Some(&shard);
        let Some(mut others) = self.others.remove(key) else {
            if is_owner {
                self.owners.remove(key);
            }
            return false;
        };
        if is_owner {
            self.owners.extend(others.pop_first().map(|next| (key.clone(), next)));
        } else {
            others.remove(&shard);
        }
        if !others.is_empty() {
            self.others.insert(key.clone(), others);
        }
        true
    }

    /// What a source says, as far as it is recorded here.
    pub(crate) fn of(&self, shard: Shard) -> Vec<ObjectKey> {
        let owned = self.owners.iter().filter(|(_, owner)| **owner == shard).map(|(key, _)| key.clone());
        let others = self.others.iter().filter(|(_, all)| all.contains(&shard)).map(|(key, _)| key.clone());
        owned.chain(others).collect()
    }

    /// How many objects a source has that count.
    pub(crate) fn count(&self, shard: Shard) -> usize {
        self.owners.values().filter(|owner| **owner == shard).count()
    }

    pub(crate) fn owner(&self, key: &ObjectKey) -> Option<&Name> {
        self.names.get(self.owners.get(key)?)
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
        let others = self.others.get(key).into_iter().flatten();
        let issue = |shard: &Shard| {
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

    use super::Claims;

    fn rule(host: &str) -> Object {
        let head = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: rule, namespace: shop}";
        let text = format!("{head}\nspec: {{host: {host}}}\n");
        let mut read = pilot_config::read(&text, "x", &ReadOptions::default()).unwrap();
        read.objects.remove(0).2
    }

    #[test]
    fn two_sources_with_one_object_are_both_named_whoever_came_first() {
        let (mine, yours) = (rule("a.com"), rule("b.com"));
        let key = mine.key();
        for order in [[1, 2], [2, 1]] {
            let mut claims = Claims::default();
            claims.name(Shard(1), &Name::new("files"));
            claims.name(Shard(2), &Name::new("etcd"));
            assert!(!claims.claim(Shard(order[0]), &mine));
            assert!(claims.issues(&key).is_empty());
            assert!(claims.claim(Shard(order[1]), &yours) && !claims.claim(Shard(order[1]), &yours));
            let issue = claims.issues(&key)[0].to_string();
            assert!(
                issue.contains("both files and etcd have this object; what files says counts"),
                "{issue}"
            );
            assert_eq!((claims.count(Shard(1)), claims.of(Shard(2)).len()), (1, 1));
            assert!(claims.release(Shard(1), &key) && claims.issues(&key).is_empty());
            assert_eq!(claims.owner(&key), Some(&Name::new("etcd")));
            assert!(!claims.release(Shard(2), &key) && claims.owner(&key).is_none());
        }
    }
}
