//! One of several servers does what only one may do. The lock is istiod's, so that both may take turns during an upgrade.

use std::sync::Arc;
use std::time::Duration;

use pilot_base::{Clock, Millis};
use pilot_source_kube::{Call, CallError, Client, Resource};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::watch;

use crate::object::{put, read, set};

/// Where leaders write their names.
const ANNOTATION: &str = "control-plane.alpha.kubernetes.io/leader";
/// A leader that was not heard of for so long is one no more.
const LEASE: Millis = 30_000;
/// How often a leader says that it is there, and others look.
const RETRY: Duration = Duration::from_millis(7_500);
/// A leader that could not say so for this long does not lead any more: long before others take over.
const DEADLINE: Millis = 15_000;
/// An answer that takes longer comes too late: whoever waits for it does not notice that others take over.
const PATIENCE: Duration = Duration::from_millis(DEADLINE / 2);

/// What somebody leads.
#[derive(Clone, Debug)]
pub struct Seat {
    pub namespace: String,
    /// The name of a ConfigMap: `istio-namespace-controller-election`.
    pub name: &'static str,
    /// `POD_NAME`
    pub identity: String,
    pub revision: String,
    /// Is the cluster another one than ours? Then those who belong to it go first.
    pub remote: bool,
}

/// True while we lead.
pub type Leadership = watch::Receiver<bool>;

pub struct Election {
    client: Client,
    seat: Seat,
    /// The revision that serves those who name none; it may take the seat from others.
    default: watch::Receiver<String>,
    clock: Arc<dyn Clock>,
    /// Seconds since 1970, for the record.
    today: fn() -> i64,
    leads: watch::Sender<bool>,
    seen: Seen,
}

/// What was last seen of the record, and when it last changed. Clocks of others are not believed.
#[derive(Clone, Default, Debug)]
struct Seen {
    record: Option<Record>,
    since: Millis,
}

#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Record {
    holder_identity: String,
    holder_key: String,
    lease_duration_seconds: u64,
    acquire_time: String,
    renew_time: String,
    leader_transitions: u64,
}

impl Election {
    pub fn new(
        client: Client,
        seat: Seat,
        default: watch::Receiver<String>,
        (clock, today): (Arc<dyn Clock>, fn() -> i64),
    ) -> Self {
        let leads = watch::Sender::new(false);
        Self { client, seat, default, clock, today, leads, seen: Seen::default() }
    }

    pub fn leadership(&self) -> Leadership {
        self.leads.subscribe()
    }

    /// Runs until `stop`, and gives the seat free then.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        let mut confirmed: Millis = 0;
        let mut told = String::new();
        loop {
            // Others count from when they see what was written, which is later than this.
            let began = self.clock.now();
            match self.try_in_time().await {
                Ok(true) => {
                    confirmed = began;
                    self.lead();
                    told.clear();
                }
                Ok(false) => {
                    self.stand_back();
                    told.clear();
                }
                Err(error) => {
                    if self.clock.now().saturating_sub(confirmed) >= DEADLINE {
                        self.stand_back();
                    }
                    let text = error.to_string();
                    if text != told {
                        tracing::warn!("{}: {text}; who leads is not known", self.place());
                        told = text;
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = &mut stop => break,
            }
        }
        if *self.leads.borrow() {
            self.stand_back();
            // Others find out by themselves otherwise.
            let _late = self.release().await;
        }
    }

    fn place(&self) -> String {
        format!("ConfigMap {}/{}", self.seat.namespace, self.seat.name)
    }

    fn lead(&self) {
        if !self.leads.send_replace(true) {
            tracing::info!("{}: we lead now", self.place());
        }
    }

    fn stand_back(&self) {
        if self.leads.send_replace(false) {
            tracing::info!("{}: we do not lead any more", self.place());
        }
    }

    fn resource(&self) -> Resource {
        let mut maps = Resource::new("", "v1", "configmaps");
        maps.namespace = Some(self.seat.namespace.as_str().into());
        maps
    }

    async fn try_in_time(&mut self) -> Result<bool, CallError> {
        let outcome = tokio::time::timeout(PATIENCE, self.try_once()).await;
        outcome.unwrap_or_else(|_| Err(CallError::Unreachable(format!("no answer within {PATIENCE:?}"))))
    }

    async fn try_once(&mut self) -> Result<bool, CallError> {
        let path = self.resource().object(self.seat.name);
        let map = read(&self.client, &path).await?;
        let record = map.as_ref().and_then(record_of);
        let now = self.clock.now();
        if self.seen.record != record {
            self.seen = Seen { record, since: now };
        }
        let mine = {
            let rank = Rank { seat: &self.seat, default: &self.default.borrow() };
            next(&self.seen, now, rank, &now_text((self.today)()))
        };
        let Some(mine) = mine else { return Ok(false) };
        match self.write(map, &path, &mine).await {
            Ok(()) => {
                self.seen = Seen { record: Some(mine), since: now };
                Ok(true)
            }
            // Somebody else wrote at the same time.
            Err(error) if error.status() == Some(409) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn write(&self, map: Option<Value>, path: &str, record: &Record) -> Result<(), CallError> {
        let text = serde_json::to_string(record).map_err(|error| CallError::Broken(error.to_string()))?;
        if let Some(mut map) = map {
            // It has its version, which makes sure that nobody wrote in between.
            set(&mut map, &["metadata", "annotations", ANNOTATION], text.into());
            return put(&self.client, path, &map).await;
        }
        let metadata = json!({
            "name": self.seat.name, "namespace": self.seat.namespace, "annotations": {ANNOTATION: text},
        });
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
        let path = self.resource().path();
        self.client.call(Call::post(&path, object.to_string())).await.map(|_| ())
    }

    async fn release(&mut self) -> Result<(), CallError> {
        let path = self.resource().object(self.seat.name);
        let map = read(&self.client, &path).await?;
        match map.as_ref().and_then(record_of) {
            Some(record) if record.holder_identity == self.seat.identity => {
                let record = Record { holder_identity: String::new(), lease_duration_seconds: 1, ..record };
                self.write(map, &path, &record).await
            }
            _ => Ok(()),
        }
    }
}

fn record_of(map: &Value) -> Option<Record> {
    let text = map["metadata"]["annotations"][ANNOTATION].as_str()?;
    // A record that cannot be read says nothing about who leads.
    serde_json::from_str(text).ok()
}

/// `2026-01-01T00:00:00Z`
pub fn now_text(seconds: i64) -> String {
    OffsetDateTime::from_unix_timestamp(seconds)
        .ok()
        .and_then(|at| at.format(&Rfc3339).ok())
        .unwrap_or_default()
}

/// Who wants a seat.
#[derive(Clone, Copy)]
struct Rank<'a> {
    seat: &'a Seat,
    default: &'a str,
}

/// How servers of another cluster are told apart, in the key of a record.
const REMOTE: char = '^';

impl Rank<'_> {
    fn key(self) -> String {
        let Seat { revision, remote, .. } = self.seat;
        if *remote { format!("{REMOTE}{revision}") } else { revision.clone() }
    }

    /// May it take the seat from somebody with such a key? What several revisions write must not be mixed, so the one that
    /// everybody gets without asking has the last word; and of one revision, who belongs to the cluster.
    fn is_above(self, key: &str) -> bool {
        let (revision, is_remote) = match key.strip_prefix(REMOTE) {
            Some(revision) => (revision, true),
            None => (key, false),
        };
        let own = self.seat.revision.as_str();
        if own == revision { is_remote && !self.seat.remote } else { own == self.default }
    }
}

/// The record to write, if the seat is ours or may be taken.
fn next(seen: &Seen, now: Millis, rank: Rank<'_>, today: &str) -> Option<Record> {
    let (lease, seat) = (LEASE / 1000, rank.seat);
    let fresh = Record {
        holder_identity: seat.identity.clone(),
        holder_key: rank.key(),
        lease_duration_seconds: lease,
        acquire_time: today.to_owned(),
        renew_time: today.to_owned(),
        leader_transitions: 0,
    };
    let Some(record) = &seen.record else { return Some(fresh) };
    if record.holder_identity == seat.identity {
        let (acquire_time, leader_transitions) = (record.acquire_time.clone(), record.leader_transitions);
        return Some(Record { acquire_time, leader_transitions, ..fresh });
    }
    let span = record.lease_duration_seconds.min(lease) * 1000;
    let is_free = record.holder_identity.is_empty() || now.saturating_sub(seen.since) >= span;
    let leader_transitions = record.leader_transitions + 1;
    (is_free || rank.is_above(&record.holder_key)).then_some(Record { leader_transitions, ..fresh })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::{Election, LEASE, Rank, Record, Seat, Seen, now_text, record_of};
    use crate::testing::{ApiServer, PausedClock};
    use pilot_base::Clock as _;
    use serde_json::json;
    use tokio::sync::watch;
    use tokio::task::JoinSet;

    fn seat(identity: &str, revision: &str) -> Seat {
        Seat {
            namespace: "istio-system".to_owned(),
            name: "istio-leader",
            identity: identity.to_owned(),
            revision: revision.trim_start_matches('^').to_owned(),
            remote: revision.starts_with('^'),
        }
    }

    /// Where no revision is the default.
    fn next(seen: &Seen, now: u64, seat: &Seat, today: &str) -> Option<Record> {
        super::next(seen, now, Rank { seat, default: "" }, today)
    }

    fn held_by(identity: &str, revision: &str) -> Seen {
        let empty = Seen::default();
        let record = next(&empty, 0, &seat(identity, revision), "2026-01-01T00:00:00Z");
        Seen { record, since: 1_000 }
    }

    #[test]
    fn a_free_seat_is_taken_and_kept() {
        let mine = held_by("a", "default").record.unwrap();
        assert_eq!((mine.holder_identity.as_str(), mine.lease_duration_seconds), ("a", 30));
        let seen = held_by("a", "default");
        let renewed = next(&seen, 5_000, &seat("a", "default"), "2026-01-01T00:00:05Z").unwrap();
        assert_eq!(renewed.acquire_time, "2026-01-01T00:00:00Z");
        assert_eq!(renewed.renew_time, "2026-01-01T00:00:05Z");
        assert_eq!(renewed.leader_transitions, 0);
    }

    #[test]
    fn a_seat_is_left_to_who_has_it_until_it_was_silent_for_a_whole_lease() {
        let seen = held_by("a", "default");
        let me = seat("b", "default");
        assert_eq!(next(&seen, 1_000 + LEASE - 1, &me, ""), None);
        let taken = next(&seen, 1_000 + LEASE, &me, "").unwrap();
        assert_eq!((taken.holder_identity.as_str(), taken.leader_transitions), ("b", 1));
    }

    #[test]
    fn a_seat_that_was_given_free_is_taken_at_once() {
        let mut seen = held_by("a", "default");
        seen.record.as_mut().unwrap().holder_identity.clear();
        assert!(next(&seen, 1_001, &seat("b", "canary"), "").is_some());
    }

    #[test]
    fn only_the_revision_that_the_tag_leads_to_takes_seats_of_others() {
        let takes = |held: &str, own: &str, default: &str| {
            let (seen, seat) = (held_by("a", held), seat("b", own));
            super::next(&seen, 1_001, Rank { seat: &seat, default }, "").is_some()
        };
        assert!(takes("canary", "blue", "blue") && takes("^canary", "blue", "blue"));
        assert!(!takes("canary", "default", ""), "a revision is not the default by its name");
        assert!(!takes("canary", "default", "canary") && !takes("canary", "blue", "canary"));
        assert!(!takes("blue", "blue", "blue"), "nor do servers of one revision take it from each other");
        assert!(takes("", "blue", "blue"));
    }

    #[test]
    fn who_belongs_to_a_cluster_goes_before_who_does_not() {
        let takes = |held: &str, own: &str| next(&held_by("a", held), 1_001, &seat("b", own), "").is_some();
        assert!(takes("^blue", "blue"));
        assert!(!takes("blue", "^blue") && !takes("^blue", "^blue") && !takes("^blue", "green"));
        assert_eq!(held_by("a", "^blue").record.unwrap().holder_key, "^blue");
    }

    #[test]
    fn the_record_is_written_as_istiod_writes_it() {
        let text = r#"{"holderIdentity":"istiod-0","holderKey":"default","leaseDurationSeconds":30,"acquireTime":"2026-01-01T00:00:00Z","renewTime":"2026-01-01T00:00:00Z","leaderTransitions":2}"#;
        let map = json!({"metadata": {"annotations": {"control-plane.alpha.kubernetes.io/leader": text}}});
        let record = record_of(&map).unwrap();
        assert_eq!(record.leader_transitions, 2);
        assert_eq!(serde_json::to_string(&record).unwrap(), text);
        assert_eq!(record_of(&json!({})), None);
        let damaged = json!({"metadata": {"annotations": {"control-plane.alpha.kubernetes.io/leader": "{"}}});
        assert_eq!(record_of(&damaged), None::<Record>);
        assert_eq!(now_text(1_767_225_600), "2026-01-01T00:00:00Z");
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_not_answered_leads_no_more_before_others_take_over() {
        let clock = Arc::new(PausedClock::default());
        let server = ApiServer::start().await;
        let (_tag, default) = watch::channel(String::new());
        let times = (Arc::clone(&clock) as Arc<dyn pilot_base::Clock>, (|| 0) as fn() -> i64);
        let election = Election::new(server.client(&clock), seat("a", "blue"), default, times);
        let mut leads = election.leadership();
        let mut tasks = JoinSet::new();
        tasks.spawn(election.run(std::future::pending()));
        leads.wait_for(|leads| *leads).await.unwrap();
        let confirmed = clock.now();
        server.fall_silent();
        let lost = tokio::time::timeout(Duration::from_secs(600), leads.wait_for(|leads| !*leads)).await;
        assert!(lost.is_ok(), "it leads for ever");
        let lasted = clock.now() - confirmed;
        assert!(lasted < LEASE, "it thought that it led for {lasted} ms without a word");
    }
}
