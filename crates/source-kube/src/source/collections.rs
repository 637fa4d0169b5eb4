//! How each collection is: what has been told of it, and what is wrong with it.

use pilot_base::{Issue, Name};
use pilot_model::{Kind, PodSight};

use super::{Hub, Role, Who};
use crate::crds;
use crate::follow::{Trouble, Update};
use crate::known::Change;
use crate::resource::{PLATFORM, VITAL, platform};
use crate::troubles::Upshot;

impl Hub {
    /// What is different in a collection; what is wrong with it is noted.
    pub(super) fn changes<T>(&mut self, who: Who, update: Update<T>) -> Option<Vec<Change<T>>> {
        match update {
            Update::Changed { whole, epoch, changes } => {
                if whole {
                    self.told(who, epoch);
                }
                return Some(changes);
            }
            Update::Well => {
                self.parting.slices_are_held &= who != Who::Kind(Kind::EndpointSlice);
                // That definitions are listed does not say that we may read them.
                let is_half = who == Who::Crds && !self.unread.is_empty();
                if !is_half && self.troubles.well(&self.name_of(who)) {
                    self.tell_troubles();
                }
            }
            Update::Trouble(trouble) => self.trouble(who, &trouble),
        }
        None
    }

    /// Everything of it was told.
    fn told(&mut self, who: Who, epoch: u64) {
        match who {
            Who::Kind(kind) => {
                self.whole.insert(kind, epoch);
                if kind == Kind::Pod {
                    self.sight.set(PodSight::Clear);
                }
                // What else has told may be of no use, if it was not known then what counts.
                if PLATFORM.contains(&kind) && kind != Kind::EndpointSlice {
                    self.pending.remove(&who);
                }
            }
            _ => drop(self.pending.remove(&who)),
        }
    }

    fn trouble(&mut self, who: Who, trouble: &Trouble) {
        let is_missing = matches!(trouble, Trouble::Call(error) if error.status() == Some(404));
        let is_forbidden = matches!(trouble, Trouble::Forbidden(_));
        let is_undefined = is_missing
            && matches!(who, Who::Kind(kind) if !PLATFORM.contains(&kind) && !self.defined.contains(&kind));
        // What we may not see does not keep the rest from being served, if that is worth anything without it; nor do rules
        // of a kind that is not there.
        if is_undefined || (is_forbidden && !self.is_vital(who)) {
            self.pending.remove(&who);
        }
        match who {
            Who::Kind(Kind::EndpointSlice) if matches!(trouble, Trouble::Collapse(_)) => {
                self.parting.slices_are_held = true;
            }
            Who::Crds if is_forbidden => self.assume_definitions(),
            Who::Kind(Kind::Pod) if is_forbidden => self.sight.set(PodSight::Lost),
            _ => {}
        }
        if !is_undefined {
            self.note_trouble(who, trouble);
        }
    }

    pub(super) fn note_trouble(&mut self, who: Who, trouble: &Trouble) {
        let upshot = match (self.is_vital(who), self.initial.is_some()) {
            (true, true) => Upshot::Waits,
            (true, false) => Upshot::Stays,
            (false, _) => Upshot::GoesOn,
        };
        if self.troubles.note(self.name_of(who), trouble, upshot) {
            self.tell_troubles();
        }
    }

    /// Is it worse to serve without it than to serve nobody? Whoever comes back to a server that knows no services loses all
    /// of them; without policies everybody is let in; and without its settings it is another mesh.
    fn is_vital(&self, who: Who) -> bool {
        let Role::Home { mesh, .. } = &self.options.role else { return false };
        match who {
            Who::Kind(kind) => VITAL.contains(&kind),
            Who::Map(i) => mesh.as_ref().is_some_and(|place| place.settings && i + 1 == place.maps.len()),
            Who::Crds | Who::Crd(_) => false,
        }
    }

    fn name_of(&self, who: Who) -> String {
        match who {
            Who::Kind(kind) => match self.places.get(&kind) {
                Some(place) => place.borrow().name(),
                None => platform(kind).name(),
            },
            Who::Crds | Who::Crd(_) => crds::resource().name(),
            Who::Map(i) => {
                let Role::Home { mesh: Some(place), .. } = &self.options.role else { return String::new() };
                format!("configmaps/{}", place.maps[i])
            }
        }
    }

    /// All definitions can be read again.
    pub(super) fn well_defined(&mut self) {
        if self.troubles.well(&crds::resource().name()) {
            self.tell_troubles();
        }
    }

    fn tell_troubles(&mut self) {
        let issues = self.troubles.issues(&self.options.read.cluster, &self.client);
        self.note(Name::new("API server"), issues);
    }

    /// What is well and was well is not worth a word.
    pub(super) fn note(&mut self, place: Name, issues: Vec<Issue>) {
        let was_troubled = self.troubled.contains(&place);
        if issues.is_empty() {
            self.troubled.remove(&place);
        } else {
            self.troubled.insert(place.clone());
        }
        if was_troubled || !issues.is_empty() {
            self.batch.issues.push((place, issues));
        }
    }
}
