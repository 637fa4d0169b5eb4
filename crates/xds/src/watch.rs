use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use pilot_base::{FastSet, Hash64, Millis, Name};

use crate::names::Names;
use crate::request::{Held, WILDCARD};
use crate::{Commons, Encoded, Manifest, NameSet, Parts, Run, TypeUrl, Why};

/// What a client holds under a name.
#[derive(Clone, Debug)]
enum Holding {
    Resource(Arc<Encoded>),
    /// Word that nobody serves it, in this version.
    Unserved(Hash64, Why),
    /// Something else: from an earlier stream, or from the good part of a response that was refused.
    Unknown,
    Nothing,
}

/// Names under which the client holds something other than the base manifest says.
type Exceptions = BTreeMap<Name, Holding>;

/// What one client asked for, has, refused and is being sent, for one type.
///
/// Invariant: with no response in flight and no name in `unsure`, the client holds for every name it asked for what
/// `except` says, and where that says nothing, what `base` says. Who asks for everything asks for what is sent at once;
/// the rest is held by those who asked for it by name, or as an exception.
pub(crate) struct Watch {
    type_url: TypeUrl,
    introduced: bool,
    wildcard: bool,
    names: Names,
    base: Manifest,
    except: Exceptions,
    /// Names that must be sent whatever the client is believed to hold: newly asked for, to be repeated, or part of a
    /// response it refused (it may have kept the good part).
    unsure: FastSet<Name>,
    /// So must every name that was asked for.
    unsure_of_names: bool,
    flight: Option<Flight>,
    last_nonce: String,
    /// The client waits for an answer, even an empty one: so it is when it asks for everything there is.
    pub(crate) answer_due: bool,
    /// Versions that the client refused; none of them is sent again.
    refused: BTreeMap<Name, Hash64>,
    /// Parts of a refused response of which nobody knows which is guilty. Each is tried on its own.
    trials: VecDeque<BTreeSet<Name>>,
    pub(crate) last_sent: Option<Millis>,
    /// What the client still holds only because it may not go yet, and since when.
    overstaying: BTreeMap<Name, Millis>,
}

/// A response that was sent and not yet answered.
struct Flight {
    nonce: String,
    target: Manifest,
    except_after: Exceptions,
    changed: Parts,
    removed: Vec<Name>,
    is_trial: bool,
}

/// What would bring the client to a target.
pub(crate) struct Plan {
    /// Resources that the client does not hold like this.
    pub(crate) changed: Parts,
    pub(crate) removed: Vec<Name>,
    /// The client had nothing, and is sent all that there is.
    pub(crate) is_everything: bool,
    except_after: Exceptions,
    target: Manifest,
    is_trial: bool,
    /// Names that are gone from the target but must still be kept.
    overstaying: BTreeMap<Name, Millis>,
    /// Names that wait for a trial to end.
    postponed: Vec<Name>,
}

/// What becomes of names that are gone from the target.
pub(crate) trait Gone {
    /// May the client lose it now? `since` is when it should have gone first.
    fn may_go(&self, name: &Name, since: Millis) -> bool;
    /// What the client can be given if it asks for it while it must stay.
    fn stand_in(&self, name: &Name) -> Option<Arc<Encoded>>;
}

/// What one name needs.
enum Todo {
    Nothing,
    /// The client goes on holding what it holds.
    Keep,
    Send(Arc<Encoded>),
    /// Also said of what the client asked for in vain.
    Remove {
        held: bool,
    },
}

impl Plan {
    pub(crate) fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.removed.is_empty()
    }
}

/// How a client took a response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accepted,
    /// These resources are to blame and will not be sent again in this version.
    Refused(Vec<Name>),
    /// Refused without a name: parts of it will be tried one after the other.
    Searching,
    /// The answer was to no response that is in flight.
    Stale,
}

impl Watch {
    pub(crate) fn new(type_url: TypeUrl) -> Self {
        Self {
            type_url,
            introduced: false,
            wildcard: false,
            names: Names::default(),
            base: Manifest::default(),
            except: Exceptions::new(),
            unsure: FastSet::default(),
            unsure_of_names: false,
            flight: None,
            last_nonce: String::new(),
            answer_due: type_url.is_whole_state(),
            refused: BTreeMap::new(),
            trials: VecDeque::new(),
            last_sent: None,
            overstaying: BTreeMap::new(),
        }
    }

    pub(crate) fn wants(&self, name: &Name) -> bool {
        self.wildcard || self.names.contains(name)
    }

    pub(crate) fn wants_any(&self) -> bool {
        self.wildcard || !self.names.is_empty()
    }

    pub(crate) fn in_flight(&self) -> bool {
        self.flight.is_some()
    }

    /// Nothing in flight, nothing being searched, nothing owed.
    pub(crate) fn is_quiet(&self) -> bool {
        self.flight.is_none() && self.trials.is_empty() && !self.owes_names() && !self.answer_due
    }

    /// The client holds exactly what the base says, and of names that are not in it nothing that would matter.
    pub(crate) fn is_clean(&self) -> bool {
        let matters = |holding: &Holding| !matches!(holding, Holding::Unserved(..));
        self.flight.is_none() && !self.except.values().any(matters) && !self.owes_names()
    }

    pub(crate) fn is_searching(&self) -> bool {
        !self.trials.is_empty()
    }

    /// Was the client sent nothing yet, or nothing that it took?
    pub(crate) fn has_nothing(&self) -> bool {
        self.flight.is_none() && self.base.is_default() && self.except.is_empty()
    }

    /// Is there something that the client will not have, as far as that is known?
    pub(crate) fn is_refusing(&self) -> bool {
        self.is_searching() || !self.refused.is_empty()
    }

    /// Is it certain that the client has some version of this?
    pub(crate) fn surely_holds(&self, name: &Name) -> bool {
        self.wants(name) && matches!(self.holding(name), Holding::Resource(_)) && !self.is_unsure(name)
    }

    /// May the client have something under this name?
    pub(crate) fn holds(&self, name: &Name) -> bool {
        self.wants(name) && !matches!(self.holding(name), Holding::Nothing)
    }

    /// Everything that the client has of what it asked for, as far as that is known, in order of names.
    pub(crate) fn held(&self) -> Vec<Arc<Encoded>> {
        let everything = self.wildcard.then(|| self.base.at_once().unwrap_or(&self.base).iter());
        let by_name = self.names.iter().filter_map(|name| self.base.get(name));
        let of_base = everything.into_iter().flatten().chain(by_name);
        let mut held: BTreeMap<&Name, &Arc<Encoded>> = of_base.map(|r| (r.name(), r)).collect();
        for (name, holding) in self.except.iter().filter(|(name, _)| self.wants(name)) {
            match holding {
                Holding::Resource(resource) => held.insert(name, resource),
                Holding::Unserved(..) | Holding::Unknown | Holding::Nothing => held.remove(name),
            };
        }
        held.into_values().cloned().collect()
    }

    /// Since when names that should be gone have had to stay.
    pub(crate) fn overstay_since(&self) -> impl Iterator<Item = Millis> {
        self.overstaying.values().copied()
    }

    pub(crate) fn overstays(&self) -> bool {
        !self.overstaying.is_empty()
    }

    pub(crate) fn owes_names(&self) -> bool {
        self.unsure_of_names || !self.unsure.is_empty()
    }

    fn is_unsure(&self, name: &Name) -> bool {
        self.unsure_of_names && self.names.contains(name) || self.unsure.contains(name)
    }

    pub(crate) fn last_nonce(&self) -> &str {
        &self.last_nonce
    }

    fn holding(&self, name: &Name) -> Holding {
        match self.except.get(name) {
            Some(holding) => holding.clone(),
            None if !self.is_sent(&self.base, name) => Holding::Nothing,
            None => self.base.get(name).cloned().map_or(Holding::Nothing, Holding::Resource),
        }
    }

    /// Is the client sent this of a manifest without having asked for it by name, or did it do so?
    fn is_sent(&self, manifest: &Manifest, name: &Name) -> bool {
        manifest.is_at_once(name) || self.names.contains(name)
    }

    // --- what the client asks for

    /// Has the client ever said what it wants of this type?
    pub(crate) fn is_introduced(&self) -> bool {
        self.introduced
    }

    pub(crate) fn refused(&self) -> impl Iterator<Item = &Name> {
        self.refused.keys()
    }

    pub(crate) fn names_size(&self) -> usize {
        self.names.size()
    }

    /// The client's whole list of names. Tells whether it still wants anything.
    pub(crate) fn set_names(&mut self, asked: &Arc<NameSet>) -> bool {
        let nothing_said =
            asked.is_empty() && self.type_url.is_whole_state() && (!self.introduced || self.wildcard);
        let everything = nothing_said || asked.contains(WILDCARD);
        self.introduced = true;
        if !self.names.is(asked) {
            let gone: Vec<Name> = self.names.iter().filter(|name| !asked.contains(name)).cloned().collect();
            for name in gone {
                self.unsubscribe(&name);
            }
            self.subscribe_all(asked, |watch, name| !watch.names.contains(name));
            // Everybody who follows the same change asks for the same names now.
            if !asked.contains(WILDCARD) {
                self.names.share(asked);
            }
        }
        if everything {
            self.want_all();
        } else {
            self.want_by_name();
        }
        self.wants_any()
    }

    pub(crate) fn change_names(&mut self, subscribe: &Arc<NameSet>, unsubscribe: &[Name]) {
        if !self.introduced && subscribe.is_empty() && self.type_url.is_whole_state() {
            self.want_all();
        }
        self.introduced = true;
        if subscribe.contains(WILDCARD) {
            self.want_all();
        }
        self.subscribe_all(subscribe, |_, _| true);
        for name in unsubscribe {
            if name == WILDCARD { self.want_by_name() } else { self.unsubscribe(name) }
        }
    }

    /// What a client asks for first, and is not sure of, is not written down again name by name.
    fn subscribe_all(&mut self, asked: &Arc<NameSet>, is_new: fn(&Self, &Name) -> bool) {
        let is_whole = self.base.at_once().is_none();
        if self.names.is_empty() && !asked.contains(WILDCARD) && is_whole {
            self.names.set(Arc::clone(asked));
            self.unsure_of_names = !asked.is_empty();
            return;
        }
        let new: Vec<&Name> = asked.iter().filter(|name| *name != WILDCARD && is_new(self, name)).collect();
        for name in new {
            self.subscribe(name.clone());
        }
    }

    /// What the client kept from an earlier stream. Compared with what there is now, then forgotten: only differences stay.
    pub(crate) fn set_initial(&mut self, initial: Vec<Held>, target: &Manifest) {
        self.base = target.clone();
        if std::mem::take(&mut self.unsure_of_names) {
            self.unsure.extend(self.names.iter().cloned());
        }
        let mut told = FastSet::default();
        for Held { name, version, served } in initial {
            if !self.wants(&name) {
                // What it holds of everything there is it asks for, though it need not say so.
                if self.type_url.is_whole_state() {
                    continue;
                }
                self.subscribe(name.clone());
            }
            let resource = served.as_ref().or_else(|| target.get(&name));
            match resource.filter(|resource| version == Some(resource.version())) {
                Some(resource) => {
                    self.unsure.remove(&name);
                    // It asked for it once, and keeps it.
                    if !self.is_sent(target, &name) {
                        self.except.insert(name.clone(), Holding::Resource(Arc::clone(resource)));
                    }
                }
                None => {
                    let holding =
                        if resource.is_none() { self.word_of(&name, version, target) } else { None };
                    self.except.insert(name.clone(), holding.unwrap_or(Holding::Unknown));
                }
            }
            told.insert(name);
        }
        let sent = target.at_once().filter(|_| self.wildcard).unwrap_or(target);
        for name in sent.iter().map(|resource| resource.name()) {
            if self.wants(name) && !told.contains(name) {
                self.except.insert(name.clone(), Holding::Nothing);
            }
        }
    }

    /// Does the client hold what is said of a name that was asked for in vain? Only who asks for everything besides is
    /// known not to have had it.
    fn word_of(&mut self, name: &Name, version: Option<Hash64>, target: &Manifest) -> Option<Holding> {
        let is_asked = self.wildcard && self.names.contains(name);
        let word = is_asked.then(|| target.unserved(name, Why::InVain)).flatten()?;
        let held = version.filter(|version| *version == word.version())?;
        self.unsure.remove(name);
        Some(Holding::Unserved(held, Why::InVain))
    }

    /// The client kept all that there is now, and nothing else, in the versions of now.
    pub(crate) fn set_everything(&mut self, target: &Manifest, commons: &Commons) {
        self.base = target.clone();
        let asked = self.names.as_set().filter(|_| !self.wildcard);
        if asked.is_some_and(|names| commons.digest(target).has_names(names)) {
            self.unsure.clear();
            self.unsure_of_names = false;
            return;
        }
        if !self.wildcard && !self.names.cover_all(target) {
            let all: Vec<Name> = target.iter().map(|resource| resource.name().clone()).collect();
            all.into_iter().for_each(|name| self.names.insert(name));
        }
        let all_served = !self.wildcard && self.names.len() == target.iter().count();
        let asked = self.names.iter().filter(|_| self.unsure_of_names && !all_served).chain(&self.unsure);
        self.unsure = asked.filter(|name| !target.contains(name)).cloned().collect();
        self.unsure_of_names = false;
    }

    /// Whatever it had by name is sent again: it asks for everything, and everything is the answer.
    fn want_all(&mut self) {
        if !self.wildcard {
            self.wildcard = true;
            self.base = Manifest::default();
            self.except.clear();
            self.answer_due = true;
        }
    }

    fn want_by_name(&mut self) {
        if self.wildcard {
            self.wildcard = false;
            let names = &self.names;
            self.except.retain(|name, _| names.contains(name));
            self.unsure.retain(|name| names.contains(name));
        }
    }

    fn subscribe(&mut self, name: Name) {
        if self.is_kept_back(&name) && matches!(self.holding(&name), Holding::Nothing) {
            self.except.insert(name.clone(), Holding::Nothing);
        }
        self.unsure.insert(name.clone());
        self.names.insert(name);
    }

    fn unsubscribe(&mut self, name: &Name) {
        let holding = self.holding(name);
        self.names.remove(name);
        if self.is_kept_back(name) {
            // As long as it may hold it, it must be told what becomes of it.
            if matches!(holding, Holding::Nothing) {
                self.unsure.remove(name);
                self.except.remove(name);
            } else {
                self.except.insert(name.clone(), Holding::Unknown);
                self.unsure.insert(name.clone());
            }
        } else if !self.wildcard {
            self.unsure.remove(name);
            self.except.remove(name);
            self.refused.remove(name);
        } else if matches!(holding, Holding::Nothing) && !self.base.contains(name) && !self.is_under_way(name)
        {
            // Nor has it anything under this name, or would one who asks for everything be sent it: names that are made up
            // and let go of leave nothing behind.
            self.unsure.remove(name);
            self.except.remove(name);
        }
    }

    fn is_under_way(&self, name: &Name) -> bool {
        self.flight.as_ref().is_some_and(|flight| flight.target.contains(name))
    }

    /// Did the client ask for everything, and this is not sent at once?
    fn is_kept_back(&self, name: &Name) -> bool {
        self.wildcard && !self.base.is_at_once(name)
    }

    /// Sends this again, though it did not change.
    pub(crate) fn repeat(&mut self, name: &Name) {
        if self.wants(name) && !self.is_unsure(name) {
            self.unsure.insert(name.clone());
        }
    }

    // --- what the client is sent

    /// What it takes to bring the client to `target`.
    pub(crate) fn plan(&self, target: &Manifest, now: Millis, gone: &dyn Gone, commons: &Commons) -> Plan {
        let mut plan = Plan {
            changed: Parts::default(),
            removed: Vec::new(),
            is_everything: false,
            except_after: Exceptions::new(),
            target: target.clone(),
            is_trial: self.is_searching(),
            overstaying: BTreeMap::new(),
            postponed: Vec::new(),
        };
        if self.has_nothing() && !self.is_refusing() && (self.wildcard || commons.is_many(self.names.len())) {
            (plan.changed, plan.is_everything) = self.all_of(target, commons);
            for name in self.asked_in_vain(target, plan.changed.len()) {
                self.consider(name, None, (now, gone), &mut plan);
            }
            return plan;
        }
        let mut names = BTreeSet::new();
        self.base.diff(target, &mut names);
        names.extend(self.except.keys().cloned());
        names.extend(self.unsure.iter().cloned());
        if self.unsure_of_names {
            names.extend(self.names.iter().cloned());
        }
        for name in names.into_iter().filter(|name| self.wants(name)) {
            let wanted = target.get(&name);
            self.consider(name, wanted, (now, gone), &mut plan);
        }
        plan
    }

    /// Everything that the client wants of a target, in an order that clients with the same names share; and whether that is
    /// all there is.
    fn all_of(&self, target: &Manifest, commons: &Commons) -> (Parts, bool) {
        let Some(at_once) = target.at_once().filter(|_| self.wildcard) else {
            return self.wanted_of(target, commons);
        };
        let (mut parts, _) = self.wanted_of(at_once, commons);
        let by_name = self.names.iter().filter(|name| !at_once.contains(name));
        by_name.filter_map(|name| target.get(name)).for_each(|resource| parts.push(Arc::clone(resource)));
        (parts, false)
    }

    fn wanted_of(&self, target: &Manifest, commons: &Commons) -> (Parts, bool) {
        let (mut parts, mut is_all) = (Parts::default(), true);
        let is_covered = |run: &Run| {
            self.wildcard || self.names.cover(run.entries().iter().map(|resource| resource.name()))
        };
        for (at, layer) in target.layers().iter().enumerate() {
            let run = commons.run(layer);
            let run = run.filter(|run| commons.is_all_seen(run, target, at) && is_covered(run));
            let Some(run) = run else {
                for resource in target.seen(at) {
                    if self.wants(resource.name()) {
                        parts.push(Arc::clone(resource));
                    } else {
                        is_all = false;
                    }
                }
                continue;
            };
            parts.push_run(run);
        }
        (parts, is_all)
    }

    /// Names that the client waits for and that nobody serves, when it is sent so many others.
    fn asked_in_vain(&self, target: &Manifest, served: usize) -> Vec<Name> {
        if !self.wildcard && served == self.names.len() {
            return Vec::new();
        }
        let asked = self.names.iter().filter(|_| self.unsure_of_names).chain(&self.unsure);
        let mut vain: Vec<Name> =
            asked.filter(|name| self.wants(name) && !target.contains(name)).cloned().collect();
        vain.sort_unstable();
        vain.dedup();
        vain
    }

    /// What one name needs.
    fn consider(
        &self,
        name: Name,
        wanted: Option<&Arc<Encoded>>,
        (now, gone): (Millis, &dyn Gone),
        plan: &mut Plan,
    ) {
        let since = self.overstaying.get(&name).copied().unwrap_or(now);
        // It asks for it when it needs it; what it has it keeps.
        let is_extra = wanted.is_some() && !self.is_sent(&plan.target, &name);
        if is_extra && !self.is_unsure(&name) && matches!(self.holding(&name), Holding::Nothing) {
            return;
        }
        let what = match self.what_to_do(&name, wanted) {
            Todo::Remove { held } if !gone.may_go(&name, since) => {
                let stand_in = gone.stand_in(&name).filter(|_| self.is_unsure(&name));
                let stand_in = stand_in.filter(|resource| !self.refuses(resource));
                if held || stand_in.is_some() {
                    plan.overstaying.insert(name.clone(), since);
                }
                match stand_in {
                    Some(resource) => {
                        plan.except_after.insert(name.clone(), Holding::Resource(Arc::clone(&resource)));
                        Todo::Send(resource)
                    }
                    None if held => Todo::Keep,
                    None => Todo::Remove { held },
                }
            }
            what => what,
        };
        let what = match what {
            // What is not in the part under trial stays as it is until that is over.
            Todo::Send(_) | Todo::Remove { .. }
                if self.trials.front().is_some_and(|names| !names.contains(&name)) =>
            {
                plan.postponed.push(name.clone());
                Todo::Keep
            }
            what => what,
        };
        match what {
            Todo::Nothing if !is_extra => (),
            Todo::Nothing | Todo::Keep => drop(plan.except_after.insert(name.clone(), self.holding(&name))),
            Todo::Send(resource) => {
                if is_extra {
                    plan.except_after.insert(name, Holding::Resource(Arc::clone(&resource)));
                }
                plan.changed.push(resource);
            }
            Todo::Remove { .. } => self.part_with(name, plan),
        }
    }

    /// Nobody serves it any more, or ever did: that is said, or the name is said to be gone.
    fn part_with(&self, name: Name, plan: &mut Plan) {
        let holding = self.holding(&name);
        let unsure = self.is_unsure(&name);
        let why = match holding {
            Holding::Unserved(_, Why::InVain) if !unsure && self.base.says_the_same_in_vain(&plan.target) => {
                plan.except_after.insert(name, holding);
                return;
            }
            Holding::Unserved(_, why) => why,
            Holding::Resource(_) => Why::Gone,
            Holding::Unknown | Holding::Nothing => Why::InVain,
        };
        let by_name = self.names.contains(&name);
        let Some(word) = by_name.then(|| plan.target.unserved(&name, why)).flatten() else {
            plan.removed.push(name);
            return;
        };
        let version = word.version();
        let is_known = match holding {
            Holding::Unserved(held, _) => held == version && !unsure,
            _ => self.refused.get(&name) == Some(&version),
        };
        if !is_known {
            plan.changed.push(Arc::new(word));
        }
        plan.except_after.insert(name, Holding::Unserved(version, why));
    }

    fn refuses(&self, resource: &Encoded) -> bool {
        self.refused.get(resource.name()) == Some(&resource.version())
    }

    fn what_to_do(&self, name: &Name, wanted: Option<&Arc<Encoded>>) -> Todo {
        let unsure = self.is_unsure(name);
        match (wanted, self.holding(name)) {
            (Some(wanted), Holding::Resource(has)) if !unsure && has == *wanted => Todo::Nothing,
            (Some(wanted), _) if self.refuses(wanted) => Todo::Keep,
            (Some(wanted), _) => Todo::Send(Arc::clone(wanted)),
            (None, Holding::Nothing) if !unsure => Todo::Nothing,
            (None, Holding::Nothing) => Todo::Remove { held: false },
            (None, _) => Todo::Remove { held: true },
        }
    }

    /// Everything that a client must be told when only the whole can be told.
    pub(crate) fn whole_state(&self, plan: &Plan, commons: &Commons) -> Parts {
        if plan.is_everything {
            return plan.changed.clone();
        }
        let (current, _) = self.all_of(&plan.target, commons);
        if plan.except_after.is_empty() {
            return current;
        }
        let current = current.iter().filter(|r| !plan.except_after.contains_key(r.name())).cloned();
        let kept = plan.except_after.values().filter_map(|holding| match holding {
            Holding::Resource(resource) => Some(Arc::clone(resource)),
            Holding::Unserved(..) | Holding::Unknown | Holding::Nothing => None,
        });
        current.chain(kept).collect()
    }

    /// There is nothing to send: the client already holds what the plan leads to. Tells whether
    /// something was put off that can be done now.
    pub(crate) fn settle(&mut self, plan: Plan) -> bool {
        self.forget_doubts(&plan);
        self.base = plan.target;
        self.except = plan.except_after;
        self.overstaying = plan.overstaying;
        if plan.is_trial {
            self.trials.pop_front();
        }
        !self.trials.is_empty() || self.owes_names()
    }

    pub(crate) fn depart(&mut self, plan: Plan, nonce: String, now: Millis) {
        self.forget_doubts(&plan);
        self.answer_due = false;
        self.last_sent = Some(now);
        self.last_nonce.clone_from(&nonce);
        let Plan { changed, removed, except_after, target, is_trial, overstaying, .. } = plan;
        self.overstaying = overstaying;
        self.flight = Some(Flight { nonce, target, except_after, changed, removed, is_trial });
    }

    /// The plan has dealt with every name, except those that it put off.
    fn forget_doubts(&mut self, plan: &Plan) {
        self.unsure = plan.postponed.iter().cloned().collect();
        self.unsure_of_names = false;
        self.refused.retain(|name, version| match plan.target.get(name) {
            Some(resource) => resource.version() == *version,
            None => match plan.except_after.get(name) {
                Some(Holding::Unserved(told, _)) => told == version,
                // What would have stood in for it is not tried again.
                _ => plan.overstaying.contains_key(name),
            },
        });
    }

    // --- how the client takes it

    pub(crate) fn answered(&mut self, nonce: &str, error: Option<&str>) -> Verdict {
        let Some(flight) = self.flight.take_if(|flight| flight.nonce == nonce) else { return Verdict::Stale };
        if flight.is_trial {
            self.trials.pop_front();
        }
        match error {
            None => {
                self.base = flight.target;
                self.except = flight.except_after;
                self.except.retain(|name, _| self.wildcard || self.names.contains(name));
                self.keep_extras(&flight.changed);
                Verdict::Accepted
            }
            Some(error) => self.refuse(flight, error),
        }
    }

    /// What was sent by name and is no longer asked for is held all the same.
    fn keep_extras(&mut self, sent: &Parts) {
        if !self.wildcard || self.base.at_once().is_none() {
            return;
        }
        for resource in sent.iter() {
            if !self.is_sent(&self.base, resource.name()) {
                let holding = Holding::Resource(Arc::clone(resource));
                self.except.entry(resource.name().clone()).or_insert(holding);
            }
        }
    }

    fn refuse(&mut self, flight: Flight, error: &str) -> Verdict {
        // Envoy keeps the good part of what it refuses, so nothing is known of any name in it.
        let touched = flight.changed.iter().map(|r| r.name()).chain(&flight.removed);
        let wanted: Vec<Name> = touched.filter(|name| self.wants(name)).cloned().collect();
        for name in &wanted {
            if matches!(self.holding(name), Holding::Nothing) {
                self.except.insert(name.clone(), Holding::Unknown);
            }
        }
        let changed: Vec<&Arc<Encoded>> = flight.changed.iter().collect();
        let guilty: Vec<&Arc<Encoded>> = match changed[..] {
            [only] => vec![only],
            _ => named_in(error, &changed),
        };
        if guilty.is_empty() && changed.len() > 1 {
            let names: Vec<Name> = changed.iter().map(|r| r.name().clone()).collect();
            let (first, second) = names.split_at(names.len() / 2);
            self.trials.push_front(second.iter().cloned().collect());
            self.trials.push_front(first.iter().cloned().collect());
            self.unsure.extend(wanted);
            return Verdict::Searching;
        }
        if guilty.is_empty() {
            // Nothing was added, so nothing can be left out: the client stands where it stands.
            self.base = flight.target;
            self.except = flight.except_after;
            return Verdict::Refused(Vec::new());
        }
        self.unsure.extend(wanted);
        for resource in &guilty {
            self.refused.insert(resource.name().clone(), resource.version());
            self.unsure.remove(resource.name());
        }
        Verdict::Refused(guilty.into_iter().map(|r| r.name().clone()).collect())
    }
}

/// The resources that an error message names. A name that occurs only as part of a longer one is not meant.
fn named_in<'a>(error: &str, resources: &[&'a Arc<Encoded>]) -> Vec<&'a Arc<Encoded>> {
    let mut by_length: Vec<&Arc<Encoded>> =
        resources.iter().copied().filter(|r| !r.name().is_empty()).collect();
    by_length.sort_by_key(|r| std::cmp::Reverse(r.name().len()));
    let mut taken: Vec<std::ops::Range<usize>> = Vec::new();
    let mut named = Vec::new();
    for resource in by_length {
        let free: Vec<_> = error
            .match_indices(resource.name().as_str())
            .map(|(at, text)| at..at + text.len())
            .filter(|place| is_whole_word(error, place))
            .filter(|place| !taken.iter().any(|t| t.start <= place.start && place.end <= t.end))
            .collect();
        if !free.is_empty() {
            taken.extend(free);
            named.push(resource);
        }
    }
    named
}

fn is_whole_word(text: &str, place: &std::ops::Range<usize>) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '|');
    let before = text[..place.start].chars().next_back();
    let mut after = text[place.end..].chars();
    let next = after.next();
    // A full stop may end a sentence or go on with a name.
    let goes_on = next == Some('.') && after.next().is_some_and(part_of_name);
    !before.is_some_and(|c| part_of_name(c) || c == '.') && !next.is_some_and(part_of_name) && !goes_on
}

#[cfg(test)]
mod tests;
