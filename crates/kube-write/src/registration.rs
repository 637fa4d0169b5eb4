//! Workloads outside of the cluster: a WorkloadEntry is made when an agent connects, says how the workload is while it is
//! there, and goes when it has been away for too long.
//!
//! ```text
//!   stream begins ──► Registration ──GET, POST, PATCH──► WorkloadEntry ◄──Keeper: who left, how they are, who stays away
//!                        └── Membership ──health, drop────────────────────►┘
//! ```

mod entry;
mod keeper;
mod scribe;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_ca::SpiffeId;
use pilot_model::{ConfigId, Kind, Proxy};
use pilot_server::{JoinError, Joining, Membership, Metrics, Registrar, WorkloadHealth};
use pilot_source_kube::{Call, CallError, Client, Resource, RulePlaces};
use serde_json::Value;
use tokio::sync::Notify;

use self::entry::{Nanos, Switches, Workload};
pub use self::keeper::Keeper;
use crate::object;

/// How workloads are registered.
pub struct RegistrationOptions {
    /// Whose entry it is while a workload is connected here: `POD_NAME`.
    pub instance: String,
    /// `PILOT_ENABLE_WORKLOAD_ENTRY_AUTOREGISTRATION`
    pub registers: bool,
    /// `PILOT_ENABLE_WORKLOAD_ENTRY_HEALTHCHECKS`
    pub checks_health: bool,
    /// `PILOT_WORKLOAD_ENTRY_GRACE_PERIOD`
    pub grace: Duration,
    /// `ISTIO_WORKLOAD_ENTRY_VALIDATE_IDENTITY`
    pub validates: bool,
    /// After how long a connection ends and is made anew; nothing if connections last.
    pub max_age: Option<Duration>,
    /// Nanoseconds since 1970.
    pub now: fn() -> i128,
}

/// Writes entries for workloads that come, and tells the [`Keeper`] about those that go.
#[derive(Clone)]
pub struct Registration(Arc<Register>);

struct Register {
    client: Client,
    places: RulePlaces,
    options: RegistrationOptions,
    metrics: Arc<Metrics>,
    present: Mutex<BTreeMap<ConfigId, Present>>,
    notes: Notes,
}

/// A workload that is connected, perhaps by several streams.
struct Present {
    workload: Workload,
    streams: usize,
    /// When the last of them began.
    since: Nanos,
}

/// What streams have said and is not written yet: the newest of each entry, however often they speak.
#[derive(Default)]
struct Notes {
    open: Mutex<BTreeMap<ConfigId, Pending>>,
    news: Notify,
}

/// What is to be written to one entry.
#[derive(Default)]
struct Pending {
    left: Option<(Nanos, Nanos)>,
    health: Option<(WorkloadHealth, Nanos)>,
}

impl Notes {
    fn left(&self, id: &ConfigId, came: Nanos, left: Nanos) {
        self.open.lock().entry(id.clone()).or_default().left = Some((came, left));
        self.news.notify_one();
    }

    fn health(&self, id: &ConfigId, health: WorkloadHealth, at: Nanos) {
        self.open.lock().entry(id.clone()).or_default().health = Some((health, at));
        self.news.notify_one();
    }
}

/// So often others may have written to an entry at the same time.
const ATTEMPTS: usize = 5;

impl Registration {
    pub fn new(
        client: Client,
        places: RulePlaces,
        options: RegistrationOptions,
        metrics: Arc<Metrics>,
    ) -> (Self, Keeper) {
        let (present, notes) = (Mutex::default(), Notes::default());
        let register = Register { client, places, options, metrics, present, notes };
        let registration = Self(Arc::new(register));
        (registration.clone(), Keeper::new(registration))
    }
}

impl Registrar for Registration {
    fn join<'a>(&'a self, proxy: &'a Proxy, identities: Option<&'a [SpiffeId]>) -> Joining<'a> {
        Box::pin(async move {
            let options = &self.0.options;
            let switches = Switches { registers: options.registers, checks_health: options.checks_health };
            let Some(workload) = Workload::of(proxy, switches) else { return Ok(None) };
            let at = (options.now)();
            let shown = if options.validates { Shown::Identities(identities) } else { Shown::Unasked };
            let joined = self.0.enter(&workload, at, shown).await;
            if joined.is_err() {
                self.0.metrics.registrations().failed.inc();
            }
            let Some(at) = joined? else { return Ok(None) };
            let id = workload.id.clone();
            let mut present = self.0.present.lock();
            let known = present.entry(id.clone()).or_insert(Present { workload, streams: 0, since: at });
            known.streams += 1;
            known.since = known.since.max(at);
            drop(present);
            let member = Member { id, register: Arc::clone(&self.0) };
            Ok(Some(Box::new(member) as Box<dyn Membership>))
        })
    }
}

/// One stream of a workload.
struct Member {
    id: ConfigId,
    register: Arc<Register>,
}

impl Membership for Member {
    fn health(&self, health: WorkloadHealth) {
        self.register.notes.health(&self.id, health, (self.register.options.now)());
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut present = self.register.present.lock();
        let Some(known) = present.get_mut(&self.id) else { return };
        known.streams -= 1;
        if known.streams == 0 {
            let since = known.since;
            present.remove(&self.id);
            self.register.notes.left(&self.id, since, (self.register.options.now)());
        }
    }
}

/// What a caller shows of himself.
#[derive(Clone, Copy)]
enum Shown<'a> {
    /// Nobody asks.
    Unasked,
    Identities(Option<&'a [SpiffeId]>),
}

impl Register {
    /// Writes that a workload is there. Tells since when, as it stands there; nothing if it is not looked after.
    async fn enter(
        &self,
        workload: &Workload,
        at: Nanos,
        shown: Shown<'_>,
    ) -> Result<Option<Nanos>, JoinError> {
        let may_speak = |entry: &Value| match shown {
            Shown::Unasked => Ok(()),
            Shown::Identities(identities) => entry::may_speak(entry, identities),
        };
        for _ in 0..ATTEMPTS {
            let found = self.read(Kind::WorkloadEntry, &workload.id).await?;
            let written = match found {
                Some(entry) => {
                    let is_checked = entry["metadata"]["annotations"][entry::CHECKED].is_string();
                    if !workload.registers_itself() && !is_checked {
                        return Ok(None);
                    }
                    may_speak(&entry)?;
                    let (since, patch) = entry::connected(&entry, &self.options.instance, at);
                    let Some(patch) = patch else { return Ok(Some(since)) };
                    let path = self.path(Kind::WorkloadEntry, &workload.id)?;
                    self.client.call(Call::merge(&path, patch.to_string())).await.map(|_| {
                        tracing::info!("WorkloadEntry {} is connected", workload.id);
                        self.metrics.registrations().updated.inc();
                        since
                    })
                }
                None if !workload.registers_itself() => return Err(workload.no_entry()),
                None => {
                    let entry = self.made(workload, at).await?;
                    may_speak(&entry)?;
                    self.create(workload, &entry).await.map(|()| at)
                }
            };
            match written {
                Ok(since) => return Ok(Some(since)),
                // Somebody else wrote at the same time; it is looked at again.
                Err(error) if matches!(error.status(), Some(404 | 409)) => {}
                Err(error) => return Err(failed(workload, &error)),
            }
        }
        Err(JoinError::Failed(format!("WorkloadEntry {} is changed all the time", workload.id)))
    }

    /// Notes since when a workload that is here stands in its entry.
    fn came(&self, id: &ConfigId, since: Option<Nanos>) {
        if let (Some(known), Some(since)) = (self.present.lock().get_mut(id), since) {
            known.since = known.since.max(since);
        }
    }

    async fn made(&self, workload: &Workload, at: Nanos) -> Result<Value, JoinError> {
        let group = ConfigId::new(workload.id.namespace.clone(), workload.group.clone());
        let group = self.read(Kind::WorkloadGroup, &group).await?.ok_or_else(|| workload.no_group())?;
        let place = self.place(Kind::WorkloadEntry)?;
        let mut entry = workload.made_of(&group, &format!("{}/{}", place.group, place.version));
        entry["metadata"]["annotations"][entry::CONTROLLER] = self.options.instance.as_str().into();
        entry["metadata"]["annotations"][entry::CONNECTED] = entry::timestamp(at).into();
        Ok(entry)
    }

    async fn create(&self, workload: &Workload, entry: &Value) -> Result<(), CallError> {
        let Ok(place) = self.place(Kind::WorkloadEntry) else { return Ok(()) };
        let place = Resource { namespace: Some(workload.id.namespace.clone()), ..place };
        self.client.call(Call::post(&place.path(), entry.to_string())).await?;
        tracing::info!("WorkloadEntry {} is registered", workload.id);
        self.metrics.registrations().registered.inc();
        Ok(())
    }

    async fn read(&self, kind: Kind, id: &ConfigId) -> Result<Option<Value>, JoinError> {
        let path = self.path(kind, id)?;
        let found = object::read(&self.client, &path).await;
        found.map_err(|error| JoinError::Failed(format!("{kind} {id}: {error}")))
    }

    fn path(&self, kind: Kind, id: &ConfigId) -> Result<String, JoinError> {
        let place = Resource { namespace: Some(id.namespace.clone()), ..self.place(kind)? };
        Ok(place.object(&id.name))
    }

    fn place(&self, kind: Kind) -> Result<Resource, JoinError> {
        let places = self.places.borrow();
        let place = places.get(&kind).map(|place| place.borrow().clone());
        place.ok_or_else(|| JoinError::Missing(format!("the API server does not know what a {kind} is")))
    }
}

fn failed(workload: &Workload, error: &CallError) -> JoinError {
    JoinError::Failed(format!("WorkloadEntry {} cannot be written: {error}", workload.id))
}

#[cfg(test)]
mod tests {
    use pilot_model::ConfigId;
    use pilot_server::WorkloadHealth;

    use super::Notes;

    #[test]
    fn of_all_that_streams_say_the_newest_is_kept_for_each_entry() {
        let notes = Notes::default();
        let ids = [ConfigId::new("shop", "a"), ConfigId::new("shop", "b")];
        for at in 0..10_000 {
            let health = WorkloadHealth::Unhealthy(format!("attempt {at}"));
            notes.health(&ids[usize::from(at % 2 == 0)], health, at);
        }
        notes.left(&ids[0], 1, 20_000);
        let open = notes.open.lock();
        assert_eq!(open.len(), 2);
        assert_eq!(open[&ids[0]].left, Some((1, 20_000)));
        assert_eq!(open[&ids[1]].health.as_ref().map(|(_, at)| *at), Some(9_998));
    }
}
