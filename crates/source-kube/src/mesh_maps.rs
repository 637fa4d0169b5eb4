//! The settings of the mesh and its networks, from ConfigMaps.

use pilot_base::{Issue, Name};
use pilot_config::{Tree, read_mesh_layers, read_mesh_networks};
use pilot_model::{MeshConfig, MeshNetworks};
use pilot_source::{Batch, Event};

use crate::known::{Change, Look, Verdict, What};
use crate::resource::Resource;

/// Where the settings stand. Later ConfigMaps count more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MeshPlace {
    pub namespace: Name,
    /// `istio`, or `istio-<revision>`; below it perhaps one for all revisions.
    pub maps: Vec<Name>,
    /// Do the settings come from there? A file that is there counts more than any ConfigMap.
    pub settings: bool,
    pub networks: bool,
}

impl MeshPlace {
    /// Istio's own names.
    pub fn of_revision(namespace: Name, revision: &str, shared: Option<&str>) -> Self {
        let own = match revision {
            "" | "default" => Name::new("istio"),
            revision => Name::from(format!("istio-{revision}")),
        };
        let maps = shared.map(Name::new).into_iter().chain([own]).collect();
        Self { namespace, maps, settings: true, networks: true }
    }

    pub(crate) fn resource(&self, map: &Name) -> Resource {
        Resource {
            namespace: Some(self.namespace.clone()),
            fields: Some(Name::from(format!("metadata.name={map}"))),
            ..Resource::new("", "v1", "configmaps")
        }
    }
}

/// The texts in a ConfigMap that are about the mesh.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Texts {
    mesh: Option<String>,
    networks: Option<String>,
}

pub(crate) struct TextLook;

impl Look for TextLook {
    type Value = Texts;

    fn look(&self, map: Tree<'_>) -> Verdict<Texts> {
        let text = |key: &str| map.at(&["data", key]).and_then(Tree::text).map(str::to_owned);
        Verdict::Take(Texts { mesh: text("mesh"), networks: text("meshNetworks") }, Vec::new())
    }
}

/// What all ConfigMaps say together.
pub(crate) struct MeshMaps {
    place: MeshPlace,
    texts: Vec<Texts>,
    told: (Option<MeshConfig>, Option<MeshNetworks>),
}

impl MeshMaps {
    pub(crate) fn new(place: MeshPlace) -> Self {
        let texts = vec![Texts::default(); place.maps.len()];
        Self { place, texts, told: (None, None) }
    }

    /// What was told of the mesh, if that comes from here.
    pub(crate) fn settings(&self) -> Option<&MeshConfig> {
        self.told.0.as_ref()
    }

    pub(crate) fn take(&mut self, map: usize, changes: Vec<Change<Texts>>) {
        for change in changes {
            match change.what {
                What::Put(texts) => self.texts[map] = texts,
                What::Gone => self.texts[map] = Texts::default(),
                What::Same => {}
            }
        }
    }

    /// Tells what is different. Settings with a mistake in them change nothing.
    pub(crate) fn tell(&mut self, batch: &mut Batch) {
        if self.place.settings {
            let named = self.named(|texts| texts.mesh.as_deref());
            let layers: Vec<(&str, &str)> = named.iter().map(|(t, n)| (t.as_str(), n.as_str())).collect();
            let (mesh, issues) = settled(read_mesh_layers(&layers));
            if let Some(mesh) = mesh.or_else(|| self.told.0.is_none().then(MeshConfig::default))
                && self.told.0.as_ref() != Some(&mesh)
            {
                batch.events.push(Event::Mesh(Box::new(mesh.clone())));
                self.told.0 = Some(mesh);
            }
            batch.issues.push((Name::new("mesh"), issues));
        }
        if self.place.networks {
            // Networks do not add up: the lowest that says any counts, as in istiod.
            let named = self.named(|texts| texts.networks.as_deref());
            let read = named.first().map(|(text, name)| read_mesh_networks(text, name));
            let (networks, issues) =
                settled(read.unwrap_or_else(|| Ok((MeshNetworks::default(), Vec::new()))));
            if let Some(networks) = networks.or_else(|| self.told.1.is_none().then(MeshNetworks::default))
                && self.told.1.as_ref() != Some(&networks)
            {
                batch.events.push(Event::Networks(Box::new(networks.clone())));
                self.told.1 = Some(networks);
            }
            batch.issues.push((Name::new("meshNetworks"), issues));
        }
    }

    fn named(&self, text: impl Fn(&Texts) -> Option<&str>) -> Vec<(String, String)> {
        let all = self.texts.iter().zip(&self.place.maps);
        let name = |map: &Name| format!("configmap {}/{map}", self.place.namespace);
        all.filter_map(|(texts, map)| Some((text(texts)?.to_owned(), name(map)))).collect()
    }
}

fn settled<T>(read: Result<(T, Vec<Issue>), Vec<Issue>>) -> (Option<T>, Vec<Issue>) {
    match read {
        Ok((value, issues)) => (Some(value), issues),
        Err(issues) => (None, issues),
    }
}

#[cfg(test)]
mod tests {
    use pilot_base::Name;
    use pilot_model::ConfigId;
    use pilot_source::{Batch, Event};

    use super::{Change, MeshMaps, MeshPlace, Texts, What};

    fn maps() -> MeshMaps {
        MeshMaps::new(MeshPlace::of_revision(Name::new("istio-system"), "canary", Some("shared")))
    }

    fn put(maps: &mut MeshMaps, map: usize, mesh: &str) -> (Vec<String>, usize) {
        let texts = Texts { mesh: Some(mesh.to_owned()), networks: None };
        let change = Change { id: ConfigId::default(), what: What::Put(texts), is_new: true, issues: vec![] };
        maps.take(map, vec![change]);
        let mut batch = Batch::default();
        maps.tell(&mut batch);
        let said = batch.events.iter().filter_map(|event| match event {
            Event::Mesh(mesh) => Some(format!("{} {}", mesh.root_namespace, mesh.trust_domain)),
            _ => None,
        });
        (said.collect(), batch.issues[0].1.len())
    }

    #[test]
    fn names_are_those_of_istio() {
        assert_eq!(maps().place.maps, [Name::new("shared"), Name::new("istio-canary")]);
        let place = MeshPlace::of_revision(Name::new("i"), "default", None);
        assert_eq!(place.maps, [Name::new("istio")]);
        let path = place.resource(&place.maps[0]).query(&[]);
        assert_eq!(path, "/api/v1/namespaces/i/configmaps?fieldSelector=metadata.name%3Distio");
    }

    #[test]
    fn maps_add_up_and_mistakes_change_nothing() {
        let mut maps = maps();
        let said = |text: &str| vec![text.to_owned()];
        assert_eq!(put(&mut maps, 0, "rootNamespace: low\ntrustDomain: low.com"), (said("low low.com"), 0));
        assert_eq!(put(&mut maps, 1, "rootNamespace: high"), (said("high low.com"), 0));
        assert_eq!(put(&mut maps, 1, "rootNamespace: ["), (vec![], 1));
        assert_eq!(put(&mut maps, 1, "rootNamespace: next"), (said("next low.com"), 0));
        assert_eq!(put(&mut maps, 1, "rootNamespace: next"), (vec![], 0));
    }
}
