use std::sync::Arc;

use pilot_base::{FastMap, Name};

use crate::{Manifests, TypeUrl};

/// Why a cluster is owed endpoints.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Owed {
    /// The client cannot use it and does not need to, because it is gone; but it may come back before the client has let
    /// go of it, and then nobody would send it again.
    Asleep,
    /// The client had it before and goes on using the old definition.
    Changed,
    /// The client cannot use it yet, and nobody waits for that any more, or needs to.
    First,
    /// The client cannot use it yet, and what may name it waits.
    New,
}

/// Clusters that were sent on a stream and not yet followed by endpoints.
///
/// A new client is owed endpoints for everything, which is not written down name by name: most are paid at once too.
#[derive(Default)]
pub(crate) struct Owing {
    /// Every cluster of that moment with endpoints then.
    all: Option<(Arc<Manifests>, Owed)>,
    some: FastMap<Name, Owed>,
}

impl Owing {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_none() && self.some.is_empty()
    }

    /// Is there a cluster that what may name it waits for?
    pub(crate) fn is_waited_for(&self) -> bool {
        let all = self.all.as_ref().is_some_and(|(_, owed)| *owed == Owed::New);
        all || self.some.values().any(|owed| *owed == Owed::New)
    }

    /// All clusters of a moment are owed, whatever was owed before.
    pub(crate) fn owe_all(&mut self, moment: &Arc<Manifests>, owed: Owed) {
        let mut with_endpoints = moment.of(TypeUrl::Endpoint).iter();
        let any = with_endpoints.any(|endpoints| moment.of(TypeUrl::Cluster).contains(endpoints.name()));
        *self = Self { all: any.then(|| (Arc::clone(moment), owed)), some: FastMap::default() };
    }

    /// A cluster is owed: `owed` if that is new, else what `after` makes of the reason there was.
    pub(crate) fn owe(&mut self, name: Name, owed: Owed, after: impl FnOnce(Owed) -> Owed) {
        let some = self.one_by_one();
        some.entry(name).and_modify(|before| *before = after(*before)).or_insert(owed);
    }

    /// Whoever is `from` becomes `to`.
    pub(crate) fn turn(&mut self, from: Owed, to: Owed) {
        let all = self.all.iter_mut().map(|(_, owed)| owed);
        all.chain(self.some.values_mut()).filter(|owed| **owed == from).for_each(|owed| *owed = to);
    }

    pub(crate) fn turn_all(&mut self, to: Owed) {
        let all = self.all.iter_mut().map(|(_, owed)| owed);
        all.chain(self.some.values_mut()).for_each(|owed| *owed = to);
    }

    pub(crate) fn pay<'a>(&mut self, names: impl Iterator<Item = &'a Name>) {
        if !self.is_empty() {
            let some = self.one_by_one();
            for name in names {
                some.remove(name);
            }
            // What was many is none: the place they took is given back.
            if some.is_empty() {
                *some = FastMap::default();
            }
        }
    }

    /// Endpoints were sent for everything that has any at a moment.
    pub(crate) fn pay_all(&mut self, moment: &Manifests) {
        let is_paid = |(owed, _): &(Arc<Manifests>, Owed)| {
            owed.of(TypeUrl::Endpoint).same(moment.of(TypeUrl::Endpoint))
        };
        if self.all.as_ref().is_some_and(is_paid) {
            self.all = None;
        }
        self.pay(moment.of(TypeUrl::Endpoint).iter().map(|endpoints| endpoints.name()));
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Name, &mut Owed) -> bool) {
        if !self.is_empty() {
            self.one_by_one().retain(|name, owed| keep(name, owed));
        }
    }

    pub(crate) fn iter(&mut self) -> impl Iterator<Item = (&Name, Owed)> {
        self.one_by_one().iter().map(|(name, owed)| (name, *owed))
    }

    fn one_by_one(&mut self) -> &mut FastMap<Name, Owed> {
        if let Some((moment, owed)) = self.all.take() {
            let clusters = moment.of(TypeUrl::Cluster);
            let names = moment.of(TypeUrl::Endpoint).iter().map(|endpoints| endpoints.name());
            self.some.extend(names.filter(|name| clusters.contains(name)).map(|name| (name.clone(), owed)));
        }
        &mut self.some
    }
}
