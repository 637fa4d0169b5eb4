use std::collections::BTreeSet;

use pilot_base::Name;

use crate::EntryVisibility;

/// One entry of an `exportTo` list.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Visibility {
    /// `*`: every namespace.
    Public,
    /// `.`: the namespace of the object.
    Private,
    /// `~`: nobody.
    Nobody,
    Namespace(Name),
}

impl Visibility {
    pub fn parse(text: &str) -> Self {
        match text {
            "*" => Self::Public,
            "." => Self::Private,
            "~" => Self::Nobody,
            namespace => Self::Namespace(Name::new(namespace)),
        }
    }
}

/// Who may see an object. Empty means that the mesh's default decides.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ExportTo(BTreeSet<Visibility>);

impl ExportTo {
    pub fn parse<'a>(entries: impl IntoIterator<Item = &'a str>) -> Self {
        Self(entries.into_iter().map(Visibility::parse).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Visibility> {
        self.0.iter()
    }

    pub fn contains(&self, entry: &Visibility) -> bool {
        self.0.contains(entry)
    }

    pub fn is_public(&self) -> bool {
        self.contains(&Visibility::Public)
    }

    /// This list, or the default where nothing is said.
    pub fn or<'a>(&'a self, default: &'a Self) -> &'a Self {
        if self.is_empty() { default } else { self }
    }

    /// This list, as far as a limit lets it reach. `own` is the object's namespace.
    #[must_use]
    pub fn within(&self, limit: EntryVisibility, default: &Self, own: &Name) -> Self {
        let declared = self.or(default);
        let reaches = declared.visible_in(own, own);
        match limit {
            EntryVisibility::Public => self.clone(),
            EntryVisibility::Namespace if reaches => Self([Visibility::Private].into()),
            EntryVisibility::Namespace | EntryVisibility::None => Self([Visibility::Nobody].into()),
        }
    }

    /// The namespaces that see the object, if not all of them do. `own` is the object's.
    pub fn namespaces(&self, own: &Name) -> BTreeSet<Name> {
        if self.contains(&Visibility::Nobody) {
            return BTreeSet::new();
        }
        let named = self.0.iter().filter_map(|entry| match entry {
            Visibility::Private => Some(own.clone()),
            Visibility::Namespace(namespace) => Some(namespace.clone()),
            Visibility::Public | Visibility::Nobody => None,
        });
        named.collect()
    }

    /// Is an object of namespace `own` visible in `namespace`?
    pub fn visible_in(&self, own: &Name, namespace: &Name) -> bool {
        self.is_public() || self.namespaces(own).contains(namespace)
    }
}
