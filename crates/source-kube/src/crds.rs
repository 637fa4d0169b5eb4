//! Which kinds of rules an API server knows, and in which version it keeps them.

use std::collections::BTreeSet;

use pilot_base::{Issue, Name, ObjectRef};
use pilot_config::{Document, Tree};
use pilot_model::Kind;

use crate::client::{Call, CallError, Client};
use crate::known::{Look, Verdict};
use crate::resource::{Content, RULES, Resource};

/// All definitions, without what they say.
pub(crate) fn resource() -> Resource {
    let all = Resource::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
    Resource { content: Content::Metadata, ..all }
}

/// Finds the definitions of some of our kinds.
pub(crate) struct CrdLook(pub(crate) Vec<Kind>);

impl Look for CrdLook {
    type Value = Kind;

    fn look(&self, object: Tree<'_>) -> Verdict<Kind> {
        match kind_of(object.text_at(&["metadata", "name"])) {
            Some(kind) if self.0.contains(&kind) => Verdict::Take(kind, Vec::new()),
            _ => Verdict::Ignore,
        }
    }
}

/// The kind that a definition is for: it is called `virtualservices.networking.istio.io`.
pub(crate) fn kind_of(name: &str) -> Option<Kind> {
    let (plural, group) = name.split_once('.')?;
    RULES.iter().find(|(_, g, p)| *g == group && *p == plural).map(|(kind, ..)| *kind)
}

fn place_of(kind: Kind) -> (&'static str, &'static str) {
    RULES.iter().find(|(k, ..)| *k == kind).map(|(_, group, plural)| (*group, *plural)).unwrap_or_default()
}

/// Asks in which version objects of a kind are kept; nothing while the API server does not serve them.
pub(crate) async fn stored(client: &Client, kind: Kind) -> Result<Option<Resource>, CallError> {
    let (group, plural) = place_of(kind);
    let path = resource().object(&format!("{plural}.{group}"));
    let body = client.call(Call::get(&path)).await?;
    let document = Document::parse(&body).map_err(CallError::Broken)?;
    let definition = document.tree();
    let conditions = definition.at(&["status", "conditions"]).into_iter().flat_map(Tree::items);
    let is_served = conditions
        .into_iter()
        .any(|c| c.text_at(&["type"]) == "Established" && c.text_at(&["status"]) == "True");
    let versions = definition.at(&["spec", "versions"]).into_iter().flat_map(Tree::items);
    let mut served = versions.filter(|v| v.get("served").is_some_and(Tree::is_true)).collect::<Vec<_>>();
    // The one that it is kept in, if it is served at all, needs no conversion.
    served.sort_by_key(|v| !v.get("storage").is_some_and(Tree::is_true));
    let version = served.first().map(|v| v.text_at(&["name"]));
    Ok(version.filter(|_| is_served).map(|version| Resource::new(group, version, plural)))
}

/// The same for who may not read definitions: every caller is told what is served, and in which version if he has no wish.
pub(crate) async fn served(client: &Client, kind: Kind) -> Result<Option<Resource>, CallError> {
    let (group, plural) = place_of(kind);
    let body = client.call(Call::get(&format!("/apis/{group}"))).await?;
    let document = Document::parse(&body).map_err(CallError::Broken)?;
    for version in document.tree().get("versions").into_iter().flat_map(Tree::items) {
        let version = version.text_at(&["version"]);
        let body = client.call(Call::get(&format!("/apis/{group}/{version}"))).await?;
        let document = Document::parse(&body).map_err(CallError::Broken)?;
        let mut kinds = document.tree().get("resources").into_iter().flat_map(Tree::items);
        if kinds.any(|kind| kind.text_at(&["name"]) == plural) {
            return Ok(Some(Resource::new(group, version, plural)));
        }
    }
    Ok(None)
}

/// Where rules of Istio stand if nobody says otherwise.
pub(crate) fn usual() -> impl Iterator<Item = (Kind, Resource)> {
    RULES.iter().map(|(kind, group, plural)| {
        let version = match kind {
            Kind::EnvoyFilter => "v1alpha3",
            Kind::ProxyConfig => "v1beta1",
            Kind::WasmPlugin | Kind::TrafficExtension => "v1alpha1",
            _ => "v1",
        };
        (*kind, Resource::new(group, version, plural))
    })
}

/// What is told about kinds that the API server does not know.
pub(crate) fn missing(known: &BTreeSet<Kind>, cluster: &Name) -> Vec<Issue> {
    let missing: Vec<String> = RULES
        .iter()
        .filter(|(kind, ..)| !known.contains(kind))
        .map(|(_, group, plural)| format!("{plural}.{group}"))
        .collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let message = format!(
        "these CRDs are not installed: {}; rules of those kinds have no effect. `pilotctl install crds` installs them, and so does Istio's chart base; they are followed as soon as they are there",
        missing.join(", ")
    );
    vec![Issue::warning(ObjectRef::new("Cluster", Name::empty(), cluster.clone()), "", message)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pilot_base::Name;
    use pilot_model::Kind;

    use super::{kind_of, missing};
    use crate::resource::RULES;

    #[test]
    fn definitions_are_known_by_name() {
        assert_eq!(kind_of("virtualservices.networking.istio.io"), Some(Kind::VirtualService));
        assert_eq!(kind_of("virtualservices.example.com"), None);
        assert_eq!(kind_of("x"), None);
    }

    #[test]
    fn one_message_tells_all_that_is_missing() {
        let mut known: BTreeSet<Kind> = RULES.iter().map(|(kind, ..)| *kind).collect();
        assert!(missing(&known, &Name::new("c")).is_empty());
        known.remove(&Kind::Telemetry);
        known.remove(&Kind::Sidecar);
        let issues = missing(&known, &Name::new("c"));
        let text = issues[0].to_string();
        assert_eq!(issues.len(), 1);
        assert!(text.contains("sidecars.networking.istio.io, telemetries.telemetry.istio.io;"), "{text}");
    }
}
