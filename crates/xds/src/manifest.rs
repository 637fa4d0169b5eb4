use std::collections::BTreeSet;
use std::sync::Arc;

use pilot_base::{MapChange, Name, SharedMap};
use smallvec::SmallVec;

use crate::{Encoded, TypeUrl};

/// Resources by name; `None` hides what a lower layer has.
pub type Layer = SharedMap<Name, Option<Arc<Encoded>>>;

/// What exists for one proxy and one type: layers of shared maps, the most general at the bottom.
///
/// Layers are shared between proxies, so what differs for one proxy never copies what is common to all.
#[derive(Clone, Default)]
pub struct Manifest {
    layers: SmallVec<[Layer; 4]>,
    unserved: Option<Unserved>,
    at_once: Option<Arc<Manifest>>,
}

/// What a client is told of a name that it asks for and that nobody serves. A client that waits for a name goes on when it
/// is told that nothing is behind it; one that lets go of a name does not mind.
#[derive(Clone)]
pub struct Unserved {
    pub form: fn(&Name, Why, &Manifest, &[u8]) -> Encoded,
    /// What the form needs to know besides the name and what is served.
    pub common: Arc<[u8]>,
}

/// Why a name is asked for that nobody serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The client was given it while it was served, and may still use it.
    Gone,
    /// It was never served to this client, which may be anybody and have made it up. The word must be small, and depend on
    /// nothing but the name and what is common.
    InVain,
}

impl PartialEq for Unserved {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::fn_addr_eq(self.form, other.form) && self.common == other.common
    }
}

impl Manifest {
    /// `layers` from the bottom up.
    pub fn new(layers: impl IntoIterator<Item = Layer>) -> Self {
        Self { layers: layers.into_iter().collect(), unserved: None, at_once: None }
    }

    /// Who asks for everything is sent only what is in `layers` too. The rest is there for those who ask for it by name.
    #[must_use]
    pub fn with_at_once(self, layers: impl IntoIterator<Item = Layer>) -> Self {
        Self { at_once: Some(Arc::new(Self::new(layers))), ..self }
    }

    /// What somebody is sent who asks for everything, if that is not all there is.
    pub fn at_once(&self) -> Option<&Self> {
        self.at_once.as_deref()
    }

    /// Is somebody sent this who asks for everything?
    pub fn is_at_once(&self, name: &str) -> bool {
        self.at_once.as_ref().is_none_or(|at_once| at_once.contains(name))
    }

    /// Names that nobody serves are answered too, if they are asked for one by one.
    #[must_use]
    pub fn with_unserved(self, unserved: Unserved) -> Self {
        Self { unserved: Some(unserved), ..self }
    }

    /// What is said of a name that is not here, if anything is.
    pub fn unserved(&self, name: &Name, why: Why) -> Option<Encoded> {
        self.unserved.as_ref().map(|unserved| (unserved.form)(name, why, self, &unserved.common))
    }

    /// Do both say the same of names that were asked for in vain?
    pub(crate) fn says_the_same_in_vain(&self, other: &Self) -> bool {
        self.unserved == other.unserved
    }

    /// Puts another layer on top.
    pub fn push(&mut self, layer: Layer) {
        self.layers.push(layer);
    }

    pub(crate) fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The resources of one layer that no upper layer hides or replaces, in order of names.
    pub(crate) fn seen(&self, at: usize) -> impl Iterator<Item = &Arc<Encoded>> {
        let over: SmallVec<[&Layer; 4]> = self.layers[at + 1..].iter().filter(|l| !l.is_empty()).collect();
        let is_seen = move |name: &Name| over.iter().all(|upper| upper.get(name).is_none());
        self.layers[at]
            .iter()
            .filter(move |(name, _)| is_seen(name))
            .filter_map(|(_, encoded)| encoded.as_ref())
    }

    pub fn get(&self, name: &str) -> Option<&Arc<Encoded>> {
        self.layers.iter().rev().find_map(|layer| layer.get(name)).and_then(Option::as_ref)
    }

    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// All resources: layer by layer, in order of names within each, so that streams which share a layer are sent the
    /// same run of bytes.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Encoded>> {
        (0..self.layers.len()).flat_map(|at| self.seen(at))
    }

    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Is this what a client has of a type before it was sent anything?
    pub(crate) fn is_default(&self) -> bool {
        self.layers.is_empty()
    }

    /// Are both the very same, without a look at any resource?
    pub fn same(&self, other: &Self) -> bool {
        self.layers.len() == other.layers.len()
            && self.layers.iter().zip(&other.layers).all(|(a, b)| a.ptr_eq(b) || a.is_empty() && b.is_empty())
            && self.unserved == other.unserved
            && match (&self.at_once, &other.at_once) {
                (Some(one), Some(other)) => one.same(other),
                (one, other) => one.is_none() && other.is_none(),
            }
    }

    /// Adds to `names` every name whose resource may differ, or that other clients are sent. Costs what differs, not what
    /// there is, as long as both keep something back or neither does.
    pub fn diff(&self, newer: &Self, names: &mut BTreeSet<Name>) {
        match (&self.at_once, &newer.at_once) {
            (None, None) => (),
            (Some(old), Some(new)) => old.diff(new, names),
            (Some(some), None) => newer.kept_back_by(some, names),
            (None, Some(some)) => self.kept_back_by(some, names),
        }
        let empty = Layer::new();
        for at in 0..self.layers.len().max(newer.layers.len()) {
            let old = self.layers.get(at).unwrap_or(&empty);
            let new = newer.layers.get(at).unwrap_or(&empty);
            old.diff(new, |change| {
                let (MapChange::Added(name, _) | MapChange::Removed(name, _) | MapChange::Changed(name, ..)) =
                    change;
                if self.get(name) != newer.get(name) {
                    names.insert(name.clone());
                }
            });
        }
    }
}

impl Manifest {
    /// Adds to `names` what is here and not in `some`.
    fn kept_back_by(&self, some: &Self, names: &mut BTreeSet<Name>) {
        let rest = self.iter().map(|resource| resource.name()).filter(|name| !some.contains(name));
        names.extend(rest.cloned());
    }
}

impl PartialEq for Manifest {
    fn eq(&self, other: &Self) -> bool {
        self.layers == other.layers && self.unserved == other.unserved && self.at_once == other.at_once
    }
}

/// The manifests of all types for one proxy, taken at one moment: nothing in one refers to what another lacks.
#[derive(Clone, PartialEq, Default)]
pub struct Manifests {
    /// What responses call their version.
    pub version: u64,
    pub by_type: [Manifest; TypeUrl::ALL.len()],
}

impl Manifests {
    pub fn of(&self, type_url: TypeUrl) -> &Manifest {
        &self.by_type[type_url.index()]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::{Layer, Manifest};
    use crate::{Encoded, TypeUrl};

    fn layer(entries: &[(&str, Option<&str>)]) -> Layer {
        let encode =
            |name: &str, text: &str| Arc::new(Encoded::new(TypeUrl::Cluster, name.into(), text.as_bytes()));
        entries.iter().map(|(name, text)| ((*name).into(), text.map(|t| encode(name, t)))).collect()
    }

    fn names(manifest: &Manifest) -> Vec<&str> {
        manifest.iter().map(|e| e.name().as_str()).collect()
    }

    #[test]
    fn upper_layers_hide_and_replace() {
        let base = layer(&[("a", Some("1")), ("b", Some("1")), ("c", Some("1"))]);
        let own = layer(&[("b", None), ("c", Some("2")), ("d", Some("1"))]);
        let manifest = Manifest::new([base, own]);
        assert_eq!(names(&manifest), ["a", "c", "d"]);
        assert!(!manifest.contains("b"));
        assert_eq!(manifest.get("c").map(|e| e.message()), Some(b"2".to_vec()));
    }

    #[test]
    fn a_change_below_that_is_hidden_above_is_none() {
        let own = layer(&[("b", Some("own"))]);
        let old = Manifest::new([layer(&[("a", Some("1")), ("b", Some("1"))]), own.clone()]);
        let new = Manifest::new([layer(&[("a", Some("2")), ("b", Some("2"))]), own]);
        let mut differs = BTreeSet::new();
        old.diff(&new, &mut differs);
        assert_eq!(differs.into_iter().collect::<Vec<_>>(), ["a"]);
    }
}
