//! One other cluster, and what it told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pilot_base::{Issue, Name, ObjectRef};
use pilot_model::{Object, ObjectKey};
use pilot_source::Event;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Most of a cluster is not taken back before it was gone for so long.
const DOUBT: Duration = Duration::from_secs(30);
/// Fewer than this may go at once without anybody wondering.
const FEW: usize = 10;

#[derive(Default)]
pub(super) struct Cluster {
    /// Who says how it is reached, and how.
    pub(super) secret: String,
    pub(super) config: String,
    pub(super) attempt: u64,
    /// Has it told everything, be it over an older secret?
    pub(super) is_synced: bool,
    tasks: Vec<AbortHandle>,
    told: BTreeSet<ObjectKey>,
    /// Who is telling everything that there is.
    beginning: Option<BTreeMap<ObjectKey, Object>>,
    /// What is gone, if that is still so then.
    doubtful: Option<(Instant, BTreeSet<ObjectKey>)>,
    doubt_changed: bool,
    leaves_at: Option<Instant>,
    is_over: bool,
    /// Where something is wrong with it.
    troubled: BTreeSet<Name>,
}

/// What others have to know.
#[derive(Default)]
pub(super) struct Told {
    pub(super) put: Vec<Object>,
    pub(super) gone: Vec<ObjectKey>,
}

impl Cluster {
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
        let doubt = self.doubtful.as_ref().map(|(at, _)| *at);
        doubt.into_iter().chain(self.leaves_at).min()
    }

    pub(super) fn take(&mut self, events: Vec<Event>) -> Told {
        let mut told = Told::default();
        for event in events {
            match event {
                Event::Init => self.beginning = Some(BTreeMap::new()),
                Event::InitApply(object) => {
                    self.beginning.get_or_insert_default().insert(object.key(), object);
                }
                Event::InitDone => self.begun(&mut told),
                Event::Apply(object) => {
                    let key = object.key();
                    if let Some((_, doubtful)) = &mut self.doubtful {
                        doubtful.remove(&key);
                    }
                    self.told.insert(key);
                    told.put.push(object);
                }
                Event::Delete(key) => {
                    if self.told.remove(&key) {
                        told.gone.push(key);
                    }
                }
                // Only the cluster that we belong to says anything about the mesh.
                Event::Mesh(_) | Event::Networks(_) => {}
            }
        }
        told
    }

    /// Everything there is has been told: what was there before and is not named is gone.
    fn begun(&mut self, told: &mut Told) {
        let objects = self.beginning.take().unwrap_or_default();
        let gone: BTreeSet<ObjectKey> =
            self.told.iter().filter(|key| !objects.contains_key(key)).cloned().collect();
        let implausible = gone.len() >= FEW && gone.len() * 2 > self.told.len();
        self.told.extend(objects.keys().cloned());
        told.put.extend(objects.into_values());
        self.is_synced = true;
        self.doubt_changed = true;
        if implausible {
            self.doubtful = Some((Instant::now() + DOUBT, gone));
        } else {
            self.doubtful = None;
            self.told.retain(|key| !gone.contains(key));
            told.gone.extend(gone);
        }
    }

    /// What is to be done by now, and what is wrong if that is different.
    pub(super) fn settle(&mut self, now: Instant, id: &Name) -> (Told, Option<Vec<Issue>>) {
        let mut told = Told::default();
        if self.doubtful.as_ref().is_some_and(|(at, _)| *at <= now)
            && let Some((_, gone)) = self.doubtful.take()
        {
            self.told.retain(|key| !gone.contains(key));
            told.gone.extend(gone);
            self.doubt_changed = true;
        }
        if self.leaves_at.is_some_and(|at| at <= now) {
            self.end_tasks();
            told.gone.extend(std::mem::take(&mut self.told));
            self.doubt_changed |= self.doubtful.take().is_some();
            self.is_over = true;
        }
        let issues = std::mem::take(&mut self.doubt_changed).then(|| self.issues(id));
        (told, issues)
    }

    fn issues(&self, id: &Name) -> Vec<Issue> {
        let Some((_, gone)) = &self.doubtful else { return Vec::new() };
        let message = format!(
            "{} of {} objects are gone since {} says how it is reached; they are kept for {DOUBT:?}, in case that is a mistake",
            gone.len(),
            self.told.len(),
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
    use pilot_model::{ConfigId, Namespace, Object};
    use pilot_source::Event;
    use tokio::time::Instant;

    use super::{Cluster, DOUBT};

    fn namespace(i: usize) -> Object {
        Object::Namespace(ConfigId::new("", format!("n{i:02}")), Namespace::default())
    }

    fn all(count: usize) -> Vec<Event> {
        let objects = (0..count).map(|i| Event::InitApply(namespace(i)));
        [Event::Init].into_iter().chain(objects).chain([Event::InitDone]).collect()
    }

    #[test]
    fn a_new_secret_takes_back_only_what_is_gone() {
        let mut cluster = Cluster::default();
        assert_eq!(cluster.take(all(5)).put.len(), 5);
        cluster.begin("s", "other", 2, Vec::new());
        let told = cluster.take(all(3));
        assert_eq!((told.put.len(), told.gone.len()), (3, 2));
    }

    #[test]
    fn most_of_a_cluster_is_not_taken_back_at_once() {
        let (mut cluster, name) = (Cluster::default(), Name::new("east"));
        cluster.take(all(30));
        let told = cluster.take(all(2));
        assert_eq!((told.put.len(), told.gone.len()), (2, 0));
        let now = Instant::now();
        let (told, issues) = cluster.settle(now, &name);
        assert_eq!((told.gone.len(), issues.unwrap().len()), (0, 1));
        cluster.take(vec![Event::Apply(namespace(7))]);
        let (told, issues) = cluster.settle(now + DOUBT + Duration::from_secs(1), &name);
        assert_eq!((told.gone.len(), issues.unwrap().len()), (27, 0), "one is back");
    }

    #[test]
    fn a_secret_that_comes_back_in_time_changes_nothing() {
        let (mut cluster, name) = (Cluster::default(), Name::new("east"));
        cluster.take(all(3));
        let at = Instant::now();
        cluster.leave(at);
        cluster.stay("s");
        assert!(cluster.settle(at, &name).0.gone.is_empty() && !cluster.is_over());
        cluster.leave(at);
        assert_eq!(cluster.settle(at, &name).0.gone.len(), 3);
        assert!(cluster.is_over());
    }
}
