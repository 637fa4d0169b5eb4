//! WorkloadEntries of workloads that register by themselves: how they are called, what stands in them, when they go.

use pilot_base::Name;
use pilot_ca::SpiffeId;
use pilot_model::{ConfigId, Locality, Proxy};
use pilot_server::{JoinError, WorkloadHealth};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

pub(crate) const GROUP: &str = "istio.io/autoRegistrationGroup";
pub(crate) const CONTROLLER: &str = "istio.io/workloadController";
pub(crate) const CONNECTED: &str = "istio.io/connectedAt";
pub(crate) const DISCONNECTED: &str = "istio.io/disconnectedAt";
pub(crate) const CHECKED: &str = "proxy.istio.io/health-checks-enabled";
const HEALTHY: &str = "Healthy";
/// A locality is written into the entry itself; as a label it would not be a valid one.
const LOCALITY_LABEL: &str = "istio-locality";
/// Kubernetes allows no longer names.
const LONGEST_NAME: usize = 253;

/// Nanoseconds since 1970.
pub(crate) type Nanos = i128;

/// What of a proxy becomes part of its entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Workload {
    pub(crate) id: ConfigId,
    /// The group that its entry is made from; empty if somebody else made it.
    pub(crate) group: Name,
    proxy: Name,
    address: String,
    network: Name,
    locality: String,
    labels: Vec<(Name, Name)>,
    is_probed: bool,
}

/// Which workloads count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Switches {
    pub(crate) registers: bool,
    pub(crate) checks_health: bool,
}

impl Workload {
    /// Nothing for proxies in pods.
    pub(crate) fn of(proxy: &Proxy, switches: Switches) -> Option<Self> {
        let said = |key: &str| proxy.metadata.get(key).filter(|text| !text.is_empty()).cloned();
        let group = said("AUTO_REGISTER_GROUP").filter(|_| switches.registers);
        let known = said("WORKLOAD_ENTRY").filter(|_| switches.checks_health);
        let address = proxy.ips.first()?.to_string();
        let name = match (&group, known) {
            (Some(group), _) => entry_name(group, &address, &proxy.network),
            (None, known) => known?.to_string(),
        };
        if proxy.namespace.is_empty() {
            return None;
        }
        Some(Self {
            id: ConfigId::new(proxy.namespace.clone(), name),
            group: group.unwrap_or_default(),
            proxy: proxy.name.clone(),
            address,
            network: proxy.network.clone(),
            locality: locality(&proxy.locality),
            labels: proxy.labels.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
            is_probed: proxy.config.as_ref().is_some_and(|config| config.readiness_probe),
        })
    }

    pub(crate) fn registers_itself(&self) -> bool {
        !self.group.is_empty()
    }

    /// A new entry: what the group says, below what the proxy says of itself.
    pub(crate) fn made_of(&self, group: &Value, version: &str) -> Value {
        let fields = |value: &Value| value.as_object().cloned().unwrap_or_default();
        let mut spec = fields(&group["spec"]["template"]);
        let mut labels = fields(&spec.remove("labels").unwrap_or_default());
        labels.extend(fields(&group["spec"]["metadata"]["labels"]));
        labels.extend(self.labels.iter().map(|(key, value)| (key.to_string(), value.as_str().into())));
        labels.remove(LOCALITY_LABEL);
        let mut set = |key: &str, text: &str| {
            if !text.is_empty() {
                spec.insert(key.to_owned(), text.into());
            }
        };
        set("address", &self.address);
        set("network", &self.network);
        set("locality", &self.locality);
        if !labels.is_empty() {
            spec.insert("labels".to_owned(), labels.clone().into());
        }
        let mut annotations = Map::from_iter([(GROUP.to_owned(), self.group.as_str().into())]);
        annotations.extend(fields(&group["spec"]["metadata"]["annotations"]));
        if self.is_probed {
            annotations.insert(CHECKED.to_owned(), "true".into());
        }
        let owner = json!({
            "apiVersion": version, "kind": "WorkloadGroup", "name": self.group.as_str(),
            "uid": group["metadata"]["uid"], "controller": true,
        });
        json!({
            "apiVersion": version,
            "kind": "WorkloadEntry",
            "metadata": {
                "name": self.id.name.as_str(), "namespace": self.id.namespace.as_str(),
                "labels": labels, "annotations": annotations, "ownerReferences": [owner],
            },
            "spec": spec,
        })
    }

    pub(crate) fn no_group(&self) -> JoinError {
        JoinError::Missing(format!(
            "auto-registration WorkloadEntry of {} failed: cannot find WorkloadGroup {}/{}",
            self.proxy, self.id.namespace, self.group
        ))
    }

    pub(crate) fn no_entry(&self) -> JoinError {
        JoinError::Missing(format!(
            "{} says that it is WorkloadEntry {}, which is not there",
            self.proxy, self.id
        ))
    }
}

/// `group-10.0.0.1-network`
fn entry_name(group: &str, address: &str, network: &str) -> String {
    let mut name = format!("{group}-{}", address.replace(':', "-"));
    if !network.is_empty() {
        name = format!("{name}-{network}");
    }
    // The end of it tells workloads apart.
    let start = name.len().saturating_sub(LONGEST_NAME);
    let start = (start..=name.len()).find(|at| name.is_char_boundary(*at)).unwrap_or(start);
    name.split_off(start)
}

fn locality(locality: &Locality) -> String {
    let Locality { region, zone, subzone } = locality;
    let parts = [region, zone, subzone];
    let count = parts.iter().rposition(|part| !part.is_empty()).map_or(0, |last| last + 1);
    parts[..count].iter().map(|part| part.as_str()).collect::<Vec<_>>().join("/")
}

/// May somebody speak for the workload of an entry? Nobody may who did not prove who he is.
pub(crate) fn may_speak(entry: &Value, identities: Option<&[SpiffeId]>) -> Result<(), JoinError> {
    let Some(identities) = identities else {
        return Err(JoinError::Denied(
            "registration of WorkloadEntry requires a verified identity".to_owned(),
        ));
    };
    let namespace = entry["metadata"]["namespace"].as_str().unwrap_or_default();
    let account = entry["spec"]["serviceAccount"].as_str().unwrap_or_default();
    let is_it =
        |id: &SpiffeId| id.namespace == namespace && (account.is_empty() || id.service_account == account);
    if identities.iter().any(is_it) {
        return Ok(());
    }
    let shown: Vec<String> = identities.iter().map(ToString::to_string).collect();
    let whom = if account.is_empty() { namespace.to_owned() } else { format!("{namespace}/{account}") };
    Err(JoinError::Denied(format!("registration of WorkloadEntry: {} is not of {whom}", shown.join(", "))))
}

fn annotation<'a>(entry: &'a Value, name: &str) -> &'a str {
    entry["metadata"]["annotations"][name].as_str().unwrap_or_default()
}

fn time_of(entry: &Value, name: &str) -> Option<Nanos> {
    parse(annotation(entry, name))
}

pub(crate) fn parse(text: &str) -> Option<Nanos> {
    Some(OffsetDateTime::parse(text, &Rfc3339).ok()?.unix_timestamp_nanos())
}

/// `2026-01-01T00:00:00.5Z`
pub(crate) fn timestamp(at: Nanos) -> String {
    let at = OffsetDateTime::from_unix_timestamp_nanos(at).ok();
    at.and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default()
}

fn changed(entry: &Value, annotations: &Value) -> Value {
    let version = &entry["metadata"]["resourceVersion"];
    json!({"metadata": {"resourceVersion": version, "annotations": annotations}})
}

/// When a workload came, as it stands in its entry, and what to write for that; nothing if it stands there already. What is
/// connected here is so whatever others wrote: their clocks may be ahead of ours, so what we write is later than all of it.
pub(crate) fn connected(entry: &Value, controller: &str, at: Nanos) -> (Nanos, Option<Value>) {
    let (came, left) = (time_of(entry, CONNECTED), time_of(entry, DISCONNECTED));
    if let Some(came) = came.filter(|came| *came >= at)
        && annotation(entry, CONTROLLER) == controller
        && annotation(entry, DISCONNECTED).is_empty()
    {
        return (came, None);
    }
    let at = [came, left].into_iter().flatten().fold(at, |at, stands| at.max(stands.saturating_add(1)));
    let annotations = json!({CONTROLLER: controller, CONNECTED: timestamp(at), DISCONNECTED: null});
    (at, Some(changed(entry, &annotations)))
}

/// What to write when a workload that came at one time has left at another; nothing if it is back already, or somebody else's.
pub(crate) fn disconnected(entry: &Value, controller: &str, (came, left): (Nanos, Nanos)) -> Option<Value> {
    let is_back = time_of(entry, CONNECTED).is_some_and(|at| at > came);
    if is_back || annotation(entry, CONTROLLER) != controller {
        return None;
    }
    let left = left.max(came.saturating_add(1));
    Some(changed(entry, &json!({CONNECTED: null, DISCONNECTED: timestamp(left)})))
}

/// What to write when a workload's health was told at a time; nothing if that is known. Of what one server is told the newest
/// is written, and only while the workload is connected to it, so times that others wrote do not matter.
pub(crate) fn health(
    entry: &Value,
    controller: &str,
    (health, at): (&WorkloadHealth, Nanos),
) -> Option<Value> {
    if annotation(entry, CONTROLLER) != controller {
        return None;
    }
    let (status, message) = match health {
        WorkloadHealth::Healthy => ("True", ""),
        WorkloadHealth::Unhealthy(why) => ("False", why.as_str()),
    };
    let conditions = entry["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let known = conditions.iter().find(|condition| condition["type"] == HEALTHY);
    let text = |field: &str| known.map_or("", |condition| condition[field].as_str().unwrap_or_default());
    if text("status") == status && text("message") == message {
        return None;
    }
    let now = timestamp(at);
    let mut condition =
        json!({"type": HEALTHY, "status": status, "lastProbeTime": now, "lastTransitionTime": now});
    if !message.is_empty() {
        condition["message"] = message.into();
    }
    let mut conditions: Vec<Value> =
        conditions.iter().filter(|condition| condition["type"] != HEALTHY).cloned().collect();
    conditions.push(condition);
    Some(with_conditions(entry, &conditions))
}

fn with_conditions(entry: &Value, conditions: &[Value]) -> Value {
    let version = &entry["metadata"]["resourceVersion"];
    json!({"metadata": {"resourceVersion": version}, "status": {"conditions": conditions}})
}

/// What becomes of an entry whose workload did not come back.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Farewell {
    Nothing,
    /// It was made for the workload.
    Delete,
    /// Somebody else made it; nobody knows any more how the workload is.
    Forget(Value),
}

/// Since when an entry has stood as it does, in the words that were written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Mark {
    Came(String),
    Left(String),
}

impl Mark {
    /// By two annotations; nothing if there is neither.
    pub(crate) fn of(connected: &str, disconnected: &str) -> Option<Self> {
        match (connected, disconnected) {
            ("", "") => None,
            ("", left) => Some(Self::Left(left.to_owned())),
            (came, _) => Some(Self::Came(came.to_owned())),
        }
    }
}

/// Nothing if the entry has another mark by now: somebody came, or left.
pub(crate) fn farewell(entry: &Value, mark: &Mark) -> Farewell {
    let now = Mark::of(annotation(entry, CONNECTED), annotation(entry, DISCONNECTED));
    if now.as_ref() != Some(mark) {
        return Farewell::Nothing;
    }
    if !annotation(entry, GROUP).is_empty() {
        return Farewell::Delete;
    }
    let conditions = entry["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let others: Vec<Value> =
        conditions.iter().filter(|condition| condition["type"] != HEALTHY).cloned().collect();
    if annotation(entry, CONTROLLER).is_empty() || others.len() == conditions.len() {
        return Farewell::Nothing;
    }
    Farewell::Forget(with_conditions(entry, &others))
}

#[cfg(test)]
mod tests;
