//! How services stand in the tree.

mod curator;
mod dubbo;
mod plain;

use pilot_source::Instance;

/// Who wrote the nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Layout {
    /// `root/service/instance`, with Curator's JSON in each; Spring Cloud writes that too.
    #[default]
    Curator,
    /// `root/interface/providers/url`
    Dubbo,
    /// `root/service/host:port`, with nothing, `key=value` lines or a JSON object in each.
    Plain,
}

/// Where a node stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place<'a> {
    /// The root or something above the instances of all services.
    Above,
    /// A service, or what its instances stand below.
    Service(&'a str),
    Instance(&'a str, &'a str),
    /// Something that says nothing about instances.
    Elsewhere,
}

impl Layout {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "curator" => Some(Self::Curator),
            "dubbo" => Some(Self::Dubbo),
            "plain" => Some(Self::Plain),
            _ => None,
        }
    }

    /// Where services usually stand.
    pub fn root(self) -> &'static str {
        match self {
            Self::Curator | Self::Plain => "/services",
            Self::Dubbo => "/dubbo",
        }
    }

    /// What a node below the root is.
    pub(crate) fn place(self, below: &str) -> Place<'_> {
        let mut parts = below.split('/').filter(|part| !part.is_empty());
        let place = (parts.next(), parts.next(), parts.next(), parts.next());
        match (self, place) {
            (_, (None, ..)) => Place::Above,
            (_, (Some(service), None, ..)) | (Self::Dubbo, (Some(service), Some("providers"), None, _)) => {
                Place::Service(service)
            }
            (Self::Curator | Self::Plain, (Some(service), Some(instance), None, _))
            | (Self::Dubbo, (Some(service), Some("providers"), Some(instance), None)) => {
                Place::Instance(service, instance)
            }
            _ => Place::Elsewhere,
        }
    }

    /// The node below the root whose children are the instances of a service.
    pub(crate) fn instances_of(self, service: &str) -> String {
        match self {
            Self::Curator | Self::Plain => format!("/{service}"),
            Self::Dubbo => format!("/{service}/providers"),
        }
    }

    /// Does the name of a node say all there is?
    pub(crate) fn is_in_name(self) -> bool {
        self == Self::Dubbo
    }

    /// Reads an instance from the name of its node and what is in it.
    pub(crate) fn instance(self, name: &str, data: &[u8]) -> Result<Instance, String> {
        match self {
            Self::Curator => curator::instance(name, data),
            Self::Dubbo => dubbo::instance(name),
            Self::Plain => plain::instance(name, data),
        }
    }

    /// By which people know the node of an instance.
    pub(crate) fn shown(self, node: &str) -> String {
        match self {
            Self::Curator | Self::Plain => node.to_owned(),
            Self::Dubbo => dubbo::shown(node),
        }
    }

    /// What the service is called; names of Java's interfaces have capital letters, and hosts do not.
    pub(crate) fn service_name(self, node: &str) -> String {
        match self {
            Self::Curator | Self::Plain => node.to_owned(),
            Self::Dubbo => node.to_ascii_lowercase(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Layout, Place};

    #[test]
    fn nodes_have_places() {
        for (layout, below, place) in [
            (Layout::Curator, "", Place::Above),
            (Layout::Curator, "/shop", Place::Service("shop")),
            (Layout::Plain, "/shop/1", Place::Instance("shop", "1")),
            (Layout::Curator, "/shop/1/x", Place::Elsewhere),
            (Layout::Dubbo, "/a.B/providers", Place::Service("a.B")),
            (Layout::Dubbo, "/a.B/providers/url", Place::Instance("a.B", "url")),
            (Layout::Dubbo, "/a.B/consumers/url", Place::Elsewhere),
        ] {
            assert_eq!(layout.place(below), place, "{below}");
        }
    }
}
