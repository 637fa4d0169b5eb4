//! Where an API server is, and as whom it is called: a kubeconfig, or what every pod is given.

use std::path::{Path, PathBuf};

use data_encoding::BASE64;
use serde_json::Value;
use thiserror::Error;

/// Where a pod finds who it is.
const IN_CLUSTER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// An API server, and who calls it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// `https://host:port`, perhaps with a path.
    pub server: String,
    /// The name in the server's certificate, if it is not the host.
    pub server_name: Option<String>,
    pub trust: Trust,
    pub identity: Option<ClientCertificate>,
    pub credential: Credential,
}

/// Whom we believe to be the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trust {
    /// Whom these roots vouch for, in PEM.
    Roots(Vec<u8>),
    /// Whom this machine trusts.
    System,
    /// Anybody, as a kubeconfig may ask for.
    Anybody,
}

/// PEM of a certificate and its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientCertificate {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

/// What is sent with each request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Credential {
    None,
    Token(String),
    /// Read again as it is rotated.
    TokenFile(PathBuf),
    Basic(String, String),
}

/// Why there is no access.
#[derive(Debug, Error)]
pub enum AccessError {
    #[error("{0}: {1}")]
    File(PathBuf, std::io::Error),
    #[error("{place}: {what}")]
    Wrong { place: String, what: String },
    #[error(
        "no Kubernetes: this is no pod, and neither --kubeconfig nor KUBECONFIG names a file; say where it is, or choose other --registries"
    )]
    Nowhere,
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// How a pod is told where its cluster is.
#[derive(Clone, Default, Debug)]
pub struct Surroundings {
    /// `KUBERNETES_SERVICE_HOST`
    pub host: Option<String>,
    /// `KUBERNETES_SERVICE_PORT`
    pub port: Option<String>,
    /// `KUBECONFIG`, which may be a list of files.
    pub kubeconfig: Option<String>,
}

/// What a kubeconfig from a stranger may ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source<'a> {
    /// A file of whoever started us: it may name other files.
    File(&'a Path),
    /// A secret of another cluster: it may name nothing on this machine.
    Secret(&'a str),
}

impl Access {
    /// The file that a flag names, else the one of the environment, else what a pod is given.
    pub fn find(flag: &str, around: &Surroundings) -> Result<Self, AccessError> {
        let is_there = |path: &Path| std::fs::metadata(path).is_ok_and(|found| found.len() > 0);
        if !flag.is_empty() {
            let path = Path::new(flag);
            let text = std::fs::read_to_string(path).map_err(|e| AccessError::File(path.to_owned(), e))?;
            return Self::of_kubeconfig(&text, Source::File(path));
        }
        let listed = around.kubeconfig.as_deref().unwrap_or_default();
        let known = listed.split(':').filter(|path| !path.is_empty()).map(Path::new).find(|p| is_there(p));
        if let Some(path) = known {
            let text = std::fs::read_to_string(path).map_err(|e| AccessError::File(path.to_owned(), e))?;
            return Self::of_kubeconfig(&text, Source::File(path));
        }
        Self::in_cluster(around)
    }

    fn in_cluster(around: &Surroundings) -> Result<Self, AccessError> {
        let (Some(host), Some(port)) = (&around.host, &around.port) else { return Err(AccessError::Nowhere) };
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let roots = Path::new(IN_CLUSTER).join("ca.crt");
        let roots = std::fs::read(&roots).map_err(|error| AccessError::File(roots, error))?;
        Ok(Self {
            server: format!("https://{host}:{port}"),
            server_name: None,
            trust: Trust::Roots(roots),
            identity: None,
            credential: Credential::TokenFile(Path::new(IN_CLUSTER).join("token")),
        })
    }

    /// Reads the current context of a kubeconfig.
    pub fn of_kubeconfig(text: &str, source: Source<'_>) -> Result<Self, AccessError> {
        let reader = Reader { source };
        let place = reader.place();
        let value = pilot_config::read_value(text, &place)
            .map_err(|issue| AccessError::Wrong { place: place.clone(), what: issue.to_string() })?;
        let current = value["current-context"].as_str().unwrap_or_default();
        let context = reader.named(&value, "contexts", "context", current)?;
        let name = |field: &str| context[field].as_str().unwrap_or_default();
        let cluster = reader.named(&value, "clusters", "cluster", name("cluster"))?;
        let nobody = Value::Null;
        let user = match name("user") {
            "" => &nobody,
            user => reader.named(&value, "users", "user", user)?,
        };
        let server = cluster["server"].as_str().unwrap_or_default().trim_end_matches('/').to_owned();
        if !server.starts_with("https://") && !server.starts_with("http://") {
            return Err(reader
                .wrong(format!("clusters: server {server:?} is not an address such as https://host:port")));
        }
        if cluster["proxy-url"].as_str().is_some_and(|url| !url.is_empty()) {
            return Err(reader.wrong("clusters: proxy-url is not supported"));
        }
        let trust = match reader.bytes(cluster, "certificate-authority")? {
            _ if cluster["insecure-skip-tls-verify"].as_bool() == Some(true) => Trust::Anybody,
            Some(roots) => Trust::Roots(roots),
            None => Trust::System,
        };
        let server_name = cluster["tls-server-name"].as_str().filter(|name| !name.is_empty());
        Ok(Self {
            server,
            server_name: server_name.map(str::to_owned),
            trust,
            identity: reader.identity(user)?,
            credential: reader.credential(user)?,
        })
    }
}

struct Reader<'a> {
    source: Source<'a>,
}

impl Reader<'_> {
    fn place(&self) -> String {
        match self.source {
            Source::File(path) => path.display().to_string(),
            Source::Secret(name) => name.to_owned(),
        }
    }

    fn wrong(&self, what: impl Into<String>) -> AccessError {
        AccessError::Wrong { place: self.place(), what: what.into() }
    }

    /// One of the named things in a list.
    fn named<'v>(
        &self,
        value: &'v Value,
        list: &str,
        inner: &str,
        name: &str,
    ) -> Result<&'v Value, AccessError> {
        let mut all = value[list].as_array().into_iter().flatten();
        let found = all.find(|item| item["name"].as_str() == Some(name)).map(|item| &item[inner]);
        found.ok_or_else(|| self.wrong(format!("{list} has no {name:?}")))
    }

    /// A field that holds either the bytes themselves or the name of a file.
    fn bytes(&self, value: &Value, field: &str) -> Result<Option<Vec<u8>>, AccessError> {
        if let Some(data) = value[format!("{field}-data")].as_str().filter(|data| !data.is_empty()) {
            let bytes = BASE64.decode(data.as_bytes());
            return bytes.map(Some).map_err(|_| self.wrong(format!("{field}-data is not base 64")));
        }
        let Some(path) = value[field].as_str().filter(|path| !path.is_empty()) else { return Ok(None) };
        let path = self.file(path, field)?;
        std::fs::read(&path).map(Some).map_err(|error| AccessError::File(path, error))
    }

    /// A file that is named, beside the kubeconfig if it is not named from the root.
    fn file(&self, path: &str, field: &str) -> Result<PathBuf, AccessError> {
        match self.source {
            Source::File(of) => Ok(of.parent().unwrap_or(Path::new(".")).join(path)),
            Source::Secret(_) => {
                Err(self.wrong(format!("{field} names a file, which a secret may not; use {field}-data")))
            }
        }
    }

    fn identity(&self, user: &Value) -> Result<Option<ClientCertificate>, AccessError> {
        match (self.bytes(user, "client-certificate")?, self.bytes(user, "client-key")?) {
            (Some(certificate), Some(key)) => Ok(Some(ClientCertificate { certificate, key })),
            (None, None) => Ok(None),
            _ => Err(self.wrong("users: client-certificate and client-key belong together")),
        }
    }

    fn credential(&self, user: &Value) -> Result<Credential, AccessError> {
        for plugin in ["exec", "auth-provider"] {
            if !user[plugin].is_null() {
                return Err(
                    self.wrong(format!("users: {plugin} is not supported; use a token or a certificate"))
                );
            }
        }
        let text = |field: &str| user[field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        Ok(match (text("tokenFile"), text("token"), text("username")) {
            (Some(path), ..) => Credential::TokenFile(self.file(&path, "tokenFile")?),
            (_, Some(token), _) => Credential::Token(token),
            (.., Some(name)) => Credential::Basic(name, text("password").unwrap_or_default()),
            _ => Credential::None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Access, Credential, Source, Surroundings, Trust};

    const CONFIG: &str = r#"
apiVersion: v1
kind: Config
current-context: east
clusters:
- {name: other, cluster: {server: "https://other:6443"}}
- {name: c, cluster: {server: "https://10.0.0.1:6443/", certificate-authority-data: "YWJj"}}
users: [{name: u, user: {token: secret}}]
contexts: [{name: east, context: {cluster: c, user: u}}]
"#;

    #[test]
    fn the_current_context_counts() {
        let access = Access::of_kubeconfig(CONFIG, Source::Secret("s")).unwrap();
        assert_eq!(access.server, "https://10.0.0.1:6443");
        assert_eq!(access.trust, Trust::Roots(b"abc".to_vec()));
        assert_eq!(access.credential, Credential::Token("secret".to_owned()));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let why = |text: &str| {
            Access::of_kubeconfig(text, Source::Secret("istio-remote-secret-east")).unwrap_err().to_string()
        };
        assert!(why(&CONFIG.replace("cluster: c,", "cluster: d,")).contains("clusters has no \"d\""));
        assert!(why(&CONFIG.replace("https://10", "10")).contains("is not an address"));
        assert!(why(&CONFIG.replace("YWJj", "%")).contains("certificate-authority-data is not base 64"));
        assert!(why("a: [").starts_with("istio-remote-secret-east: "));
        assert!(why(&CONFIG.replace("token: secret", "tokenFile: /etc/passwd")).contains("names a file"));
        assert!(
            why(&CONFIG.replace("token: secret", "exec: {command: sh}")).contains("exec is not supported")
        );
    }

    #[test]
    fn files_are_found_beside_the_kubeconfig() {
        let text = CONFIG.replace("token: secret", "tokenFile: token");
        let access = Access::of_kubeconfig(&text, Source::File(Path::new("/etc/kube/config"))).unwrap();
        assert_eq!(access.credential, Credential::TokenFile("/etc/kube/token".into()));
    }

    #[test]
    fn nowhere_is_an_error_that_tells_what_to_do() {
        let why = Access::find("", &Surroundings::default()).unwrap_err().to_string();
        assert!(why.contains("--kubeconfig"), "{why}");
        assert!(Access::find("/does/not/exist", &Surroundings::default()).is_err());
    }
}
