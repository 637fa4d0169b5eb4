//! Two workloads, `web` and `cart`, each with a sidecar of its own, and the rules that let the one call the other.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use crate::backend::Backends;
use crate::expect::Seen;
use crate::http_call;
use crate::process::free_address;
use crate::scenario::{Backend, Call};

/// How sidecars speak to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wire {
    /// `cart` lets in only who shows a certificate.
    Mutual,
    Plain,
}

pub struct Shop {
    /// Where `web` calls `cart`.
    pub call: SocketAddr,
    /// Where the sidecar of `cart` listens.
    pub door: SocketAddr,
    config: PathBuf,
    wire: Wire,
    _cart: Backends,
}

impl Shop {
    /// Rules go to the folder that a server follows. `delay` is how long `cart` takes.
    pub async fn open(config: &Path, wire: Wire, delay: Duration) -> anyhow::Result<Self> {
        let (call, door, at) = (free_address()?, free_address()?, free_address()?);
        let backend = Backend { at, delay, fail: None, tcp: false, tls: false, serves: BTreeMap::new() };
        let cart = Backends::start(&[("cart".to_owned(), backend)].into(), None).await?;
        let shop = Self { call, door, config: config.to_owned(), wire, _cart: cart };
        let mode = match wire {
            Wire::Mutual => "STRICT",
            Wire::Plain => "DISABLE",
        };
        shop.write(
            "cart",
            &format!(
                "apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: cart, namespace: default}}
spec:
  workloadSelector: {{labels: {{app: cart}}}}
  ingress:
  - {{port: {{number: {}, name: http, protocol: HTTP}}, bind: 127.0.0.1, defaultEndpoint: '{at}'}}
  egress: [{{hosts: ['~/*']}}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {{name: peers, namespace: default}}
spec: {{mtls: {{mode: {mode}}}}}
",
                door.port()
            ),
        )?;
        shop.trust("cart")?;
        Ok(shop)
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let draft = self.config.join(format!(".{name}.draft"));
        std::fs::write(&draft, text)?;
        Ok(std::fs::rename(draft, self.config.join(format!("{name}.yaml")))?)
    }

    /// `web` takes `cart` only for this account.
    pub fn trust(&self, account: &str) -> anyhow::Result<()> {
        self.link(account, "/")
    }

    /// `web` finds `cart` only below this path.
    pub fn move_to(&self, prefix: &str) -> anyhow::Result<()> {
        self.link("cart", prefix)
    }

    fn link(&self, account: &str, prefix: &str) -> anyhow::Result<()> {
        let mode = match self.wire {
            Wire::Mutual => "ISTIO_MUTUAL",
            Wire::Plain => "DISABLE",
        };
        let (call, door) = (self.call.port(), self.door.port());
        self.write(
            "web",
            &format!(
                "apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: cart, namespace: default}}
spec:
  hosts: [cart.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{number: {call}, name: http, protocol: HTTP}}]
  endpoints: [{{address: 127.0.0.1, ports: {{http: {door}}}, serviceAccount: {account}}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: cart, namespace: default}}
spec:
  host: cart.example
  trafficPolicy: {{tls: {{mode: {mode}}}}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: cart, namespace: default}}
spec:
  hosts: [cart.example]
  http:
  - match: [{{uri: {{prefix: {prefix}}}}}]
    route: [{{destination: {{host: cart.example}}}}]
"
            ),
        )
    }

    /// What `cart` was asked, if it was.
    pub async fn ask(&self, path: &str) -> Option<Seen> {
        let url = format!("http://cart.example:{}{path}", self.call.port());
        let call: Call = serde_json::from_value(json!({ "get": url })).ok()?;
        let seen = http_call::make(&call, None).await.ok()?;
        (seen.from.as_deref() == Some("cart") && seen.status == 200).then_some(seen)
    }
}

/// Looks again and again, for a minute.
pub async fn until<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) -> anyhow::Result<()> {
    for _ in 0..600 {
        if holds().await {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    anyhow::bail!("{what}: not within a minute")
}
