//! Keys that tokens are checked with, fetched for policies that only say where they are.
//!
//! Nobody waits for them but the start of the server: until they have come, proxies have keys that no token fits.

mod fetch;
mod questions;
mod schedule;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pilot_base::{Cidr, Clock};
use pilot_model::KeySource;
use tokio::sync::watch;

use crate::engine::{EngineHandle, WantedKeys};
use crate::metrics::Metrics;

use fetch::Client;
use questions::{Answer, Questions};
use schedule::{Patience, Schedule};

/// How keys are fetched.
#[derive(Clone, Debug)]
pub struct KeyOptions {
    /// `PILOT_JWT_PUB_KEY_REFRESH_INTERVAL`
    pub refresh: Duration,
    /// `JWKS_RESOLVER_INSECURE_SKIP_VERIFY`
    pub trust_anybody: bool,
    /// `BLOCKED_CIDRS_IN_JWKS_URIS`
    pub blocked: Vec<Cidr>,
}

/// As Istio's chart mounts it: roots beside those of the system.
const EXTRA_ROOTS: &str = "/cacerts/extra.pem";
/// A start waits so long for keys: longer than rules wait by default, shorter than a probe's patience.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// A start, or a caller, waits so long for one request.
const REQUEST_PATIENCE: Duration = Duration::from_secs(5);

/// Asks for keys that no policy names. It blocks.
#[derive(Clone)]
pub(crate) struct KeyClient(Client);

impl KeyClient {
    pub(crate) fn new(options: &KeyOptions, clock: Arc<dyn Clock>) -> Self {
        Self(Client::new(options, EXTRA_ROOTS.as_ref(), clock))
    }

    pub(crate) fn keys(&self, source: &KeySource) -> Result<String, String> {
        let patience = Patience { request: REQUEST_PATIENCE, question: START_PATIENCE };
        self.0.keys(source, patience).map(|text| text.to_string()).map_err(|error| error.to_string())
    }
}

/// Follows what policies ask for.
pub struct KeyFetcher {
    engine: EngineHandle,
    client: Client,
    schedule: Schedule,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    /// What has been answered at least once, one way or the other.
    tried: watch::Sender<BTreeSet<KeySource>>,
}

impl KeyFetcher {
    pub fn new(
        engine: EngineHandle,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
        options: &KeyOptions,
    ) -> Self {
        let client = Client::new(options, EXTRA_ROOTS.as_ref(), Arc::clone(&clock));
        Self {
            engine,
            client,
            schedule: Schedule::new(options.refresh),
            clock,
            metrics,
            tried: watch::Sender::default(),
        }
    }

    /// Waits until everything that is asked for now has been tried once: a server that says less than the one
    /// before it would make proxies refuse good tokens.
    pub fn settled(&self) -> impl Future<Output = ()> + Send + 'static {
        let tried = all_tried(self.engine.wanted_keys(), self.tried.subscribe());
        async {
            if tokio::time::timeout(START_PATIENCE, tried).await.is_err() {
                tracing::warn!(
                    "some keys of token issuers have not come within {START_PATIENCE:?}; serving without"
                );
            }
        }
    }

    /// Runs until the engine is gone.
    pub async fn run(mut self) {
        let mut wanted = self.engine.wanted_keys();
        let mut questions = Questions::default();
        loop {
            let now = self.clock.now();
            let gone = self.schedule.want(&wanted.borrow_and_update(), now);
            for source in gone {
                self.tried.send_if_modified(|tried| tried.remove(&source));
                self.engine.key_set(source, None);
            }
            for (source, patience) in self.schedule.due(now) {
                let client = self.client.clone();
                questions.ask(source, move |source| client.keys(source, patience));
            }
            let pause = self.schedule.next().map(|at| Duration::from_millis(at.saturating_sub(now)));
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return },
                Some((source, answer)) = questions.answer() => self.take(source, answer),
                () = sleep(pause) => {}
            }
        }
    }

    fn take(&mut self, source: KeySource, answer: Answer) {
        self.metrics.note_key_fetch(&answer);
        let answer = answer.map_err(|error| error.to_string());
        if let Some(set) = self.schedule.answered(&source, answer, self.clock.now()) {
            self.engine.key_set(source.clone(), Some(set));
            self.tried.send_if_modified(|tried| tried.insert(source));
        }
    }
}

/// Waits until what is wanted has been tried, or does not matter any more because one of both sides has ended.
async fn all_tried(mut wanted: watch::Receiver<WantedKeys>, mut tried: watch::Receiver<BTreeSet<KeySource>>) {
    loop {
        let is_tried = {
            let (wanted, tried) = (wanted.borrow_and_update(), tried.borrow_and_update());
            wanted.keys().all(|source| tried.contains(source))
        };
        if is_tried {
            return;
        }
        // Both can bring it about: an answer, and a policy that goes away.
        let changed = tokio::select! {
            changed = wanted.changed() => changed,
            changed = tried.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
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
    use super::{BTreeSet, Duration, KeySource, WantedKeys, all_tried, watch};
    use pilot_base::Name;

    fn source(name: &str) -> KeySource {
        KeySource::Uri(Name::new(name))
    }

    fn wanted(names: &[&str]) -> WantedKeys {
        names.iter().map(|name| (source(name), Duration::from_secs(5))).collect()
    }

    #[tokio::test]
    async fn a_start_waits_for_what_is_wanted_and_not_for_what_was() {
        let (want, tried) = (watch::Sender::new(wanted(&["a", "b"])), watch::Sender::new(BTreeSet::new()));
        let mut waiting = Box::pin(all_tried(want.subscribe(), tried.subscribe()));
        let mut is_over = async || {
            let a_moment = Duration::from_millis(100);
            tokio::time::timeout(a_moment, &mut waiting).await.is_ok()
        };
        assert!(!is_over().await);
        tried.send_modify(|tried| tried.extend([source("a")]));
        assert!(!is_over().await, "b is still asked for");
        want.send_replace(wanted(&["a"]));
        assert!(is_over().await, "nobody waits for b any more");
    }
}
