//! The objects of a scenario's world: each has a file of its own, so that steps can put others in their place.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

/// Files by name.
#[derive(Clone, Default, Debug)]
pub struct Objects(BTreeMap<String, String>);

impl Objects {
    pub fn files(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// Adds the objects of a text, in place of those with the same kind and name. The same one twice in one text stays
    /// twice.
    pub fn apply(&mut self, text: &str) {
        let mut now: BTreeMap<String, String> = BTreeMap::new();
        for document in documents(text) {
            let value = pilot_config::read_value(&document, "world").ok();
            let base = value.as_ref().and_then(identity).unwrap_or_else(|| format!("broken-{}", now.len()));
            let mut name = base.clone();
            let mut again = 1;
            while now.contains_key(&name) {
                again += 1;
                // Comes after the first in the order of file names.
                name = format!("{base}~{again}");
            }
            now.insert(name, document);
        }
        self.0.extend(now);
    }

    /// Removes `Kind namespace/name`.
    pub fn remove(&mut self, what: &str) -> anyhow::Result<()> {
        let (kind, rest) =
            what.split_once(' ').with_context(|| format!("remove: {what:?} is not Kind namespace/name"))?;
        let (namespace, name) = rest.split_once('/').unwrap_or(("", rest));
        let file = file_name(kind, namespace, name);
        if self.0.remove(&file).is_none() {
            bail!("remove: there is no {what}");
        }
        Ok(())
    }

    /// Lets a Sidecar see one host more.
    pub fn widen_sidecars(&mut self, host: &str) {
        for (name, text) in &mut self.0 {
            if !name.starts_with("sidecar-") {
                continue;
            }
            let Ok(mut value) = pilot_config::read_value(text, name) else { continue };
            let listeners = value.pointer_mut("/spec/egress").and_then(Value::as_array_mut);
            for listener in listeners.into_iter().flatten() {
                let hosts = listener.get_mut("hosts").and_then(Value::as_array_mut);
                let has = |hosts: &Vec<Value>| hosts.contains(&json!(host)) || hosts.contains(&json!("*/*"));
                if let Some(hosts) = hosts.filter(|hosts| !has(hosts)) {
                    hosts.push(json!(host));
                }
            }
            *text = value.to_string();
        }
    }
}

fn documents(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    for line in text.lines() {
        if line.trim_end() == "---" {
            all.push(String::new());
        } else if let Some(last) = all.last_mut() {
            last.push_str(line);
            last.push('\n');
        }
    }
    all.retain(|document| !document.trim().is_empty());
    all
}

fn identity(value: &Value) -> Option<String> {
    let kind = value.get("kind")?.as_str()?;
    let name = value.pointer("/metadata/name")?.as_str()?;
    let namespace = value.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or_default();
    Some(file_name(kind, namespace, name))
}

/// Objects without a namespace are in the default one, except those that have none.
fn file_name(kind: &str, namespace: &str, name: &str) -> String {
    let namespace = match (kind, namespace) {
        ("Namespace" | "Node", _) => "",
        (_, "") => "default",
        (_, namespace) => namespace,
    };
    format!("{}-{namespace}-{name}", kind.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::Objects;

    #[test]
    fn objects_are_replaced_removed_and_kept_twice() {
        let object =
            |name: &str, x: u32| format!("kind: Sidecar\nmetadata: {{name: {name}}}\nspec: {{x: {x}}}\n");
        let mut objects = Objects::default();
        objects.apply(&format!(
            "{}---\n{}---\n{}---\nkind: [\n",
            object("a", 1),
            object("b", 1),
            object("b", 2)
        ));
        let names: Vec<&str> = objects.files().keys().map(String::as_str).collect();
        assert_eq!(names, ["broken-3", "sidecar-default-a", "sidecar-default-b", "sidecar-default-b~2"]);
        objects.apply(&object("a", 7));
        assert!(objects.files()["sidecar-default-a"].contains("x: 7"));
        objects.remove("Sidecar default/a").unwrap();
        assert!(objects.remove("Sidecar default/a").is_err());
    }
}
