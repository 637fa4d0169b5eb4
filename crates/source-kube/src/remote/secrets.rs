//! What secrets say about other clusters: which there are, and how they are reached.

use std::collections::{BTreeMap, BTreeSet};

use data_encoding::BASE64;
use pilot_base::{Issue, Name, ObjectRef};
use pilot_config::Tree;
use pilot_model::ConfigId;

use crate::known::{Change, Look, Verdict, What};

/// The kubeconfigs in a secret, by cluster; what is no text is told.
pub(super) type Configs = BTreeMap<Name, String>;

pub(super) struct SecretLook;

impl Look for SecretLook {
    type Value = Configs;

    fn look(&self, secret: Tree<'_>) -> Verdict<Configs> {
        let mut configs = Configs::new();
        let mut issues = Vec::new();
        for (cluster, data) in secret.get("data").into_iter().flat_map(Tree::entries) {
            let bytes = BASE64.decode(data.text().unwrap_or_default().as_bytes()).ok();
            match bytes.and_then(|bytes| String::from_utf8(bytes).ok()) {
                Some(text) => {
                    configs.insert(Name::new(cluster), text);
                }
                None => {
                    let metadata = |field: &str| Name::new(secret.text_at(&["metadata", field]));
                    let object = ObjectRef::new("Secret", metadata("namespace"), metadata("name"));
                    issues.push(Issue::error(object, format!("data.{cluster}"), "is not a kubeconfig"));
                }
            }
        }
        Verdict::Take(configs, issues)
    }
}

/// What all secrets say. Several may speak of one cluster; one of them counts, and the others when that one is silent.
#[derive(Default)]
pub(super) struct Secrets {
    all: BTreeMap<String, Secret>,
    /// What was last said of each.
    told: BTreeMap<String, Vec<Issue>>,
}

struct Secret {
    id: ConfigId,
    configs: Configs,
    /// What is wrong with the secret itself.
    issues: Vec<Issue>,
    /// What is wrong with what it leads to.
    found: Vec<Issue>,
}

impl Secrets {
    pub(super) fn hear(&mut self, change: Change<Configs>) {
        let Change { id, what, issues, .. } = change;
        let name = id.to_string();
        match what {
            What::Put(configs) => {
                self.all.insert(name, Secret { id, configs, issues, found: Vec::new() });
            }
            What::Gone => drop(self.all.remove(&name)),
            What::Same => {
                if let Some(secret) = self.all.get_mut(&name) {
                    secret.issues = issues;
                }
            }
        }
    }

    /// All clusters that are spoken of.
    pub(super) fn clusters(&self) -> BTreeSet<Name> {
        self.all.values().flat_map(|secret| secret.configs.keys()).cloned().collect()
    }

    /// Who speaks of a cluster, and how it is reached: first who was believed so far, then by name.
    pub(super) fn of(&self, cluster: &Name, believed: Option<&str>) -> Vec<(String, String)> {
        let speaks =
            |(name, secret): (&String, &Secret)| Some((name.clone(), secret.configs.get(cluster)?.clone()));
        let mut all: Vec<(String, String)> = self.all.iter().filter_map(speaks).collect();
        all.sort_by_key(|(name, _)| Some(name.as_str()) != believed);
        all
    }

    /// Everything is looked at again.
    pub(super) fn begin(&mut self) {
        self.all.values_mut().for_each(|secret| secret.found.clear());
    }

    /// What a secret says of a cluster is of no use.
    pub(super) fn note(&mut self, secret: &str, cluster: &Name, why: String) {
        if let Some(secret) = self.all.get_mut(secret) {
            let object = ObjectRef::new("Secret", secret.id.namespace.clone(), secret.id.name.clone());
            secret.found.push(Issue::error(object, format!("data.{cluster}"), why));
        }
    }

    /// What is wrong with secrets, as far as that is different.
    pub(super) fn news(&mut self) -> Vec<(Name, Vec<Issue>)> {
        let all = |secret: &Secret| secret.issues.iter().chain(&secret.found).cloned().collect::<Vec<_>>();
        let now: BTreeMap<String, Vec<Issue>> =
            self.all.iter().map(|(name, secret)| (name.clone(), all(secret))).collect();
        let before = std::mem::replace(&mut self.told, now);
        let names: BTreeSet<&String> = before.keys().chain(self.told.keys()).collect();
        let said =
            |all: &BTreeMap<String, Vec<Issue>>, name: &String| all.get(name).cloned().unwrap_or_default();
        names
            .into_iter()
            .filter(|name| said(&before, name) != said(&self.told, name))
            .map(|name| (Name::from(format!("secret {name}")), said(&self.told, name)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use pilot_base::Name;
    use pilot_model::ConfigId;

    use super::{Configs, Secrets};
    use crate::known::{Change, What};

    fn put(secrets: &mut Secrets, name: &str, clusters: &[(&str, &str)]) {
        let configs: Configs =
            clusters.iter().map(|(id, text)| (Name::new(id), (*text).to_owned())).collect();
        let what = if clusters.is_empty() { What::Gone } else { What::Put(configs) };
        let id = ConfigId::new("mesh", name);
        secrets.hear(Change { id, what, is_new: false, issues: Vec::new() });
    }

    #[test]
    fn who_was_believed_goes_first_and_others_are_remembered() {
        let mut secrets = Secrets::default();
        put(&mut secrets, "a", &[("east", "1"), ("west", "1")]);
        put(&mut secrets, "b", &[("east", "2")]);
        let of = |secrets: &Secrets, believed: Option<&str>| {
            let all = secrets.of(&Name::new("east"), believed);
            all.into_iter().map(|(name, config)| format!("{name} {config}")).collect::<Vec<_>>()
        };
        assert_eq!(of(&secrets, None), ["mesh/a 1", "mesh/b 2"]);
        assert_eq!(of(&secrets, Some("mesh/b")), ["mesh/b 2", "mesh/a 1"]);
        put(&mut secrets, "a", &[]);
        assert_eq!(of(&secrets, Some("mesh/a")), ["mesh/b 2"]);
        assert_eq!(secrets.clusters().len(), 1);
    }

    #[test]
    fn what_is_wrong_is_told_once_and_taken_back_with_its_secret() {
        let mut secrets = Secrets::default();
        put(&mut secrets, "a", &[("east", "1")]);
        let look = |secrets: &mut Secrets| {
            secrets.begin();
            secrets.note("mesh/a", &Name::new("east"), "why".to_owned());
            secrets
                .news()
                .into_iter()
                .map(|(place, issues)| format!("{place} {}", issues.len()))
                .collect::<Vec<_>>()
        };
        assert_eq!(look(&mut secrets), ["secret mesh/a 1"]);
        assert!(look(&mut secrets).is_empty());
        put(&mut secrets, "a", &[]);
        assert_eq!(look(&mut secrets), ["secret mesh/a 0"]);
    }
}
