use data_encoding::BASE64;
use pilot_ca::{Material, MaterialError, UnixSeconds};
use pilot_source_kube::{Call, CallError, Client, Resource};
use serde_json::{Value, json};

use crate::attempts::Patience;

/// The names that istiod uses, so that either finds what the other made.
const CERTIFICATE: &str = "ca-cert.pem";
const KEY: &str = "ca-key.pem";

/// The Secret that an authority of our own is kept in, beside all servers of the cluster.
pub struct CaSecret {
    pub client: Client,
    pub namespace: String,
    /// `USE_CACERTS_FOR_SELF_SIGNED_CA`: the name that authorities of others go by.
    pub in_cacerts: bool,
}

/// Why there is no authority in the cluster.
#[derive(thiserror::Error, Debug)]
pub enum SecretError {
    #[error(
        "Secret {place}: {error}; is the namespace there, and may the server get and create secrets in it?"
    )]
    Call { place: String, error: CallError },
    #[error("Secret {place} has no {field}: remove it so that it is made anew, or put a whole one there")]
    Incomplete { place: String, field: &'static str },
    #[error("{0}")]
    Material(#[from] MaterialError),
}

impl SecretError {
    /// Might it be otherwise after a while, with nobody doing anything about it?
    fn may_pass(&self) -> bool {
        match self {
            Self::Call { error, .. } => matches!(error.status(), None | Some(429 | 500..)),
            Self::Incomplete { .. } | Self::Material(_) => false,
        }
    }
}

impl CaSecret {
    /// How people call it.
    pub fn place(&self) -> String {
        format!("{}/{}", self.namespace, self.name())
    }

    fn name(&self) -> &'static str {
        if self.in_cacerts { "cacerts" } else { "istio-ca-secret" }
    }

    /// What is kept there; it is made if it is not there yet. Servers that start together end up with the same. One that is
    /// there before its API server waits for it, as it does with everything else that comes from there.
    pub async fn keep(
        &self,
        organisation: &str,
        lifetime: UnixSeconds,
        now: UnixSeconds,
    ) -> Result<Material, SecretError> {
        let mut patience = Patience::new("the authority of the mesh is not known, so nobody is served");
        loop {
            match self.try_once(organisation, lifetime, now).await {
                Err(error) if error.may_pass() => patience.wait(error).await,
                kept => return kept,
            }
        }
    }

    async fn try_once(
        &self,
        organisation: &str,
        lifetime: UnixSeconds,
        now: UnixSeconds,
    ) -> Result<Material, SecretError> {
        if let Some(kept) = self.read().await? {
            return Ok(kept);
        }
        let made = Material::self_signed(organisation, lifetime, now)?;
        match self.write(&made).await {
            Ok(()) => Ok(made),
            // Another server was faster.
            Err(error) if error.status() == Some(409) => match self.read().await? {
                Some(kept) => Ok(kept),
                None => Err(self.failed(error)),
            },
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&self, error: CallError) -> SecretError {
        SecretError::Call { place: self.place(), error }
    }

    fn resource(&self) -> Resource {
        let mut resource = Resource::new("", "v1", "secrets");
        resource.namespace = Some(self.namespace.as_str().into());
        resource
    }

    async fn read(&self) -> Result<Option<Material>, SecretError> {
        let path = self.resource().object(self.name());
        let body = match self.client.call(Call::get(&path)).await {
            Ok(body) => body,
            Err(error) if error.status() == Some(404) => return Ok(None),
            Err(error) => return Err(self.failed(error)),
        };
        let secret: Value = serde_json::from_slice(&body)
            .map_err(|error| self.failed(CallError::Broken(error.to_string())))?;
        let text = |field: &'static str| {
            let text = secret["data"][field].as_str().unwrap_or_default();
            let bytes = BASE64.decode(text.as_bytes()).unwrap_or_default();
            let text = String::from_utf8(bytes).unwrap_or_default();
            if text.is_empty() {
                return Err(SecretError::Incomplete { place: self.place(), field });
            }
            Ok(text)
        };
        let (certificate, key) = (text(CERTIFICATE)?, text(KEY)?);
        Ok(Some(Material { root: certificate.clone(), certificate, key, chain: String::new() }))
    }

    async fn write(&self, material: &Material) -> Result<(), CallError> {
        let text = |text: &str| BASE64.encode(text.as_bytes());
        let mut data = json!({CERTIFICATE: text(&material.certificate), KEY: text(&material.key)});
        if self.in_cacerts {
            // Who finds it may know that it was not put there by a person.
            data["istio-generated"] = json!("");
        }
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "istio.io/ca-root",
            "metadata": {"name": self.name(), "namespace": self.namespace},
            "data": data,
        });
        let path = self.resource().path();
        self.client.call(Call::post(&path, secret.to_string())).await.map(|_| ())
    }
}
