//! The form of a scenario. `tests/behaviour/README.md` tells people the same.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use pilot_base::parse_span;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub about: String,
    /// The proxy that is called: a workload's sidecar, or a gateway.
    #[serde(default, alias = "proxy")]
    pub client: Client,
    #[serde(default)]
    pub mesh: serde_json::Map<String, Value>,
    /// Switches in the server's environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub backends: BTreeMap<String, Backend>,
    pub world: String,
    pub steps: Vec<Step>,
    #[serde(default)]
    pub issues: Vec<String>,
    /// Only a real Envoy can tell, because what its filters do is not simulated.
    #[serde(default)]
    pub real: bool,
    /// Why it is not for a real istiod, which does something else.
    pub istiod: Option<String>,
    /// Why it cannot be told to an API server.
    pub kube: Option<String>,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Client {
    #[serde(rename = "type")]
    pub kind: ClientKind,
    pub namespace: String,
    pub labels: BTreeMap<String, String>,
    pub locality: String,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Default, Debug)]
#[serde(rename_all = "lowercase")]
pub enum ClientKind {
    #[default]
    Sidecar,
    Router,
}

impl Default for Client {
    fn default() -> Self {
        Self {
            kind: ClientKind::default(),
            namespace: "default".to_owned(),
            labels: BTreeMap::new(),
            locality: String::new(),
        }
    }
}

#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct Backend {
    pub at: SocketAddr,
    #[serde(default, deserialize_with = "span")]
    pub delay: Duration,
    pub fail: Option<Failing>,
    #[serde(default)]
    pub tcp: bool,
    /// Speaks TLS, with the certificate for servers.
    #[serde(default)]
    pub tls: bool,
    /// Texts that it answers with, by path.
    #[serde(default)]
    pub serves: BTreeMap<String, String>,
}

#[derive(Deserialize, Clone, Copy, Debug)]
#[serde(deny_unknown_fields)]
pub struct Failing {
    pub status: u16,
    /// Always, if it is left out.
    pub times: Option<u32>,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct Step {
    #[serde(default)]
    pub about: String,
    #[serde(default)]
    pub apply: String,
    #[serde(default)]
    pub remove: Vec<String>,
    /// The server ends and another one starts in its place.
    #[serde(default)]
    pub restart: bool,
    #[serde(default)]
    pub calls: Vec<Call>,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct Call {
    get: Option<String>,
    post: Option<String>,
    put: Option<String>,
    delete: Option<String>,
    options: Option<String>,
    head: Option<String>,
    tcp: Option<SocketAddr>,
    to: Option<std::net::IpAddr>,
    /// The server name that a TLS client asks for, if it is not the host of an https URL.
    sni: Option<String>,
    /// Does a TLS client show the certificate for clients?
    #[serde(default)]
    pub certificate: bool,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    #[serde(default = "once")]
    pub times: u32,
    #[serde(default)]
    pub expect: Expect,
}

/// What a call asks for.
#[derive(Clone, Debug)]
pub struct Target {
    pub to: SocketAddr,
    /// The server name, if TLS is spoken.
    pub tls: Option<String>,
    /// Nothing for a connection on which the server speaks first.
    pub http: Option<HttpTarget>,
}

#[derive(Clone, Debug)]
pub struct HttpTarget {
    pub method: &'static str,
    pub authority: String,
    pub path: String,
}

#[derive(Deserialize, Clone, Default, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    pub status: Option<Shares>,
    pub from: Option<Shares>,
    pub same: bool,
    pub path: Option<String>,
    pub host: Option<String>,
    pub method: Option<String>,
    /// The server name that the backend was asked for.
    pub sni: Option<String>,
    pub request: BTreeMap<String, Option<String>>,
    pub response: BTreeMap<String, Option<String>>,
    pub body: Option<String>,
    #[serde(deserialize_with = "span")]
    pub after: Duration,
    pub reached: BTreeMap<String, u32>,
}

/// One value for all answers, or values with their shares in percent.
#[derive(Clone, PartialEq, Debug)]
pub struct Shares(pub BTreeMap<String, f64>);

fn once() -> u32 {
    1
}

fn span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_span(&text).map_err(serde::de::Error::custom)
}

impl<'de> Deserialize<'de> for Shares {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let error = |text: String| serde::de::Error::custom(text);
        let plain = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        match Value::deserialize(deserializer)? {
            Value::Object(shares) => {
                let mut all = BTreeMap::new();
                for (name, share) in shares {
                    let text = plain(&share).unwrap_or_default();
                    let percent = text.strip_suffix('%').and_then(|text| text.trim().parse::<f64>().ok());
                    all.insert(
                        name.clone(),
                        percent.ok_or_else(|| error(format!("{name}: {text:?} is not a share like 25%")))?,
                    );
                }
                Ok(Self(all))
            }
            value => {
                let one =
                    plain(&value).ok_or_else(|| error(format!("{value} is neither a value nor shares")))?;
                Ok(Self(BTreeMap::from([(one, 100.0)])))
            }
        }
    }
}

impl Call {
    pub fn target(&self) -> anyhow::Result<Target> {
        if let Some(to) = self.tcp {
            return Ok(Target { to, tls: self.sni.clone(), http: None });
        }
        let methods = [
            ("GET", &self.get),
            ("POST", &self.post),
            ("PUT", &self.put),
            ("DELETE", &self.delete),
            ("OPTIONS", &self.options),
            ("HEAD", &self.head),
        ];
        let mut said = methods.into_iter().filter_map(|(method, url)| Some((method, url.as_ref()?)));
        let (Some((method, url)), None) = (said.next(), said.next()) else {
            bail!("a call has one method with a URL, or tcp with an address");
        };
        let (scheme, rest) = url.split_once("://").with_context(|| format!("{url} has no scheme"))?;
        let slash = rest.find('/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at(slash);
        let (host, port) = authority.rsplit_once(':').with_context(|| format!("{url} has no port"))?;
        let ip = self.to.unwrap_or_else(|| [127, 0, 0, 1].into());
        let tls = match scheme {
            "http" => None,
            "https" => Some(self.sni.clone().unwrap_or_else(|| host.to_owned())),
            other => bail!("{url}: {other} cannot be called"),
        };
        let path = if path.is_empty() { "/".to_owned() } else { path.to_owned() };
        Ok(Target {
            to: SocketAddr::new(ip, port.parse().with_context(|| format!("{url}: the port"))?),
            tls,
            http: Some(HttpTarget { method, authority: authority.to_owned(), path }),
        })
    }
}

/// Every scenario below a folder, with its path in it, in order.
pub fn load_all(root: &Path) -> anyhow::Result<Vec<(String, Scenario)>> {
    load_changed(root, str::to_owned)
}

/// The same after a change of their texts.
pub fn load_changed(root: &Path, change: impl Fn(&str) -> String) -> anyhow::Result<Vec<(String, Scenario)>> {
    let mut files = Vec::new();
    collect(root, &mut files)?;
    files.sort();
    let load = |path: PathBuf| {
        let name = path.strip_prefix(root)?.with_extension("").display().to_string();
        Ok((name, load(&path, &change)?))
    };
    files.into_iter().map(load).collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "yaml") {
            files.push(path);
        }
    }
    Ok(())
}

fn load(path: &Path, change: &impl Fn(&str) -> String) -> anyhow::Result<Scenario> {
    let file = path.display().to_string();
    let text = change(&std::fs::read_to_string(path).with_context(|| file.clone())?);
    let value = pilot_config::read_value(&text, &file).map_err(|issue| anyhow::anyhow!("{issue}"))?;
    let scenario: Scenario = serde_json::from_value(value).with_context(|| file.clone())?;
    for call in scenario.steps.iter().flat_map(|step| &step.calls) {
        call.target().with_context(|| file.clone())?;
    }
    Ok(scenario)
}
