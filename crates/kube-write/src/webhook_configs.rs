//! The API server is told by which certificate it knows us, and that it may rely on us once it was seen to ask us.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use data_encoding::BASE64;
use pilot_base::Name;
use pilot_config::Tree;
use pilot_server::Metrics;
use pilot_source_kube::{
    Backoff, Call, CallError, Change, Client, Follow, Look, Resource, Update, Verdict, What,
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::attempts::{Attempts, is_left, until};
use crate::object::{change, set};

const CAPACITY: usize = 16;
/// Webhooks for injection are ours if their names end like this.
const INJECTOR: &str = "sidecar-injector.istio.io";

/// Keeps the configurations of webhooks that call servers of our revision up to date. Every server does: all write the same.
pub struct WebhookConfigs {
    pub client: Client,
    pub namespace: String,
    pub revision: String,
    /// PEM of who signed the certificate that we show.
    pub ca_bundle: watch::Receiver<Arc<str>>,
    pub scope: HookScope,
    pub metrics: Arc<Metrics>,
}

/// Which of them are looked after.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HookScope {
    All,
    /// Those that judge objects.
    Validation,
    /// Those that have sidecars injected, as in other clusters: their rules are none of ours.
    Injection,
}

impl HookScope {
    pub fn injects(self) -> bool {
        self != Self::Validation
    }
}

/// Who is asked about objects: whether they may be, or how they should be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Sort {
    Validating,
    Mutating,
}

impl Sort {
    fn resource(self) -> Resource {
        let plural = match self {
            Self::Validating => "validatingwebhookconfigurations",
            Self::Mutating => "mutatingwebhookconfigurations",
        };
        Resource::new("admissionregistration.k8s.io", "v1", plural)
    }
}

/// May an API server rely on us?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trust {
    NotYet,
    /// It was seen to ask us.
    Proven,
}

/// One webhook of a configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Hook {
    name: String,
    ca_bundle: String,
    fails_open: bool,
}

type Hooks = Vec<Hook>;
type Message = (Sort, Update<Hooks>);

struct HooksLook;

impl Look for HooksLook {
    type Value = Hooks;

    fn look(&self, object: Tree<'_>) -> Verdict<Hooks> {
        let hooks = object.get("webhooks").into_iter().flat_map(Tree::items);
        let one = |hook: Tree<'_>| Hook {
            name: hook.text_at(&["name"]).to_owned(),
            ca_bundle: hook.text_at(&["clientConfig", "caBundle"]).to_owned(),
            fails_open: hook.text_at(&["failurePolicy"]) == "Ignore",
        };
        Verdict::Take(hooks.map(one).collect(), Vec::new())
    }
}

type Known = BTreeMap<(Sort, Name), Hooks>;

impl WebhookConfigs {
    pub async fn run(mut self) {
        let client = self.client.at_leisure();
        let (teller, mut messages) = mpsc::channel(CAPACITY);
        let mut following = self.follow(&client, &teller);
        drop(teller);
        let mut known = Known::new();
        let mut trial = Trial::new();
        let mut attempts =
            Attempts::among_others("the API server does not know by which certificate it knows us");
        loop {
            let bundle = BASE64.encode(self.ca_bundle.borrow_and_update().as_bytes());
            if trial.is_due(&known) {
                trial.note(self.is_asked(&client).await);
            }
            for key in left(&known, &bundle, trial.trust) {
                if attempts.may(&key) {
                    let written = write(&client, (&mut known, &key), &bundle, trial.trust).await;
                    self.count(&key, &written);
                    attempts.note(&key, &written);
                }
            }
            let due =
                attempts.due(&left(&known, &bundle, trial.trust)).into_iter().chain(trial.due(&known)).min();
            tokio::select! {
                message = messages.recv() => match message {
                    Some((sort, update)) => hear(&mut known, sort, update),
                    None => break,
                },
                changed = self.ca_bundle.changed() => if changed.is_err() { break },
                () = until(due) => {}
            }
        }
        following.shutdown().await;
    }

    fn count(&self, (sort, name): &(Sort, Name), written: &Result<(), CallError>) {
        let outcome = written.as_ref().copied().map_err(|error| match error {
            CallError::Refused { reason, .. } => reason.as_str(),
            CallError::Unreachable(_) | CallError::Broken(_) => "Unreachable",
        });
        match sort {
            Sort::Validating => self.metrics.webhooks().judging(outcome),
            Sort::Mutating => self.metrics.webhooks().injecting(name, outcome),
        }
    }

    fn follow(&self, client: &Client, teller: &mpsc::Sender<Message>) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        let sorts: &[Sort] = match self.scope {
            HookScope::All => &[Sort::Validating, Sort::Mutating],
            HookScope::Validation => &[Sort::Validating],
            HookScope::Injection => &[Sort::Mutating],
        };
        for sort in sorts.iter().copied() {
            let labels = Some(Name::from(format!("istio.io/rev={}", self.revision)));
            let configs = Resource { labels, ..sort.resource() };
            let follow = Follow::fixed(client.clone(), configs, HooksLook).believing();
            tasks.spawn(follow.run(teller.clone(), move |update| (sort, update)));
        }
        tasks
    }

    /// Is an object that must be refused refused? Nothing is kept of it.
    async fn is_asked(&self, client: &Client) -> Result<(), String> {
        let object = json!({
            "apiVersion": "networking.istio.io/v1",
            "kind": "Gateway",
            "metadata": {
                "name": "invalid-gateway",
                "namespace": self.namespace,
                "labels": {"istio.io/rev": self.revision},
                "annotations": {"internal.istio.io/webhook-always-reject": "true"},
            },
            // A schema that asks for servers must not be the one that refuses.
            "spec": {},
        });
        let mut gateways = Resource::new("networking.istio.io", "v1", "gateways");
        gateways.namespace = Some(self.namespace.as_str().into());
        let path = format!("{}?dryRun=All", gateways.path());
        match client.call(Call::post(&path, object.to_string())).await {
            Ok(_) => Err("an object that must be refused was accepted".to_owned()),
            Err(error) => judged(&error),
        }
    }
}

/// The trial whether API servers ask us.
struct Trial {
    trust: Trust,
    next: Instant,
    backoff: Backoff,
    told: String,
}

impl Trial {
    fn new() -> Self {
        Self { trust: Trust::NotYet, next: Instant::now(), backoff: Backoff::new(), told: String::new() }
    }

    /// When it is to be made, if anything depends on it.
    fn due(&self, known: &Known) -> Option<Instant> {
        let wants = |(key, hooks): (&(Sort, Name), &Hooks)| {
            key.0 == Sort::Validating && hooks.iter().any(|hook| hook.fails_open)
        };
        (self.trust == Trust::NotYet && known.iter().any(wants)).then_some(self.next)
    }

    fn is_due(&self, known: &Known) -> bool {
        self.due(known).is_some_and(|due| due <= Instant::now())
    }

    fn note(&mut self, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => {
                tracing::info!("the API server asks us about objects: from now on none goes past us");
                self.trust = Trust::Proven;
            }
            Err(why) => {
                self.next = Instant::now() + self.backoff.wait(None);
                if why != self.told {
                    tracing::info!("objects may still go past validation: {why}");
                    self.told = why;
                }
            }
        }
    }
}

/// Configurations that are not as they should be.
fn left(known: &Known, bundle: &str, trust: Trust) -> BTreeSet<(Sort, Name)> {
    let differs = |sort: Sort, hook: &Hook| {
        is_ours(sort, &hook.name) && (hook.ca_bundle != bundle || (hook.fails_open && may_close(sort, trust)))
    };
    let is_left = |(key, hooks): &(&(Sort, Name), &Hooks)| hooks.iter().any(|hook| differs(key.0, hook));
    known.iter().filter(is_left).map(|(key, _)| key.clone()).collect()
}

/// Changes one of them. One that is gone, or somebody else's by now, is forgotten: a watch tells what becomes of it.
async fn write(
    client: &Client,
    (known, key): (&mut Known, &(Sort, Name)),
    bundle: &str,
    trust: Trust,
) -> Result<(), CallError> {
    let (sort, name) = key;
    let Some(hooks) = known.get_mut(key) else { return Ok(()) };
    let path = sort.resource().object(name);
    let written = change(client, &path, |config| amend(*sort, config, bundle, trust)).await;
    match &written {
        Ok(()) => done(*sort, hooks, bundle, trust),
        Err(_) if !is_left(&written) => drop(known.remove(key)),
        Err(_) => {}
    }
    written
}

/// What a refusal means.
fn judged(error: &CallError) -> Result<(), String> {
    let text = error.to_string();
    if text.contains("denied the request") {
        return Ok(());
    }
    // It cannot be tried out, and trying again would not change that.
    if text.contains("the server could not find the requested resource")
        || text.contains("does not support dry run")
    {
        tracing::warn!("whether the API server asks us cannot be tried out: {text}");
        return Ok(());
    }
    Err(text)
}

fn hear(known: &mut Known, sort: Sort, update: Update<Hooks>) {
    let Update::Changed { changes, .. } = update else { return };
    for Change { id, what, .. } in changes {
        match what {
            What::Put(hooks) => drop(known.insert((sort, id.name), hooks)),
            What::Gone => drop(known.remove(&(sort, id.name))),
            What::Same => {}
        }
    }
}

fn is_ours(sort: Sort, name: &str) -> bool {
    sort == Sort::Validating || name.ends_with(INJECTOR)
}

/// Should webhooks that let everything pass when nobody answers cease to do so?
fn may_close(sort: Sort, trust: Trust) -> bool {
    sort == Sort::Validating && trust == Trust::Proven
}

/// Changes what is ours in a configuration as it stands there.
fn amend(sort: Sort, config: &mut Value, bundle: &str, trust: Trust) {
    let hooks = config.get_mut("webhooks").and_then(Value::as_array_mut);
    for hook in hooks.into_iter().flatten() {
        if !is_ours(sort, hook["name"].as_str().unwrap_or_default()) {
            continue;
        }
        set(hook, &["clientConfig", "caBundle"], bundle.into());
        if hook["failurePolicy"] == "Ignore" && may_close(sort, trust) {
            set(hook, &["failurePolicy"], "Fail".into());
        }
    }
}

/// What that led to; the watch will say the same.
fn done(sort: Sort, hooks: &mut Hooks, bundle: &str, trust: Trust) {
    for hook in hooks.iter_mut().filter(|hook| is_ours(sort, &hook.name)) {
        bundle.clone_into(&mut hook.ca_bundle);
        hook.fails_open &= !may_close(sort, trust);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pilot_base::Name;
    use serde_json::{Value, json};

    use super::{Hook, Sort, Trust, amend, done, left};

    fn config(name: &str) -> Value {
        json!({"webhooks": [{"name": name, "failurePolicy": "Ignore", "clientConfig": {"url": "https://a"}}]})
    }

    fn amended(sort: Sort, name: &str, trust: Trust) -> [Value; 2] {
        let mut config = config(name);
        amend(sort, &mut config, "QQ==", trust);
        let hook = &config["webhooks"][0];
        [hook["clientConfig"]["caBundle"].clone(), hook["failurePolicy"].clone()]
    }

    #[test]
    fn a_webhook_fails_closed_only_after_it_was_seen_to_work() {
        let name = "rev.validation.istio.io";
        assert_eq!(amended(Sort::Validating, name, Trust::NotYet), [json!("QQ=="), json!("Ignore")]);
        assert_eq!(amended(Sort::Validating, name, Trust::Proven), [json!("QQ=="), json!("Fail")]);
        let hook = Hook { name: name.to_owned(), ca_bundle: String::new(), fails_open: true };
        let key = (Sort::Validating, Name::new("v"));
        let mut known = BTreeMap::from([(key.clone(), vec![hook])]);
        for trust in [Trust::NotYet, Trust::Proven] {
            assert_eq!(left(&known, "QQ==", trust).len(), 1);
            done(Sort::Validating, known.get_mut(&key).unwrap(), "QQ==", trust);
            assert!(left(&known, "QQ==", trust).is_empty());
        }
    }

    #[test]
    fn only_our_own_injection_is_touched_and_never_closed() {
        let theirs = amended(Sort::Mutating, "other.example.com", Trust::Proven);
        assert_eq!(theirs, [Value::Null, json!("Ignore")]);
        let ours = amended(Sort::Mutating, "namespace.sidecar-injector.istio.io", Trust::Proven);
        assert_eq!(ours, [json!("QQ=="), json!("Ignore")]);
        amend(Sort::Mutating, &mut json!([]), "QQ==", Trust::Proven);
    }
}
