//! What our manifests install, without an image to run.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use pilot_source_kube::Call;
use serde_json::{Value, json};

use super::KubeServer;
use super::chart::ChartRules;

const ACCOUNT: &str = "istio-system/serviceaccounts/istiod";
/// Everything but the webhook, whose address is another one here.
pub const MANIFESTS: [&str; 8] =
    ["namespace", "service-account", "cluster-role", "role", "mesh", "service", "deployment", "disruption"];

/// Everything that our manifests let the server do.
pub fn our_rules() -> anyhow::Result<Vec<Value>> {
    let mut all = Vec::new();
    for object in [documents("cluster-role")?, documents("role")?].concat() {
        all.extend(object["rules"].as_array().into_iter().flatten().cloned());
    }
    Ok(all)
}

fn documents(name: &str) -> anyhow::Result<Vec<Value>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../manifests/{name}.yaml"));
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let read = |text| pilot_config::read_value(text, name).map_err(|issue| anyhow::anyhow!("{issue}"));
    text.split("\n---\n").map(read).collect()
}

impl KubeServer {
    /// Installs them, and gives out a kubeconfig of who may do what they allow and nothing more, by an address that leads
    /// here.
    pub async fn installed(&self, address: SocketAddr) -> anyhow::Result<String> {
        for name in MANIFESTS {
            for object in documents(name)? {
                self.apply(&object).await?;
            }
        }
        let token = self.token_of_server().await?;
        self.kubeconfig_for(address, &token)
    }

    /// The same for a server that may do what Istio's own chart allows istiod. Tells its token.
    pub async fn installed_by_chart(&self, istio: &Path) -> anyhow::Result<String> {
        let rules = ChartRules::read(istio)?;
        for name in ["namespace", "service-account", "cluster-role", "role", "mesh"] {
            for mut object in documents(name)? {
                match object["kind"].as_str() {
                    Some("ClusterRole") => object["rules"].clone_from(&rules.everywhere),
                    Some("Role") => object["rules"].clone_from(&rules.at_home),
                    _ => {}
                }
                self.apply(&object).await?;
            }
        }
        self.token_of_server().await
    }

    /// The token of the server's account, once that is there and the API server knows what it may do.
    pub async fn token_of_server(&self) -> anyhow::Result<String> {
        let list = |namespace: &str, resource: &str| {
            let wish = json!({"verb": "list", "resource": resource, "namespace": namespace});
            let user = "system:serviceaccount:istio-system:istiod";
            json!({
                "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                "spec": {"user": user, "resourceAttributes": wish},
            })
        };
        for (namespace, resource) in [("", "services"), ("istio-system", "secrets")] {
            let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
            let review = list(namespace, resource).to_string();
            loop {
                let answer = self.client.call(Call::post(path, review.clone())).await?;
                let answer: Value = serde_json::from_slice(&answer)?;
                if answer["status"]["allowed"] == true {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        self.token(ACCOUNT, None).await
    }

    /// The webhook of our manifests, which calls an address instead of a service: nothing runs in this cluster.
    pub async fn install_webhook(&self, https: SocketAddr) -> anyhow::Result<()> {
        for mut webhook in documents("validation")? {
            self.apply(&webhook).await?;
            webhook["webhooks"][0]["clientConfig"] = json!({"url": format!("https://{https}/validate")});
            let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
            let name = webhook["metadata"]["name"].as_str().context("a name")?.to_owned();
            self.client.call(Call::delete(&format!("{path}/{name}"))).await?;
            self.apply(&webhook).await?;
        }
        Ok(())
    }

    /// A token of a service account, `namespace/serviceaccounts/name`.
    pub async fn token(&self, account: &str, audience: Option<&str>) -> anyhow::Result<String> {
        let audiences: Vec<&str> = audience.into_iter().collect();
        let ask = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": audiences, "expirationSeconds": 3600},
        });
        let path = format!("/api/v1/namespaces/{account}/token");
        let answer = self.client.call(Call::post(&path, ask.to_string())).await?;
        let answer: Value = serde_json::from_slice(&answer)?;
        Ok(answer["status"]["token"].as_str().context("a token")?.to_owned())
    }
}
