use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::{Issue, Labels, Name, ObjectRef};
use pilot_model::{AuthzAction, Config, ConfigId, Created, Kind, Object};
use serde::Deserialize;

use crate::check::Check;
use crate::yaml::{self, YamlError};
use crate::{ReadOptions, de, kinds, kube};

/// What a text said.
#[derive(Default, Debug)]
pub struct Reading {
    /// In the order of the text. Several objects may have the same kind and name; the last one counts.
    pub objects: Vec<(Kind, ConfigId, Object)>,
    /// Objects of which only kind and name could be read: whoever has an older version of them should keep it.
    pub broken: Vec<(Kind, ConfigId)>,
    pub issues: Vec<Issue>,
}

pub(crate) struct Meta {
    pub(crate) id: ConfigId,
    pub(crate) created: Created,
    pub(crate) labels: Labels,
    pub(crate) annotations: Labels,
    pub(crate) owner: Option<Owner>,
    /// Was it told to end?
    pub(crate) is_going: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawMeta {
    name: String,
    namespace: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    creation_timestamp: String,
    deletion_timestamp: String,
    generate_name: String,
    owner_references: Vec<Owner>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Owner {
    controller: bool,
    pub(crate) kind: String,
    pub(crate) name: String,
}

/// Reads every object of a text. Fails only if the text as a whole cannot be read.
pub fn read(text: &str, file: &str, options: &ReadOptions) -> Result<Reading, Issue> {
    let object = ObjectRef::new("File", Name::empty(), file);
    let (documents, twice) = yaml::parse_lenient(text).map_err(|error| yaml_issue(&object, file, &error))?;
    let mut reading = Reading::default();
    for key in twice {
        let message = format!("{}: the last one counts; is a --- missing before it?", key.message);
        reading.issues.push(Issue::warning(object.clone(), "", message).at(format!("{file}:{}", key.line)));
    }
    for document in &documents {
        read_object(document, file, options, &mut reading);
    }
    Ok(reading)
}

pub(crate) fn yaml_issue(object: &ObjectRef, file: &str, error: &YamlError) -> Issue {
    Issue::error(object.clone(), "", format!("not YAML: {}", error.message))
        .at(format!("{file}:{}", error.line))
}

fn read_object(node: &yaml::Node<'_>, file: &str, options: &ReadOptions, reading: &mut Reading) {
    let text = |key: &str| node.get(key).and_then(yaml::Node::as_str).unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    if kind == "List"
        && let Some(yaml::Value::List(items)) = node.get("items").map(|items| &items.value)
    {
        items.iter().for_each(|item| read_object(item, file, options, reading));
        return;
    }
    let place = format!("{file}:{}", node.line);
    let name =
        node.get("metadata").and_then(|m| m.get("name")).and_then(yaml::Node::as_str).unwrap_or_default();
    let unnamed = ObjectRef::new(if kind.is_empty() { "Object" } else { kind }, Name::empty(), name);
    if version.is_empty() || kind.is_empty() {
        reading
            .issues
            .push(Issue::error(unnamed, "", "apiVersion and kind are needed to know what this is").at(place));
        return;
    }
    let kind = match find_kind(version, kind) {
        Found::Kind(_) if !options.platform && !version.contains("istio.io/") => return,
        Found::Kind(kind) => kind,
        Found::NotOurs => return,
        Found::Unknown(why) => {
            reading.issues.push(Issue::warning(unnamed, "kind", why).at(place));
            return;
        }
    };
    read_known(kind, node, file, options, reading);
}

/// Reads an object whose kind is known.
pub(crate) fn read_known(
    kind: Kind,
    node: &yaml::Node<'_>,
    file: &str,
    options: &ReadOptions,
    reading: &mut Reading,
) {
    let raw = match node.get("metadata").map(|meta| de::read::<RawMeta>(meta, "metadata")) {
        Some(Ok(raw)) => raw.value,
        Some(Err(error)) => {
            let name = node.get("metadata").and_then(|m| m.get("name")).and_then(yaml::Node::as_str);
            let unnamed = ObjectRef::new(kind.name(), Name::empty(), name.unwrap_or_default());
            let place = yaml::place(file, error.line);
            reading.issues.push(Issue::error(unnamed, error.path, error.message).at(place));
            return;
        }
        None => RawMeta::default(),
    };
    let meta = meta(raw, kind);
    let object = meta.id.object(kind);
    if meta.id.name.is_empty() {
        let place = yaml::place(file, node.line);
        reading.issues.push(Issue::error(object, "metadata.name", "is missing").at(place));
        return;
    }
    let mut check = Check::new(object, node, file);
    if meta.annotations.get(ALWAYS_REJECT).is_some() {
        check.reject("metadata.annotations", format!("has {ALWAYS_REJECT}, which asks for just that"));
    }
    let objects = decode(kind, &meta, node, options, &mut check);
    check_dry_run(&meta, &objects, &mut check);
    if check.is_rejected() {
        reading.broken.push((kind, meta.id));
    } else {
        reading.objects.extend(objects.into_iter().map(|object| (kind, meta.id.clone(), object)));
    }
    reading.issues.extend(check.into_issues());
}

/// By an object with this annotation installers find out whether somebody checks at all.
const ALWAYS_REJECT: &str = "internal.istio.io/webhook-always-reject";

/// Only policies that allow or deny can be tried out. What belongs to Kubernetes is none of our business.
fn check_dry_run(meta: &Meta, objects: &[Object], check: &mut Check<'_>) {
    const DRY_RUN: &str = "istio.io/dry-run";
    let Some(value) = meta.annotations.get(DRY_RUN) else { return };
    let path = "metadata.annotations";
    match objects.first() {
        Some(Object::AuthorizationPolicy(policy)) => match policy.spec.action {
            AuthzAction::Allow | AuthzAction::Deny if pilot_base::parse_bool(value).is_err() => {
                check.reject(path, format!("{DRY_RUN} is {value:?}: it must be true or false"));
            }
            AuthzAction::Allow | AuthzAction::Deny => (),
            AuthzAction::Audit | AuthzAction::Custom(_) => {
                check.reject(path, format!("{DRY_RUN} is only for the actions ALLOW and DENY"));
            }
        },
        None
        | Some(
            Object::Service(..)
            | Object::EndpointSlice(..)
            | Object::Pod(..)
            | Object::Node(..)
            | Object::Namespace(..)
            | Object::Secret(..),
        ) => (),
        Some(_) => check.reject(path, format!("{DRY_RUN} is only for an AuthorizationPolicy")),
    }
}

fn meta(raw: RawMeta, kind: Kind) -> Meta {
    let cluster_wide = matches!(kind, Kind::Node | Kind::Namespace);
    let namespace = match raw.namespace.as_str() {
        _ if cluster_wide => Name::empty(),
        "" => Name::new("default"),
        namespace => Name::new(namespace),
    };
    Meta {
        id: ConfigId::new(namespace, raw.name),
        created: Created(parse_timestamp(&raw.creation_timestamp).unwrap_or(0)),
        labels: Labels::new(raw.labels),
        annotations: Labels::new(raw.annotations),
        is_going: !raw.deletion_timestamp.is_empty(),
        // Only who made up the name of an object is asked who made it.
        owner: raw.owner_references.into_iter().find(|o| o.controller && !raw.generate_name.is_empty()),
    }
}

enum Found {
    Kind(Kind),
    /// Something that belongs to other programs.
    NotOurs,
    Unknown(String),
}

fn find_kind(version: &str, kind: &str) -> Found {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    match served(group, kind) {
        Some((kind, versions)) if versions.contains(&version) => Found::Kind(kind),
        Some((kind, versions)) => {
            Found::Unknown(format!("{kind} has no version {version}; it has {}", versions.join(", ")))
        }
        None if group.ends_with("istio.io") => Found::Unknown(format!("{group} has no kind {kind}")),
        None if group.is_empty() && !CORE_KINDS.contains(&kind) => {
            Found::Unknown(format!("{kind} is not a kind of Kubernetes' core group"))
        }
        None => Found::NotOurs,
    }
}

/// A kind of Istio's, in whatever version: all of them have the same fields.
pub fn rule_kind(group: &str, kind: &str) -> Option<Kind> {
    served(group, kind).filter(|_| group.ends_with("istio.io")).map(|(kind, _)| kind)
}

/// Kinds that we read, and in which versions.
fn served(group: &str, kind: &str) -> Option<(Kind, &'static [&'static str])> {
    Some(match (group, kind) {
        ("networking.istio.io", "VirtualService") => {
            (Kind::VirtualService, &["v1", "v1beta1", "v1alpha3"][..])
        }
        ("networking.istio.io", "DestinationRule") => {
            (Kind::DestinationRule, &["v1", "v1beta1", "v1alpha3"][..])
        }
        ("networking.istio.io", "ServiceEntry") => (Kind::ServiceEntry, &["v1", "v1beta1", "v1alpha3"][..]),
        ("networking.istio.io", "WorkloadEntry") => (Kind::WorkloadEntry, &["v1", "v1beta1", "v1alpha3"][..]),
        ("networking.istio.io", "Sidecar") => (Kind::Sidecar, &["v1", "v1beta1", "v1alpha3"][..]),
        ("networking.istio.io", "Gateway") => (Kind::Gateway, &["v1", "v1beta1", "v1alpha3"][..]),
        ("networking.istio.io", "WorkloadGroup") => (Kind::WorkloadGroup, &["v1", "v1beta1", "v1alpha3"][..]),
        ("networking.istio.io", "EnvoyFilter") => (Kind::EnvoyFilter, &["v1alpha3"][..]),
        ("networking.istio.io", "ProxyConfig") => (Kind::ProxyConfig, &["v1beta1"][..]),
        ("security.istio.io", "AuthorizationPolicy") => (Kind::AuthorizationPolicy, &["v1", "v1beta1"][..]),
        ("security.istio.io", "PeerAuthentication") => (Kind::PeerAuthentication, &["v1", "v1beta1"][..]),
        ("security.istio.io", "RequestAuthentication") => {
            (Kind::RequestAuthentication, &["v1", "v1beta1"][..])
        }
        ("telemetry.istio.io", "Telemetry") => (Kind::Telemetry, &["v1", "v1alpha1"][..]),
        ("extensions.istio.io", "WasmPlugin") => (Kind::WasmPlugin, &["v1alpha1"][..]),
        ("extensions.istio.io", "TrafficExtension") => (Kind::TrafficExtension, &["v1alpha1"][..]),
        ("", "Service") => (Kind::Service, &["v1"][..]),
        ("", "Endpoints") => (Kind::Endpoints, &["v1"][..]),
        ("discovery.k8s.io", "EndpointSlice") => (Kind::EndpointSlice, &["v1", "v1beta1"][..]),
        ("", "Pod") => (Kind::Pod, &["v1"][..]),
        ("", "Node") => (Kind::Node, &["v1"][..]),
        ("", "Namespace") => (Kind::Namespace, &["v1"][..]),
        ("", "Secret") => (Kind::Secret, &["v1"][..]),
        _ => return None,
    })
}

/// Rules that were made of other objects match paths as those do.
const ROUTE_SEMANTICS: &str = "internal.istio.io/route-semantics";

/// Kinds that may stand beside ours in a folder without being a mistake.
const CORE_KINDS: [&str; 13] = [
    "ConfigMap",
    "ServiceAccount",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "ReplicationController",
    "ResourceQuota",
    "LimitRange",
    "Event",
    "Binding",
    "PodTemplate",
    "ComponentStatus",
    "Eviction",
    "List",
];

fn decode(
    kind: Kind,
    meta: &Meta,
    node: &yaml::Node<'_>,
    options: &ReadOptions,
    check: &mut Check<'_>,
) -> Vec<Object> {
    let id = || meta.id.clone();
    let one = |object: Option<Object>| object.into_iter().collect();
    match kind {
        Kind::VirtualService => {
            let mut rule = spec(meta, node, check, kinds::virtual_service::decode);
            if let Some(rule) = &mut rule
                && rule
                    .annotations
                    .get(ROUTE_SEMANTICS)
                    .is_some_and(|of| matches!(of.as_str(), "ingress" | "gateway"))
            {
                kinds::virtual_service::match_segments(&mut rule.spec);
            }
            one(rule.map(Object::VirtualService))
        }
        Kind::DestinationRule => {
            let mut rule = spec(meta, node, check, kinds::destination_rule::decode);
            if let Some(rule) = &mut rule {
                rule.spec.health_check =
                    kinds::destination_rule::health_check::health_check(&rule.annotations, check);
            }
            one(rule.map(|rule| Object::DestinationRule(Box::new(rule))))
        }
        Kind::ServiceEntry => {
            let mut entry = spec(meta, node, check, kinds::service_entry::decode);
            if let (Some(entry), Some(status)) = (&mut entry, node.get("status")) {
                entry.spec.auto_addresses = kinds::service_entry::allocated(status);
            }
            one(entry.map(Object::ServiceEntry))
        }
        Kind::WorkloadEntry => {
            let mut entry = spec(meta, node, check, kinds::workload_entry::decode);
            if let (Some(entry), Some(status)) = (&mut entry, node.get("status")) {
                entry.spec.is_healthy = kinds::workload_entry::health(status);
            }
            one(entry.map(Object::WorkloadEntry))
        }
        Kind::Sidecar => one(spec(meta, node, check, kinds::sidecar::decode).map(Object::Sidecar)),
        Kind::Gateway => {
            one(spec(meta, node, check, kinds::gateway::decode)
                .map(|config| Object::Gateway(Arc::new(config))))
        }
        Kind::WorkloadGroup => one(spec(meta, node, check, kinds::workload_group::decode)
            .map(|config| Object::WorkloadGroup(Arc::new(config)))),
        Kind::EnvoyFilter => one(spec(meta, node, check, kinds::envoy_filter::decode)
            .map(|config| Object::EnvoyFilter(Arc::new(config)))),
        Kind::ProxyConfig => one(spec(meta, node, check, kinds::proxy_config::decode)
            .map(|config| Object::ProxyConfig(Arc::new(config)))),
        Kind::AuthorizationPolicy => one(spec(meta, node, check, kinds::authorization_policy::decode)
            .map(|config| Object::AuthorizationPolicy(Arc::new(config)))),
        Kind::PeerAuthentication => one(spec(meta, node, check, kinds::peer_authentication::decode)
            .map(|config| Object::PeerAuthentication(Arc::new(config)))),
        Kind::RequestAuthentication => one(spec(meta, node, check, kinds::request_authentication::decode)
            .map(|config| Object::RequestAuthentication(Arc::new(config)))),
        Kind::Telemetry => one(spec(meta, node, check, kinds::telemetry::decode)
            .map(|config| Object::Telemetry(Arc::new(config)))),
        Kind::WasmPlugin => one(spec(meta, node, check, kinds::wasm_plugin::decode)
            .map(|config| Object::WasmPlugin(Arc::new(config)))),
        Kind::TrafficExtension => one(spec(meta, node, check, kinds::traffic_extension::decode)
            .map(|config| Object::TrafficExtension(Arc::new(config)))),
        Kind::Service => {
            one(kube::service::decode(meta, node, options, check)
                .map(|service| Object::Service(id(), service)))
        }
        Kind::EndpointSlice => {
            one(kube::endpoints::decode_slice(meta, node, check)
                .map(|slice| Object::EndpointSlice(id(), slice)))
        }
        Kind::Endpoints => slices(meta, node, check),
        Kind::Pod => one(kube::pod::decode(meta, node, check).map(|pod| Object::Pod(id(), pod))),
        Kind::Node => one(kube::node::decode(meta, node, check).map(|node| Object::Node(id(), node))),
        Kind::Namespace => vec![Object::Namespace(id(), kube::namespace::decode(meta, check))],
        Kind::Secret => one(kube::secret::decode(node, check).map(|secret| Object::Secret(id(), secret))),
    }
}

/// Slices that say what `v1 Endpoints` say. Each needs a name of its own; a slash cannot occur in a real one.
fn slices(meta: &Meta, node: &yaml::Node<'_>, check: &mut Check<'_>) -> Vec<Object> {
    let slices = kube::endpoints::decode_endpoints(meta, node, check).unwrap_or_default();
    let named = |(i, slice)| {
        let name = Name::from(format!("{}/{i}", meta.id.name));
        Object::EndpointSlice(ConfigId { name, ..meta.id.clone() }, slice)
    };
    slices.into_iter().enumerate().map(named).collect()
}

/// Reads `spec` as a message and lets the kind make something of it.
fn spec<M: serde::de::DeserializeOwned, S>(
    meta: &Meta,
    node: &yaml::Node<'_>,
    check: &mut Check<'_>,
    decode: impl FnOnce(M, &mut Check<'_>) -> S,
) -> Option<Config<S>> {
    let empty = yaml::Node { line: node.line, value: yaml::Value::Map(Vec::new()) };
    match de::read::<M>(node.get("spec").unwrap_or(&empty), "spec") {
        Ok(typed) => {
            for unknown in typed.unknown {
                check.warn(unknown.path, "is not a field of this kind and has no effect");
            }
            let spec = decode(typed.value, check);
            let Meta { id, created, labels, annotations, owner: _, is_going: _ } = meta;
            let (labels, annotations) = (labels.clone(), annotations.clone());
            Some(Config { id: id.clone(), created: *created, labels, annotations, spec })
        }
        Err(error) => {
            check.reject(error.path, error.message);
            None
        }
    }
}

/// Seconds since 1970 of `2024-05-01T12:00:00Z`. Kubernetes writes no other form.
fn parse_timestamp(text: &str) -> Option<i64> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days since 1970-01-01 by the calendar that begins its years in March.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, year_of_era) = (y.div_euclid(400), y.rem_euclid(400));
    let day_of_year = (153 * m + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = era * 146_097 + day_of_era - 719_468;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests;
