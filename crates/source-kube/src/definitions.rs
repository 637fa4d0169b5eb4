//! The definitions of the kinds of rules that are served, for a cluster that has none yet. Their schemas let everything
//! pass: what an object may say is judged when it is read, and before that by the webhook, with the same rules.

use pilot_model::Kind;
use serde_json::{Value, json};

use crate::resource::RULES;

/// What is known of a kind besides where it stands.
struct Form {
    /// Served in all of these, and kept in the first.
    versions: &'static [&'static str],
    short: Option<&'static str>,
    /// What `kubectl get` shows besides the name.
    columns: &'static [Column],
    /// An object without a spec would say nothing.
    needs_spec: bool,
}

/// Title, place, and type.
type Column = (&'static str, &'static str, &'static str);

const AGE: Column = ("Age", ".metadata.creationTimestamp", "date");

/// Definitions of all kinds, as objects of `apiextensions.k8s.io/v1`.
pub fn definitions() -> Vec<Value> {
    RULES.iter().map(|(kind, group, plural)| definition(*kind, group, plural)).collect()
}

/// Versions stay in Istio's order: objects that a cluster keeps are kept in the version that it has them in already.
fn form(kind: Kind) -> Form {
    const THREE: &[&str] = &["v1", "v1beta1", "v1alpha3"];
    const TWO: &[&str] = &["v1", "v1beta1"];
    let of = |versions, short, columns| Form { versions, short, columns, needs_spec: false };
    match kind {
        Kind::VirtualService => of(
            THREE,
            Some("vs"),
            &[("Gateways", ".spec.gateways", "string"), ("Hosts", ".spec.hosts", "string"), AGE],
        ),
        Kind::DestinationRule => of(THREE, Some("dr"), &[("Host", ".spec.host", "string"), AGE]),
        Kind::ServiceEntry => Form {
            needs_spec: true,
            ..of(
                THREE,
                Some("se"),
                &[
                    ("Hosts", ".spec.hosts", "string"),
                    ("Location", ".spec.location", "string"),
                    ("Resolution", ".spec.resolution", "string"),
                    AGE,
                ],
            )
        },
        Kind::WorkloadEntry => {
            Form { needs_spec: true, ..of(THREE, Some("we"), &[AGE, ("Address", ".spec.address", "string")]) }
        }
        Kind::WorkloadGroup => Form { needs_spec: true, ..of(THREE, Some("wg"), &[AGE]) },
        Kind::Gateway => of(THREE, Some("gw"), &[]),
        Kind::EnvoyFilter => of(&["v1alpha3"], None, &[]),
        Kind::ProxyConfig => of(&["v1beta1"], None, &[]),
        Kind::AuthorizationPolicy => of(TWO, Some("ap"), &[("Action", ".spec.action", "string"), AGE]),
        Kind::PeerAuthentication => of(TWO, Some("pa"), &[("Mode", ".spec.mtls.mode", "string"), AGE]),
        Kind::RequestAuthentication => of(TWO, Some("ra"), &[]),
        Kind::Telemetry => of(&["v1alpha1", "v1"], Some("telemetry"), &[AGE]),
        Kind::WasmPlugin | Kind::TrafficExtension => {
            Form { needs_spec: true, ..of(&["v1alpha1"], None, &[AGE]) }
        }
        _ => of(THREE, None, &[]),
    }
}

fn definition(kind: Kind, group: &str, plural: &str) -> Value {
    let form = form(kind);
    let versions: Value =
        form.versions.iter().enumerate().map(|(at, name)| version(&form, name, at)).collect();
    let mut names = json!({
        "kind": kind.name(),
        "listKind": format!("{}List", kind.name()),
        "plural": plural,
        "singular": kind.name().to_lowercase(),
        "categories": ["istio-io", group.replace('.', "-")],
    });
    if let Some(short) = form.short {
        names["shortNames"] = json!([short]);
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": versions},
    })
}

/// Objects are kept in the first version.
fn version(form: &Form, name: &str, at: usize) -> Value {
    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let mut schema = json!({"type": "object", "properties": {"spec": anything, "status": anything}});
    if form.needs_spec {
        schema["required"] = json!(["spec"]);
    }
    let mut version = json!({
        "name": name, "served": true, "storage": at == 0,
        "subresources": {"status": {}}, "schema": {"openAPIV3Schema": schema},
    });
    if !form.columns.is_empty() {
        let column = |(title, place, of): &Column| json!({"name": title, "jsonPath": place, "type": of});
        version["additionalPrinterColumns"] = form.columns.iter().map(column).collect();
    }
    version
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::definitions;
    use crate::crds::{kind_of, usual};

    #[test]
    fn every_kind_is_defined_and_kept_where_rules_usually_stand() {
        let all = definitions();
        let kinds: BTreeSet<_> =
            all.iter().map(|d| kind_of(d["metadata"]["name"].as_str().unwrap()).unwrap()).collect();
        assert_eq!(kinds.len(), all.len());
        assert_eq!(kinds, usual().map(|(kind, _)| kind).collect());
        for definition in &all {
            let versions = definition["spec"]["versions"].as_array().unwrap();
            assert_eq!(
                versions.iter().filter(|version| version["storage"] == true).count(),
                1,
                "{definition}"
            );
        }
    }
}
