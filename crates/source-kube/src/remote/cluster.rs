//! One other cluster, and what it told.

use std::collections::{BTreeMap, BTreeSet};

use pilot_base::{Issue, Name, ObjectRef};
use pilot_model::{Object, ObjectKey};
use pilot_source::{Doubt, Doubts, Event};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::known::{Collapse, implausible};
use crate::objects::weight;

#[derive(Default)]
pub(super) struct Cluster {
    /// Who says how it is reached, and how.
    pub(super) secret: String,
    pub(super) config: String,
    pub(super) attempt: u64,
    /// Has it told everything, be it over an older secret?
    pub(super) is_synced: bool,
    /// When it is not waited for any longer, and whether that is over.
    late_at: Option<Instant>,
    pub(super) is_late: bool,
    tasks: Vec<AbortHandle>,
    /// What it told, and how much would be lost with it.
    told: BTreeMap<ObjectKey, u32>,
    /// Who is telling everything that there is.
    beginning: Option<BTreeMap<ObjectKey, Object>>,
    withheld: Option<Withheld>,
    doubt_changed: bool,
    leaves_at: Option<Instant>,
    is_over: bool,
    /// Where something is wrong with it.
    troubled: BTreeSet<Name>,
}

/// What is not believed yet.
struct Withheld {
    doubt: Doubt,
    collapse: Collapse,
    gone: BTreeSet<ObjectKey>,
    /// What has far less in it than it had.
    shrunk: BTreeMap<ObjectKey, Object>,
}

impl Withheld {
    /// Something was said of an object, and that counts.
    fn forget(&mut self, key: &ObjectKey) {
        self.gone.remove(key);
        self.shrunk.remove(key);
    }
}

/// What others have to know.
#[derive(Default)]
pub(super) struct Told {
    pub(super) put: Vec<Object>,
    pub(super) gone: Vec<ObjectKey>,
}

impl Cluster {
    /// One that is waited for until then.
    pub(super) fn new(late_at: Instant) -> Self {
        Self { late_at: Some(late_at), ..Self::default() }
    }

    /// Is this when its time is over?
    pub(super) fn gets_late(&mut self, now: Instant) -> bool {
        if self.is_synced {
            self.late_at = None;
        }
        let is_over = self.late_at.take_if(|at| *at <= now).is_some();
        self.is_late |= is_over;
        is_over
    }

    pub(super) fn begin(&mut self, secret: &str, config: &str, attempt: u64, tasks: Vec<AbortHandle>) {
        self.end_tasks();
        self.stay(secret);
        config.clone_into(&mut self.config);
        self.attempt = attempt;
        self.tasks = tasks;
        self.beginning = None;
    }

    pub(super) fn stay(&mut self, secret: &str) {
        secret.clone_into(&mut self.secret);
        self.leaves_at = None;
    }

    pub(super) fn leave(&mut self, at: Instant) {
        self.leaves_at.get_or_insert(at);
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaves_at.is_some()
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(super) fn note(&mut self, place: &Name, issues: &[Issue]) {
        if issues.is_empty() {
            self.troubled.remove(place);
        } else {
            self.troubled.insert(place.clone());
        }
    }

    /// Where something was wrong, which does not count any more.
    pub(super) fn forgive(&mut self) -> impl Iterator<Item = Name> + use<> {
        std::mem::take(&mut self.troubled).into_iter()
    }

    pub(super) fn due(&self) -> Option<Instant> {
        let doubt = self.withheld.as_ref().map(|withheld| withheld.doubt.until());
        doubt.into_iter().chain(self.leaves_at).chain(self.late_at).min()
    }

    pub(super) fn take(&mut self, events: Vec<Event>, (id, doubts): (&Name, &Doubts)) -> Told {
        let mut told = Told::default();
        for event in events {
            match event {
                Event::Init => self.beginning = Some(BTreeMap::new()),
                Event::InitApply(object) => {
                    self.beginning.get_or_insert_default().insert(object.key(), object);
                }
                Event::InitDone => self.begun(&mut told, (id, doubts)),
                Event::Apply(object) => {
                    let key = object.key();
                    self.said(&key);
                    self.told.insert(key, weight(&object));
                    told.put.push(object);
                }
                Event::Delete(key) => {
                    self.said(&key);
                    if self.told.remove(&key).is_some() {
                        told.gone.push(key);
                    }
                }
                // Only the cluster that we belong to says anything about the mesh.
                Event::Mesh(_) | Event::Networks(_) => {}
            }
        }
        told
    }

    /// What a watch says counts at once.
    fn said(&mut self, key: &ObjectKey) {
        let Some(withheld) = &mut self.withheld else { return };
        withheld.forget(key);
        if withheld.gone.is_empty() && withheld.shrunk.is_empty() {
            self.withheld = None;
            self.doubt_changed = true;
        }
    }

    /// Everything there is has been told: what was there before and is not named is gone.
    fn begun(&mut self, told: &mut Told, (id, doubts): (&Name, &Doubts)) {
        let objects = self.beginning.take().unwrap_or_default();
        let gone: BTreeSet<ObjectKey> =
            self.told.keys().filter(|key| !objects.contains_key(key)).cloned().collect();
        let sum =
            |weights: &mut dyn Iterator<Item = u32>| weights.map(|weight| weight as usize).sum::<usize>();
        let had = (self.told.len(), sum(&mut self.told.values().copied()));
        let lost = had.1.saturating_sub(sum(&mut objects.values().map(weight)));
        self.is_synced = true;
        self.doubt_changed |= self.withheld.is_some();
        self.withheld = None;
        let Some(collapse) = implausible((gone.len(), lost), had) else {
            self.told = objects.iter().map(|(key, object)| (key.clone(), weight(object))).collect();
            told.put.extend(objects.into_values());
            told.gone.extend(gone);
            return;
        };
        let (shrunk, others): (BTreeMap<_, _>, BTreeMap<_, _>) = objects
            .into_iter()
            .partition(|(key, object)| self.told.get(key).is_some_and(|before| *before > weight(object)));
        self.told.extend(others.iter().map(|(key, object)| (key.clone(), weight(object))));
        told.put.extend(others.into_values());
        let doubt = doubts.raise(Name::from(format!("cluster {id}: everything")), collapse.to_string());
        self.withheld = Some(Withheld { doubt, collapse, gone, shrunk });
        self.doubt_changed = true;
    }

    /// What is to be done by now, and what is wrong if that is different.
    pub(super) fn settle(&mut self, now: Instant, id: &Name) -> (Told, Option<Vec<Issue>>) {
        let mut told = Told::default();
        if let Some(withheld) = self.withheld.take_if(|withheld| withheld.doubt.counts(now)) {
            self.told.retain(|key, _| !withheld.gone.contains(key));
            self.told.extend(withheld.shrunk.iter().map(|(key, object)| (key.clone(), weight(object))));
            told.gone.extend(withheld.gone);
            told.put.extend(withheld.shrunk.into_values());
            self.doubt_changed = true;
        }
        if self.leaves_at.is_some_and(|at| at <= now) {
            self.end_tasks();
            told.gone.extend(std::mem::take(&mut self.told).into_keys());
            self.doubt_changed |= self.withheld.take().is_some();
            self.is_over = true;
        }
        let issues = std::mem::take(&mut self.doubt_changed).then(|| self.issues(id));
        (told, issues)
    }

    fn issues(&self, id: &Name) -> Vec<Issue> {
        let Some(Withheld { collapse, .. }) = &self.withheld else { return Vec::new() };
        let message = format!(
            "{collapse} since {} says how it is reached; what was known is kept, in case that is a mistake. `pilotctl confirm` says that it is true",
            self.secret
        );
        vec![Issue::error(ObjectRef::new("Cluster", Name::empty(), id.clone()), "", message)]
    }

    fn end_tasks(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pilot_base::Name;
    use pilot_model::{
        Address, ConfigId, EndpointSlice, Health, Namespace, Object, ObjectKey, Protocol, SliceEndpoint,
        SlicePort,
    };
    use pilot_source::{Doubts, Event};
    use tokio::time::Instant;

    use super::{Cluster, Told};

    fn namespace(i: usize) -> Object {
        Object::Namespace(ConfigId::new("", format!("n{i:02}")), Namespace::default())
    }

    fn slice(name: &str, endpoints: usize) -> Object {
        let endpoint =
            SliceEndpoint { addresses: vec![Address::parse("10.0.0.1")], health: Health::Unknown, pod: None };
        let ports = vec![SlicePort { name: Name::new("http"), number: 80, protocol: Protocol::Http }];
        let slice = EndpointSlice {
            service: Name::new("web"),
            ports,
            ipv6: false,
            endpoints: vec![endpoint; endpoints],
        };
        Object::EndpointSlice(ConfigId::new("shop", name), slice)
    }

    fn begin(objects: impl IntoIterator<Item = Object>) -> Vec<Event> {
        let objects = objects.into_iter().map(Event::InitApply);
        [Event::Init].into_iter().chain(objects).chain([Event::InitDone]).collect()
    }

    fn all(count: usize) -> Vec<Event> {
        begin((0..count).map(namespace))
    }

    struct Rig {
        cluster: Cluster,
        name: Name,
        doubts: Doubts,
    }

    impl Rig {
        fn new() -> Self {
            let doubts = Doubts::new(Duration::from_secs(60));
            Self { cluster: Cluster::default(), name: Name::new("east"), doubts }
        }

        fn take(&mut self, events: Vec<Event>) -> Told {
            self.cluster.take(events, (&self.name, &self.doubts))
        }

        /// How many are put and gone, and how many issues there are, if that is different.
        fn settle(&mut self, after: u64) -> (usize, usize, Option<usize>) {
            let (told, issues) = self.cluster.settle(Instant::now() + Duration::from_secs(after), &self.name);
            (told.put.len(), told.gone.len(), issues.map(|issues| issues.len()))
        }
    }

    #[test]
    fn a_new_secret_takes_back_only_what_is_gone() {
        let mut rig = Rig::new();
        assert_eq!(rig.take(all(5)).put.len(), 5);
        rig.cluster.begin("s", "other", 2, Vec::new());
        let told = rig.take(all(3));
        assert_eq!((told.put.len(), told.gone.len()), (3, 2));
    }

    #[test]
    fn most_of_a_cluster_is_not_taken_back_at_once() {
        let mut rig = Rig::new();
        rig.take(all(30));
        let told = rig.take(all(2));
        assert_eq!((told.put.len(), told.gone.len()), (2, 0));
        assert_eq!(rig.settle(0), (0, 0, Some(1)));
        rig.take(vec![Event::Apply(namespace(7)), Event::Delete(namespace(8).key())]);
        assert_eq!(rig.settle(0), (0, 0, None));
        assert_eq!(rig.settle(61), (0, 26, Some(0)), "one is back, and one is gone already");
    }

    #[test]
    fn it_counts_when_somebody_confirms_it() {
        let mut rig = Rig::new();
        rig.take(all(30));
        rig.take(all(2));
        rig.settle(0);
        assert_eq!(rig.doubts.confirm(None), ["cluster east: everything"]);
        assert_eq!(rig.settle(0), (0, 28, Some(0)));
        assert!(rig.doubts.held().is_empty());
    }

    #[test]
    fn slices_that_are_suddenly_empty_are_kept_as_they_were() {
        let mut rig = Rig::new();
        rig.take(begin([slice("a", 10), slice("b", 10)]));
        let told = rig.take(begin([slice("a", 0), slice("b", 12)]));
        assert_eq!(told.put.len(), 2, "what one lost another has");
        rig.take(begin([slice("a", 10), slice("b", 10)]));
        let told = rig.take(begin([slice("a", 0), slice("b", 1)]));
        assert_eq!((told.put.len(), told.gone.len()), (0, 0));
        let key: ObjectKey = slice("b", 0).key();
        let told = rig.take(vec![Event::Apply(slice("b", 2))]);
        assert_eq!(told.put[0].key(), key, "a watch is believed");
        assert_eq!(rig.settle(61).0, 1);
    }

    #[test]
    fn a_secret_that_comes_back_in_time_changes_nothing() {
        let mut rig = Rig::new();
        rig.take(all(3));
        let at = Instant::now();
        rig.cluster.leave(at);
        rig.cluster.stay("s");
        assert!(rig.settle(0) == (0, 0, None) && !rig.cluster.is_over());
        rig.cluster.leave(at);
        assert_eq!(rig.settle(0).1, 3);
        assert!(rig.cluster.is_over());
    }
}
