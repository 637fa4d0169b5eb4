use std::fmt;

/// The resource types, in the order in which they are pushed: what is referred to comes before what refers to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TypeUrl {
    Cluster,
    Endpoint,
    Listener,
    Route,
    Secret,
    ExtensionConfig,
    NameTable,
}

impl TypeUrl {
    pub const ALL: [Self; 7] = [
        Self::Cluster,
        Self::Endpoint,
        Self::Listener,
        Self::Route,
        Self::Secret,
        Self::ExtensionConfig,
        Self::NameTable,
    ];

    pub fn parse(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.as_str() == url)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Endpoint => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::Route => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            Self::Secret => "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
            Self::ExtensionConfig => "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
            Self::NameTable => "type.googleapis.com/istio.networking.nds.v1.NameTable",
        }
    }

    /// The short name, as in Istio's metrics and logs.
    pub fn short(self) -> &'static str {
        match self {
            Self::Cluster => "cds",
            Self::Endpoint => "eds",
            Self::Listener => "lds",
            Self::Route => "rds",
            Self::Secret => "sds",
            Self::ExtensionConfig => "ecds",
            Self::NameTable => "nds",
        }
    }

    /// Does a client ask for everything of this type, and does a state-of-the-world answer say what is gone by leaving
    /// it out?
    pub fn is_whole_state(self) -> bool {
        matches!(self, Self::Cluster | Self::Listener | Self::NameTable)
    }

    pub fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for TypeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.short())
    }
}

#[cfg(test)]
mod tests {
    use super::TypeUrl;

    #[test]
    fn urls_are_read_back_and_stand_in_push_order() {
        for (at, t) in TypeUrl::ALL.into_iter().enumerate() {
            assert_eq!(TypeUrl::parse(t.as_str()), Some(t));
            assert_eq!(t.index(), at);
        }
        assert!(TypeUrl::ALL.is_sorted());
        assert_eq!(TypeUrl::parse("type.googleapis.com/nonsense"), None);
    }
}
