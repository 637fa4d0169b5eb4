//! The API server is told by which certificate it knows us, and that it may rely on us once it was seen to ask us.

use std::collections::BTreeMap;
use std::sync::Arc;

use data_encoding::BASE64;
use pilot_base::Name;
use pilot_config::Tree;
use pilot_source_kube::{
    Backoff, Call, CallError, Change, Client, Follow, Look, Resource, Update, Verdict, What,
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

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

impl WebhookConfigs {
    pub async fn run(mut self) {
        let (teller, mut messages) = mpsc::channel(CAPACITY);
        let mut following = self.follow(&teller);
        drop(teller);
        let mut known: BTreeMap<(Sort, Name), Hooks> = BTreeMap::new();
        let mut trust = Trust::NotYet;
        let mut backoff = Backoff::new();
        let mut told = String::new();
        loop {
            let bundle = BASE64.encode(self.ca_bundle.borrow_and_update().as_bytes());
            let mut again = None;
            if let Err(why) = self.write_all(&mut known, &bundle, &mut trust).await {
                if why != told {
                    tracing::info!("{why}");
                    told = why;
                }
                again = Some(backoff.wait(None));
            } else {
                backoff.reset();
            }
            let later = async {
                match again {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                message = messages.recv() => match message {
                    Some((sort, update)) => hear(&mut known, sort, update),
                    None => break,
                },
                changed = self.ca_bundle.changed() => if changed.is_err() { break },
                () = later => {}
            }
        }
        following.shutdown().await;
    }

    fn follow(&self, teller: &mpsc::Sender<Message>) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        for sort in [Sort::Validating, Sort::Mutating] {
            let labels = Some(Name::from(format!("istio.io/rev={}", self.revision)));
            let (_, place) = watch::channel(Resource { labels, ..sort.resource() });
            let follow = Follow { client: self.client.clone(), place, look: Arc::new(HooksLook) };
            tasks.spawn(follow.run(teller.clone(), move |update| (sort, update)));
        }
        tasks
    }

    /// Everything that is not as it should be. Fails if something is left to do.
    async fn write_all(
        &self,
        known: &mut BTreeMap<(Sort, Name), Hooks>,
        bundle: &str,
        trust: &mut Trust,
    ) -> Result<(), String> {
        let mut left = Ok(());
        let wants_closing =
            |sort: Sort, hooks: &Hooks| sort == Sort::Validating && hooks.iter().any(|hook| hook.fails_open);
        if *trust == Trust::NotYet && known.iter().any(|((sort, _), hooks)| wants_closing(*sort, hooks)) {
            match self.is_asked().await {
                Ok(()) => {
                    tracing::info!("the API server asks us about objects: from now on none goes past us");
                    *trust = Trust::Proven;
                }
                Err(why) => left = Err(format!("objects may still go past validation: {why}")),
            }
        }
        for ((sort, name), hooks) in known.iter_mut() {
            let changes = changes(*sort, hooks, bundle, *trust);
            if changes.is_empty() {
                continue;
            }
            let path = sort.resource().object(name);
            match self.client.call(Call::json_patch(&path, Value::from(changes).to_string())).await {
                Ok(_) => done(*sort, hooks, bundle, *trust),
                Err(error) if error.status() == Some(404) => {}
                Err(error) => left = Err(format!("{} {name}: {error}", sort.resource().name())),
            }
        }
        left
    }

    /// Is an object that must be refused refused? Nothing is kept of it.
    async fn is_asked(&self) -> Result<(), String> {
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
        match self.client.call(Call::post(&path, object.to_string())).await {
            Ok(_) => Err("an object that must be refused was accepted".to_owned()),
            Err(error) => judged(&error),
        }
    }
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

fn hear(known: &mut BTreeMap<(Sort, Name), Hooks>, sort: Sort, update: Update<Hooks>) {
    let Update::Changed { changes, .. } = update else { return };
    for Change { id, what, .. } in changes {
        match what {
            What::Put(hooks) => drop(known.insert((sort, id.name), hooks)),
            What::Gone => drop(known.remove(&(sort, id.name))),
            What::Same => {}
        }
    }
}

fn is_ours(sort: Sort, hook: &Hook) -> bool {
    sort == Sort::Validating || hook.name.ends_with(INJECTOR)
}

/// A JSON patch; empty if all is as it should be.
fn changes(sort: Sort, hooks: &Hooks, bundle: &str, trust: Trust) -> Vec<Value> {
    let mut changes = Vec::new();
    for (i, hook) in hooks.iter().enumerate().filter(|(_, hook)| is_ours(sort, hook)) {
        let before = changes.len();
        if hook.ca_bundle != bundle {
            changes.push(
                json!({"op": "add", "path": format!("/webhooks/{i}/clientConfig/caBundle"), "value": bundle}),
            );
        }
        if sort == Sort::Validating && hook.fails_open && trust == Trust::Proven {
            changes.push(
                json!({"op": "replace", "path": format!("/webhooks/{i}/failurePolicy"), "value": "Fail"}),
            );
        }
        if changes.len() > before {
            // Others may have changed the order.
            let test = json!({"op": "test", "path": format!("/webhooks/{i}/name"), "value": hook.name});
            changes.insert(before, test);
        }
    }
    changes
}

/// What the patch led to; the watch will say the same.
fn done(sort: Sort, hooks: &mut Hooks, bundle: &str, trust: Trust) {
    for hook in hooks.iter_mut().filter(|hook| is_ours(sort, hook)) {
        bundle.clone_into(&mut hook.ca_bundle);
        hook.fails_open &= !(sort == Sort::Validating && trust == Trust::Proven);
    }
}

#[cfg(test)]
mod tests {
    use super::{Hook, Sort, Trust, changes, done};
    use serde_json::json;

    fn hook(name: &str) -> Hook {
        Hook { name: name.to_owned(), ca_bundle: String::new(), fails_open: true }
    }

    #[test]
    fn a_webhook_fails_closed_only_after_it_was_seen_to_work() {
        let mut hooks = vec![hook("rev.validation.istio.io")];
        let first = changes(Sort::Validating, &hooks, "QQ==", Trust::NotYet);
        let paths: Vec<_> = first.iter().map(|change| change["path"].as_str().unwrap().to_owned()).collect();
        assert_eq!(paths, ["/webhooks/0/name", "/webhooks/0/clientConfig/caBundle"]);
        done(Sort::Validating, &mut hooks, "QQ==", Trust::NotYet);
        assert!(changes(Sort::Validating, &hooks, "QQ==", Trust::NotYet).is_empty());
        let second = changes(Sort::Validating, &hooks, "QQ==", Trust::Proven);
        assert_eq!(second[1], json!({"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail"}));
        done(Sort::Validating, &mut hooks, "QQ==", Trust::Proven);
        assert!(changes(Sort::Validating, &hooks, "QQ==", Trust::Proven).is_empty());
    }

    #[test]
    fn only_our_own_injection_is_touched_and_never_closed() {
        let hooks = vec![hook("other.example.com"), hook("namespace.sidecar-injector.istio.io")];
        let all = changes(Sort::Mutating, &hooks, "QQ==", Trust::Proven);
        assert_eq!(all.len(), 2);
        assert_eq!(all[1]["path"], "/webhooks/1/clientConfig/caBundle");
    }
}
