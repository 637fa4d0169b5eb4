//! Which kinds of rules there are, and where they stand.

use std::time::Duration;

use pilot_base::Name;
use pilot_model::Kind;
use tokio::sync::watch;

use super::{Hub, Message, Role, Who};
use crate::client::CallError;
use crate::crds;
use crate::follow::{SETTLED, Trouble};
use crate::known::{Change, What};
use crate::pace::jitter;
use crate::resource::Resource;

const AGAIN: Duration = Duration::from_secs(1);
/// Somebody may have granted by then what was refused.
const LATER: Duration = Duration::from_secs(60);

impl Hub {
    pub(super) fn definitions(&mut self, changes: Vec<Change<Kind>>) {
        for change in changes {
            match change.what {
                What::Put(kind) => {
                    self.defined.insert(kind);
                    // Rules of a kind that comes later are not waited for.
                    if self.initial.is_some() {
                        self.pending.insert(Who::Crd(kind));
                    }
                    self.ask_for_definition(kind, Duration::ZERO);
                }
                What::Gone => {
                    self.defined.retain(|kind| crds::kind_of(&change.id.name) != Some(*kind));
                    self.unread.retain(|kind, _| crds::kind_of(&change.id.name) != Some(*kind));
                }
                What::Same => {}
            }
        }
        // Other clusters need none.
        if matches!(self.options.role, Role::Home { .. }) {
            let missing = crds::missing(&self.defined, &self.options.read.cluster);
            self.note(Name::new("CRDs"), missing);
        }
    }

    /// Who may not see definitions tries what Istio serves today.
    pub(super) fn assume_definitions(&mut self) {
        let kinds = self.options.role.rules().map_or_else(Vec::new, |(_, kinds)| kinds);
        for (kind, resource) in crds::usual().filter(|(kind, _)| kinds.contains(kind)) {
            if !self.places.contains_key(&kind) {
                self.stands(kind, resource);
            }
        }
    }

    fn ask_for_definition(&mut self, kind: Kind, after: Duration) {
        let (client, teller) = (self.client.clone(), self.messages.0.clone());
        self.tasks.spawn(async move {
            tokio::time::sleep(jitter(after)).await;
            let found = crds::stored(&client, kind).await;
            // A hub that is gone does not want to know.
            let _gone = teller.send(Message::Crd(kind, found)).await;
        });
    }

    pub(super) fn definition(&mut self, kind: Kind, found: Result<Option<Resource>, CallError>) {
        if !matches!(&found, Err(error) if error.status() == Some(403))
            && self.unread.remove(&kind).is_some()
            && self.unread.is_empty()
        {
            self.well_defined();
        }
        match found {
            Ok(Some(resource)) => self.stands(kind, resource),
            // It will say so when it is served; until then it is as if it were not there.
            Ok(None) => drop(self.pending.remove(&Who::Crd(kind))),
            Err(error) if error.status() == Some(404) => drop(self.pending.remove(&Who::Crd(kind))),
            Err(_) if !self.defined.contains(&kind) => {}
            Err(error) if error.status() == Some(403) => self.unread(kind, error),
            Err(_) => self.ask_for_definition(kind, AGAIN),
        }
    }

    /// We may know that a definition is there and not what it says, if that is not only so because the API server has just
    /// been started.
    fn unread(&mut self, kind: Kind, error: CallError) {
        let now = self.client.clock().now();
        let since = *self.unread.entry(kind).or_insert(now);
        if now.saturating_sub(since) < SETTLED {
            self.ask_for_definition(kind, AGAIN);
            return;
        }
        self.note_trouble(Who::Crd(kind), &Trouble::Forbidden(error));
        self.ask_for_definition(kind, LATER);
        if !self.places.contains_key(&kind) {
            let (client, teller) = (self.client.clone(), self.messages.0.clone());
            self.tasks.spawn(async move {
                let found = crds::served(&client, kind).await;
                let _gone = teller.send(Message::Served(kind, found)).await;
            });
        }
    }

    /// In which version the API server serves a kind; if it does not even say that, it is what Istio serves today.
    pub(super) fn served(&mut self, kind: Kind, found: Result<Option<Resource>, CallError>) {
        if self.places.contains_key(&kind) {
            return;
        }
        match found {
            Ok(Some(resource)) => self.stands(kind, resource),
            Ok(None) => drop(self.pending.remove(&Who::Crd(kind))),
            Err(_) => {
                let usual = crds::usual().find(|(usual, _)| *usual == kind);
                usual.into_iter().for_each(|(kind, resource)| self.stands(kind, resource));
            }
        }
    }

    /// Follows a kind where it stands, or where it has moved to.
    fn stands(&mut self, kind: Kind, mut resource: Resource) {
        resource.namespace.clone_from(&self.options.only_namespace);
        self.pending.remove(&Who::Crd(kind));
        if let Some(place) = self.places.get(&kind) {
            place.send_if_modified(|known| {
                let is_new = *known != resource;
                known.clone_from(&resource);
                is_new
            });
            return;
        }
        let (sender, place) = watch::channel(resource);
        self.places.insert(kind, sender);
        self.found.send_modify(|found| drop(found.insert(kind, place.clone())));
        self.follow_kind(kind, place);
        if self.initial.is_none() {
            self.pending.remove(&Who::Kind(kind));
        }
    }
}
