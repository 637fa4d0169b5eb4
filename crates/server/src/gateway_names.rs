//! Names of gateways between networks, looked up for proxies: they are told addresses only.
//!
//! What was found once is kept while nobody answers: a gateway that was there is better than none.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pilot_base::{Clock, Millis, Name};
use pilot_model::HostAddresses;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::engine::EngineHandle;

/// A name is looked up again after this long, as istiod does at the earliest.
const AGAIN: Duration = Duration::from_secs(30);
/// As long as istiod waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Follows the names that gateways have.
pub struct GatewayNames {
    engine: EngineHandle,
    clock: Arc<dyn Clock>,
    known: BTreeMap<Name, Known>,
    /// What has been answered at least once, one way or the other.
    tried: watch::Sender<BTreeSet<Name>>,
}

#[derive(Default)]
struct Known {
    told: Option<HostAddresses>,
    /// When it is looked up again; never while it is being looked up.
    due: Option<Millis>,
}

type Answer = Result<Vec<IpAddr>, String>;

impl GatewayNames {
    pub fn new(engine: EngineHandle, clock: Arc<dyn Clock>) -> Self {
        Self { engine, clock, known: BTreeMap::new(), tried: watch::Sender::default() }
    }

    /// Waits until every name that is asked for now was looked up once: a server that knows fewer gateways than the one
    /// before it would send proxies where they cannot go.
    pub fn settled(&self) -> impl Future<Output = ()> + Send + 'static {
        let (mut wanted, mut tried) = (self.engine.wanted_names(), self.tried.subscribe());
        async move {
            let all_tried = async {
                while !wanted.borrow_and_update().is_subset(&tried.borrow_and_update()) {
                    let changed = tokio::select! {
                        changed = wanted.changed() => changed,
                        changed = tried.changed() => changed,
                    };
                    if changed.is_err() {
                        return;
                    }
                }
            };
            if tokio::time::timeout(PATIENCE, all_tried).await.is_err() {
                tracing::warn!(
                    "some names of network gateways were not found within {PATIENCE:?}; serving without"
                );
            }
        }
    }

    /// Runs until the engine is gone.
    pub async fn run(mut self) {
        let mut wanted = self.engine.wanted_names();
        let mut questions: JoinSet<(Name, Answer)> = JoinSet::new();
        loop {
            let now = self.clock.now();
            let names = wanted.borrow_and_update().clone();
            self.want(&names, now);
            for name in self.due(now) {
                questions.spawn(async move {
                    let answer = look_up(&name).await;
                    (name, answer)
                });
            }
            let next = self.known.values().filter_map(|known| known.due).min();
            let pause = next.map(|at| Duration::from_millis(at.saturating_sub(now)));
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return },
                Some(Ok((name, answer))) = questions.join_next() => self.answered(&name, answer),
                () = sleep(pause) => {}
            }
        }
    }

    fn want(&mut self, names: &BTreeSet<Name>, now: Millis) {
        for name in names {
            self.known.entry(name.clone()).or_insert_with(|| Known { told: None, due: Some(now) });
        }
        let gone: Vec<Name> = self.known.keys().filter(|name| !names.contains(*name)).cloned().collect();
        for name in gone {
            self.known.remove(&name);
            self.tried.send_if_modified(|tried| tried.remove(&name));
            self.engine.host_addresses(name, None);
        }
    }

    fn due(&mut self, now: Millis) -> Vec<Name> {
        let due = self.known.iter_mut().filter(|(_, known)| known.due.is_some_and(|at| at <= now));
        due.map(|(name, known)| {
            known.due = None;
            name.clone()
        })
        .collect()
    }

    fn answered(&mut self, name: &Name, answer: Answer) {
        // Nobody may want it any more.
        let Some(known) = self.known.get_mut(name) else { return };
        let again = u64::try_from(AGAIN.as_millis()).unwrap_or(u64::MAX);
        known.due = Some(self.clock.now().saturating_add(again));
        let found = told(known.told.as_ref(), answer);
        if known.told.as_ref() != Some(&found) {
            if let Some(why) = &found.failure {
                tracing::warn!("{name}, a gateway between networks, was not found: {why}");
            }
            known.told = Some(found.clone());
            self.engine.host_addresses(name.clone(), Some(found));
        }
        self.tried.send_if_modified(|tried| tried.insert(name.clone()));
    }
}

/// What is told after an answer: the addresses of the last good one.
fn told(before: Option<&HostAddresses>, answer: Answer) -> HostAddresses {
    match answer {
        Ok(mut addresses) if !addresses.is_empty() => {
            addresses.sort();
            addresses.dedup();
            HostAddresses { addresses, failure: None }
        }
        answer => {
            let why = answer.err().unwrap_or_else(|| "it has no addresses".to_owned());
            let addresses = before.map(|before| before.addresses.clone()).unwrap_or_default();
            HostAddresses { addresses, failure: Some(Name::from(why)) }
        }
    }
}

async fn look_up(name: &Name) -> Answer {
    let answer = tokio::time::timeout(PATIENCE, tokio::net::lookup_host((name.as_str(), 0)));
    match answer.await {
        Ok(Ok(found)) => Ok(found.map(|address| address.ip()).collect()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {PATIENCE:?}")),
    }
}

async fn sleep(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::{HostAddresses, look_up, told};
    use pilot_base::Name;

    #[test]
    fn the_last_good_answer_is_kept() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let first = told(None, Ok(vec![ip("10.0.0.2"), ip("10.0.0.1"), ip("10.0.0.2")]));
        assert_eq!(first, HostAddresses { addresses: vec![ip("10.0.0.1"), ip("10.0.0.2")], failure: None });
        let lost = told(Some(&first), Err("nobody answers".to_owned()));
        assert_eq!((&lost.addresses, lost.failure.as_deref()), (&first.addresses, Some("nobody answers")));
        let empty = told(Some(&lost), Ok(Vec::new()));
        assert_eq!(
            (&empty.addresses, empty.failure.as_deref()),
            (&first.addresses, Some("it has no addresses"))
        );
        assert_eq!(told(Some(&empty), Ok(vec![ip("10.0.0.3")])).addresses, [ip("10.0.0.3")]);
        assert!(told(None, Err("no".to_owned())).addresses.is_empty());
    }

    #[tokio::test]
    async fn names_are_looked_up_by_the_system() {
        assert!(look_up(&Name::new("localhost")).await.unwrap().iter().all(IpAddr::is_loopback));
        assert!(look_up(&Name::new("a..b")).await.is_err());
    }
}
