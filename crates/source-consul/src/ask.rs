//! The questions that Consul is asked.

use std::collections::BTreeSet;
use std::time::Duration;

use pilot_source::Registration;
use pilot_source_http::{Answer, Client, ClientError, encoded, parts};
use serde_json::Value;

use crate::message::{Check, Entry, Listed};

/// Consul as it is asked.
#[derive(Clone)]
pub(crate) struct Consul {
    pub(crate) client: Client,
    /// What every question has: `&dc=…&ns=…`.
    pub(crate) scope: String,
    /// What stands behind the names of services; nothing where the registry's own domain is all.
    pub(crate) domains: Vec<String>,
    /// How long a question may wait.
    pub(crate) wait: Duration,
}

/// What is followed by questions that wait until it is different.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Topic {
    /// All services with their tags; its index is that of the last change of any instance.
    Services,
    /// Checks that fail, and those that nearly do. Of those that pass there are too many, and they say nothing new.
    Critical,
    Warning,
    /// All nodes.
    Nodes,
}

impl Topic {
    pub(crate) const ALL: [Self; 4] = [Self::Services, Self::Critical, Self::Warning, Self::Nodes];

    fn path(self) -> &'static str {
        match self {
            Self::Services => "/v1/catalog/services",
            Self::Critical => "/v1/health/state/critical",
            Self::Warning => "/v1/health/state/warning",
            Self::Nodes => "/v1/catalog/nodes",
        }
    }
}

/// What is known of one service.
pub(crate) struct Read {
    pub(crate) registration: Registration,
    /// The index of its last change.
    pub(crate) index: u64,
    /// Those of the last changes of its instances.
    pub(crate) changes: BTreeSet<u64>,
    pub(crate) nodes: BTreeSet<String>,
}

/// No service is called so: an answer without instances still has the index of the service.
const NOTHING: &str = "Service.Service == \"\"";

impl Consul {
    /// The answer about a topic: at once, or as soon as it is another than that of an index.
    pub(crate) async fn about(&self, topic: Topic, at: u64) -> Result<Answer, ClientError> {
        let (path, scope) = (topic.path(), &self.scope);
        if at == 0 {
            return self.client.page(&format!("{path}?{scope}"), Duration::ZERO).await;
        }
        let wait = self.wait;
        let query = format!("{path}?index={at}&wait={}ms{scope}", wait.as_millis());
        // Consul adds up to a sixteenth by chance.
        self.client.page(&query, wait + wait / 16).await
    }

    /// The instances of a service with their checks. One that is gone meanwhile has none.
    pub(crate) async fn service(&self, name: &str) -> Result<Read, ClientError> {
        let path = format!("/v1/health/service/{}?{}", encoded(name), self.scope);
        let answer = self.client.page(&path, Duration::ZERO).await?;
        let list: Vec<Value> = answer.json()?;
        let mut read = Read {
            registration: Registration {
                name: name.to_owned(),
                hosts: self.domains.iter().map(|domain| format!("{name}.{domain}")).collect(),
                ..Registration::default()
            },
            index: index(&answer)?,
            changes: BTreeSet::new(),
            nodes: BTreeSet::new(),
        };
        if list.is_empty() && is_filtered(&answer) {
            let why = "the token may not see its instances";
            return Ok(Read { registration: Registration::unknown(name.to_owned(), why), ..read });
        }
        let hidden = is_filtered(&answer).then(|| "the token may not see all of its instances".to_owned());
        read.registration.wrong.extend(hidden);
        for (i, entry) in parts::<Entry>(Value::Array(list)).into_iter().enumerate() {
            match entry {
                Ok(entry) => {
                    read.nodes.insert(entry.node.node.clone());
                    read.changes.insert(entry.service.modify_index);
                    if entry.is_instance() {
                        read.registration.instances.push(entry.instance());
                    }
                }
                Err(why) => read.registration.unreadable.push((i.to_string(), why)),
            }
        }
        Ok(read)
    }

    /// The index of the last change of a service, without its instances.
    pub(crate) async fn index_of(&self, name: &str) -> Result<u64, ClientError> {
        let path = format!("/v1/health/service/{}?filter={}{}", encoded(name), encoded(NOTHING), self.scope);
        index(&self.client.page(&path, Duration::ZERO).await?)
    }
}

/// Where every question belongs, as a part of its query; what is empty is the agent's own.
pub(crate) fn scope(datacenter: &str, namespace: &str, partition: &str) -> String {
    let fields = [("dc", datacenter), ("ns", namespace), ("partition", partition)];
    let said = fields.into_iter().filter(|(_, value)| !value.is_empty());
    said.map(|(key, value)| format!("&{key}={}", encoded(value))).collect()
}

/// By which index to wait for what comes after this answer; an index of zero is none.
pub(crate) fn index(answer: &Answer) -> Result<u64, ClientError> {
    let index = answer.number("x-consul-index").filter(|index| *index > 0);
    index.ok_or_else(|| answer.wrong("it has no X-Consul-Index"))
}

/// Did Consul leave something out that the token may not see?
pub(crate) fn is_filtered(answer: &Answer) -> bool {
    answer.headers.get("x-consul-results-filtered-by-acls").is_some_and(|value| value == "true")
}

/// How long to wait before asking again, after an answer of so many bytes. In a busy catalog there is always something newer;
/// so what is asked for takes less than four megabytes a second, however long the answers are.
pub(crate) fn pace(bytes: usize) -> Duration {
    Duration::from_millis(50 + bytes as u64 / 4096)
}

/// Checks in the list of all that have one status.
pub(crate) fn checks(answer: &Answer) -> Result<Vec<Check>, ClientError> {
    list(answer)
}

pub(crate) fn nodes(answer: &Answer) -> Result<Vec<Listed>, ClientError> {
    list(answer)
}

/// What cannot be read changes nothing by itself: whoever is asked for is read again in full.
fn list<T: serde::de::DeserializeOwned>(answer: &Answer) -> Result<Vec<T>, ClientError> {
    let list: Vec<Value> = answer.json()?;
    Ok(parts(Value::Array(list)).into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::scope;

    #[test]
    fn every_question_says_where_it_belongs() {
        assert_eq!(scope("", "", ""), "");
        assert_eq!(scope("dc2", "a&b", "p"), "&dc=dc2&ns=a%26b&partition=p");
    }
}
