//! What the server's account asked of an API server, as that has written it down.

use std::path::Path;

use serde_json::Value;

use super::KubeServer;

/// Whose requests are written down.
const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, users: ['system:serviceaccount:istio-system:istiod']}
- {level: None}
";

pub(super) fn flags(folder: &Path) -> anyhow::Result<[String; 2]> {
    let policy = folder.join("audit.yaml");
    std::fs::write(&policy, POLICY)?;
    let log = folder.join("audit.log");
    Ok([format!("--audit-policy-file={}", policy.display()), format!("--audit-log-path={}", log.display())])
}

/// One request for something that roles speak of.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Request {
    pub verb: String,
    pub group: String,
    /// `configmaps`, or `ingresses/status`.
    pub resource: String,
    pub name: String,
    pub is_allowed: bool,
}

impl Request {
    fn read(event: &Value) -> Option<Self> {
        let object = &event["objectRef"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (resource, part) = (object["resource"].as_str()?, text(&object["subresource"]));
        let resource = if part.is_empty() { resource.to_owned() } else { format!("{resource}/{part}") };
        Some(Self {
            verb: text(&event["verb"]),
            group: text(&object["apiGroup"]),
            resource,
            name: text(&object["name"]),
            is_allowed: event["annotations"]["authorization.k8s.io/decision"] != "forbid",
        })
    }
}

impl KubeServer {
    /// All that the server's account has asked for.
    pub fn asked_by_server(&self) -> Vec<Request> {
        let text = std::fs::read_to_string(self.folder.join("audit.log")).unwrap_or_default();
        let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut all: Vec<Request> = events.filter_map(|event| Request::read(&event)).collect();
        all.sort();
        all.dedup();
        all
    }

    /// What of that its roles forbid.
    pub fn forbidden_to_server(&self) -> Vec<Request> {
        self.asked_by_server().into_iter().filter(|request| !request.is_allowed).collect()
    }
}
