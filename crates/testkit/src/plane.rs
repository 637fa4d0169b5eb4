//! A server with TLS that believes the tokens of an issuer which a test makes up.

use std::net::SocketAddr;
use std::path::Path;

use pilot_ca::messages::CertificateRequest;
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::Status;

use crate::http_call;
use crate::identity::{Certified, TokenIssuer, connect, create_certificate, signing_request};
use crate::process::free_address;
use crate::server::PilotServer;

const NEVER: i64 = 4_000_000_000;

pub struct Plane {
    pub scratch: TempDir,
    pub server: PilotServer,
    pub secure: SocketAddr,
    pub issuer: TokenIssuer,
}

impl Plane {
    pub async fn start(env: &[(&str, &str)]) -> anyhow::Result<Self> {
        Self::start_in(tempfile::tempdir()?, &[], env).await
    }

    pub async fn start_in(scratch: TempDir, more: &[&str], env: &[(&str, &str)]) -> anyhow::Result<Self> {
        let (secure, issuer) = (free_address()?, TokenIssuer::new()?);
        let server = serve(scratch.path(), secure, (more, env), &issuer).await?;
        Ok(Self { scratch, server, secure, issuer })
    }

    /// Ends the server and starts another at the same place.
    pub async fn restart(&mut self, env: &[(&str, &str)]) -> anyhow::Result<()> {
        self.server = serve(self.scratch.path(), self.secure, (&[], env), &self.issuer).await?;
        Ok(())
    }

    /// Where the server keeps its own authority.
    pub fn root(&self) -> anyhow::Result<String> {
        Ok(std::fs::read_to_string(self.scratch.path().join("var/lib/pilot/ca/ca-cert.pem"))?)
    }

    pub fn token(&self, account: &str) -> anyhow::Result<String> {
        self.issuer.token("one", &claims(account))
    }

    pub async fn ask(&self, csr: &str, ttl: i64, token: Option<&str>) -> Result<Vec<String>, Status> {
        let failed = |error: anyhow::Error| Status::internal(error.to_string());
        let root = self.root().map_err(failed)?;
        let channel = connect(self.secure, &root, None).await.map_err(failed)?;
        create_certificate(channel, request(csr, ttl), token).await
    }

    pub async fn certified(&self, account: &str) -> anyhow::Result<Certified> {
        let (csr, key) = signing_request("spiffe://cluster.local/ns/default/sa/cart")?;
        let texts = self.ask(&csr, 0, Some(&self.token(account)?)).await?;
        Ok(Certified { chain: texts[..texts.len() - 1].concat(), key })
    }

    pub async fn metric(&self, line: &str) -> bool {
        let page = http_call::get(self.server.monitoring, "/metrics").await;
        page.is_ok_and(|(_, text)| text.lines().any(|found| found == line))
    }
}

async fn serve(
    scratch: &Path,
    secure: SocketAddr,
    (more, env): (&[&str], &[(&str, &str)]),
    issuer: &TokenIssuer,
) -> anyhow::Result<PilotServer> {
    let keys = scratch.join("keys.json");
    std::fs::write(&keys, issuer.keys("one"))?;
    let uri = format!("file://{}", keys.display());
    let rule = json!({"issuer": "tests", "jwksUri": uri, "audiences": ["istio-ca"]}).to_string();
    let mut env = env.to_vec();
    env.push(("JWT_RULE", &rule));
    let address = format!("--secureGRPCAddr={secure}");
    let more: Vec<&str> = more.iter().copied().chain([address.as_str()]).collect();
    PilotServer::start_in(scratch, &more, &env).await
}

pub fn claims(account: &str) -> Value {
    let subject = format!("system:serviceaccount:default:{account}");
    json!({"iss": "tests", "aud": ["istio-ca"], "exp": NEVER, "sub": subject})
}

pub fn request(csr: &str, ttl: i64) -> CertificateRequest {
    CertificateRequest { csr: csr.to_owned(), validity_duration: ttl, metadata: None }
}
