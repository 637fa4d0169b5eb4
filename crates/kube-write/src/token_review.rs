use std::collections::BTreeMap;

use pilot_base::Name;
use pilot_ca::SpiffeId;
use pilot_server::{Authenticator, Caller, Identified, TrustDomains};
use pilot_source_kube::{Call, Client, RemoteClients};
use serde_json::{Value, json};
use tokio::sync::watch;

const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// How Kubernetes calls a service account, and the group that all of them are in.
const ACCOUNT: &str = "system:serviceaccount:";
const ACCOUNTS: &str = "system:serviceaccounts";

/// Tokens of service accounts, which only the cluster that issued them can judge.
pub struct TokenReview {
    pub client: Client,
    /// The cluster that the client is of.
    pub cluster: Name,
    /// Other clusters, whose callers say where they are.
    pub others: RemoteClients,
    /// Other names of clusters.
    pub aliases: BTreeMap<Name, Name>,
    /// `TOKEN_AUDIENCES`: a token must be meant for one of them.
    pub audiences: Vec<String>,
    pub trust: watch::Receiver<TrustDomains>,
}

impl Authenticator for TokenReview {
    fn name(&self) -> &'static str {
        "KubeJWTAuthenticator"
    }

    fn identify<'a>(&'a self, caller: &'a Caller) -> Identified<'a> {
        Box::pin(self.ask(caller))
    }
}

impl TokenReview {
    async fn ask(&self, caller: &Caller) -> Result<Vec<SpiffeId>, String> {
        let token = caller.token().ok_or("no token is presented")?;
        let client = self.client_of(caller.cluster().unwrap_or_default())?;
        let question = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": self.audiences},
        });
        let answer = client
            .call(Call::post(PATH, question.to_string()))
            .await
            .map_err(|error| format!("the API server does not judge tokens: {error}"))?;
        let answer: Value = serde_json::from_slice(&answer).map_err(|error| error.to_string())?;
        let (namespace, account) = account_of(&answer)?;
        let domain = self.trust.borrow().own.clone();
        let id = SpiffeId::new(&domain, &namespace, &account);
        Ok(vec![id.ok_or("the account's name cannot stand in an identity")?])
    }
}

impl TokenReview {
    /// Who says nothing is where we are.
    pub(crate) fn client_of(&self, cluster: &str) -> Result<Client, String> {
        let meant = self.aliases.get(cluster).map_or(cluster, Name::as_str);
        if cluster.is_empty() || self.cluster == meant {
            return Ok(self.client.clone());
        }
        let others = self.others.borrow();
        others.get(meant).cloned().ok_or_else(|| {
            let known: Vec<&str> = others.keys().map(Name::as_str).collect();
            format!(
                "cluster {cluster:?} is not known; this is {}, and the others are: {}",
                self.cluster,
                known.join(", ")
            )
        })
    }
}

/// Namespace and name of the service account that a token is of.
fn account_of(answer: &Value) -> Result<(String, String), String> {
    let status = &answer["status"];
    let error = status["error"].as_str().unwrap_or_default();
    if !error.is_empty() {
        return Err(format!("the API server does not accept the token: {error}"));
    }
    if status["authenticated"] != true {
        return Err("the API server does not accept the token".to_owned());
    }
    // An API server that knows nothing of audiences would accept a token that is meant for others.
    if status["audiences"].as_array().is_none_or(Vec::is_empty) {
        return Err("the API server does not say which audience the token is for".to_owned());
    }
    let user = &status["user"];
    let is_account = user["groups"].as_array().into_iter().flatten().any(|group| group == ACCOUNTS);
    let name = user["username"].as_str().and_then(|name| name.strip_prefix(ACCOUNT));
    match name.and_then(|name| name.split_once(':')) {
        Some((namespace, account)) if is_account => Ok((namespace.to_owned(), account.to_owned())),
        _ => Err("the token is not one of a service account".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::account_of;
    use serde_json::{Value, json};

    fn answer(change: impl FnOnce(&mut Value)) -> Result<(String, String), String> {
        let mut status = json!({
            "authenticated": true, "audiences": ["istio-ca"],
            "user": {"username": "system:serviceaccount:shop:cart", "groups": ["system:serviceaccounts"]},
        });
        change(&mut status);
        account_of(&json!({ "status": status }))
    }

    #[test]
    fn only_service_accounts_that_the_api_server_knows_are_somebody() {
        assert_eq!(answer(|_| ()), Ok(("shop".to_owned(), "cart".to_owned())));
        let refused = |change: fn(&mut Value)| answer(change).unwrap_err();
        assert!(refused(|status| status["authenticated"] = json!(false)).contains("does not accept"));
        assert!(refused(|status| status["error"] = json!("expired")).contains("expired"));
        assert!(refused(|status| status["audiences"] = json!([])).contains("audience"));
        assert!(refused(|status| status["user"]["groups"] = json!(["people"])).contains("service account"));
        assert!(refused(|status| status["user"]["username"] = json!("bob")).contains("service account"));
        assert!(account_of(&json!({})).is_err());
    }
}
