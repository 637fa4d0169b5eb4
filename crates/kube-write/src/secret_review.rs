use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_base::{Clock, FastMap, Millis, Name};
use pilot_ca::SpiffeId;
use pilot_server::{Reviewed, SecretReview, Verdict};
use pilot_source_kube::{Call, Client};
use serde_json::{Value, json};

use crate::token_review::TokenReview;

const PATH: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// There is no hurry to take back what was allowed; who was just given the right does not wait for long.
const ALLOWED_FOR: Duration = Duration::from_secs(5 * 60);
const DENIED_FOR: Duration = Duration::from_secs(60);
/// What was last said counts for as long while nobody can be asked.
const KEPT_FOR: Duration = Duration::from_secs(60 * 60);

/// Asks the API server of a gateway's cluster whether its service account may list Secrets in its namespace.
pub struct SecretReviews {
    /// Who knows the API servers of all clusters.
    clusters: Arc<TokenReview>,
    clock: Arc<dyn Clock>,
    /// By cluster and account.
    known: Mutex<FastMap<(Name, String), Known>>,
}

#[derive(Clone, Copy)]
struct Known {
    verdict: Verdict,
    until: Millis,
}

impl SecretReviews {
    pub fn new(clusters: Arc<TokenReview>, clock: Arc<dyn Clock>) -> Self {
        Self { clusters, clock, known: Mutex::default() }
    }

    async fn verdict(&self, cluster: &str, who: &SpiffeId) -> Verdict {
        let user = format!("system:serviceaccount:{}:{}", who.namespace, who.service_account);
        let key = (Name::new(cluster), user);
        let known = self.known.lock().get(&key).copied();
        let now = self.clock.now();
        match known {
            Some(Known { verdict, until }) if now < until => return verdict,
            _ => {}
        }
        let asked = match self.clusters.client_of(cluster) {
            Ok(client) => ask(&client, &key.1, &who.namespace).await,
            Err(error) => Err(error),
        };
        let verdict = match asked {
            Ok(verdict) => verdict,
            Err(error) => {
                tracing::warn!("whether {} may read secrets cannot be asked: {error}", key.1);
                // What was allowed stays so while nobody can be asked.
                return known.map_or(Verdict::Unknown, |known| known.verdict);
            }
        };
        let good_for = if verdict == Verdict::Allowed { ALLOWED_FOR } else { DENIED_FOR };
        let until = now + millis(good_for);
        let mut all = self.known.lock();
        // Verdicts about accounts that are gone do not gather.
        all.retain(|_, known| now < known.until + millis(KEPT_FOR));
        all.insert(key, Known { verdict, until });
        verdict
    }
}

impl SecretReview for SecretReviews {
    fn may_read<'a>(&'a self, cluster: &'a str, who: &'a SpiffeId) -> Reviewed<'a> {
        Box::pin(self.verdict(cluster, who))
    }
}

async fn ask(client: &Client, user: &str, namespace: &str) -> Result<Verdict, String> {
    let question = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": {"namespace": namespace, "verb": "list", "resource": "secrets"}},
    });
    let answer =
        client.call(Call::post(PATH, question.to_string())).await.map_err(|error| error.to_string())?;
    let answer: Value = serde_json::from_slice(&answer).map_err(|error| error.to_string())?;
    match answer["status"]["allowed"].as_bool() {
        Some(true) => Ok(Verdict::Allowed),
        Some(false) => Ok(Verdict::Denied),
        None => Err("the answer does not say whether it is allowed".to_owned()),
    }
}

fn millis(span: Duration) -> Millis {
    Millis::try_from(span.as_millis()).unwrap_or(Millis::MAX)
}
