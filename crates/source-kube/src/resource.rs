//! What is listed and watched: which kinds, where they stand in the API, and which of them.

use std::fmt::Write as _;

use pilot_base::Name;
use pilot_model::Kind;

/// A collection of objects in the API.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Resource {
    /// Empty for the core group.
    pub group: Name,
    pub version: Name,
    pub plural: Name,
    /// Only of this namespace; of all if there is none.
    pub namespace: Option<Name>,
    /// Only with such labels.
    pub labels: Option<Name>,
    /// Only with such fields.
    pub fields: Option<Name>,
    pub content: Content,
}

/// How much of each object is asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Content {
    Whole,
    Metadata,
}

impl Content {
    pub(crate) fn of_list(self) -> &'static str {
        match self {
            Self::Whole => crate::client::JSON,
            Self::Metadata => "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        }
    }

    pub(crate) fn of_watch(self) -> &'static str {
        match self {
            Self::Whole => crate::client::JSON,
            Self::Metadata => "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        }
    }
}

impl Resource {
    pub fn new(group: &str, version: &str, plural: &str) -> Self {
        Self {
            group: Name::new(group),
            version: Name::new(version),
            plural: Name::new(plural),
            namespace: None,
            labels: None,
            fields: None,
            content: Content::Whole,
        }
    }

    /// `/apis/networking.istio.io/v1/namespaces/shop/virtualservices`
    pub fn path(&self) -> String {
        let mut path = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        // Writing to a string cannot fail.
        if let Some(namespace) = &self.namespace {
            let _ = write!(path, "/namespaces/{namespace}");
        }
        let _ = write!(path, "/{}", self.plural);
        path
    }

    /// One of them.
    pub fn object(&self, name: &str) -> String {
        format!("{}/{name}", self.path())
    }

    /// The path with a query: what belongs to the resource, and what is given.
    pub(crate) fn query(&self, parameters: &[(&str, &str)]) -> String {
        let own = [("labelSelector", &self.labels), ("fieldSelector", &self.fields)];
        let own = own.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?.as_str())));
        let mut path = self.path();
        for (i, (key, value)) in own.chain(parameters.iter().copied()).enumerate() {
            let mark = if i == 0 { '?' } else { '&' };
            let _ = write!(path, "{mark}{key}={}", escaped(value));
        }
        path
    }

    /// How people call it, as in a rule of RBAC.
    pub fn name(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_string()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        // Writing to a string cannot fail.
        let _ = if plain { write!(out, "{}", char::from(byte)) } else { write!(out, "%{byte:02X}") };
    }
    out
}

/// Kubernetes' own kinds, of which services are made.
pub(crate) const PLATFORM: [Kind; 6] =
    [Kind::Namespace, Kind::Node, Kind::Service, Kind::Pod, Kind::EndpointSlice, Kind::Secret];

/// Without these it is better to serve nobody: whom there is to call, and who may.
pub(crate) const VITAL: [Kind; 5] = [
    Kind::Service,
    Kind::EndpointSlice,
    Kind::AuthorizationPolicy,
    Kind::PeerAuthentication,
    Kind::RequestAuthentication,
];

/// Kinds that a CRD defines: the kind, its group and its plural.
pub const RULES: [(Kind, &str, &str); 15] = [
    (Kind::VirtualService, "networking.istio.io", "virtualservices"),
    (Kind::DestinationRule, "networking.istio.io", "destinationrules"),
    (Kind::ServiceEntry, "networking.istio.io", "serviceentries"),
    (Kind::WorkloadEntry, "networking.istio.io", "workloadentries"),
    (Kind::Sidecar, "networking.istio.io", "sidecars"),
    (Kind::Gateway, "networking.istio.io", "gateways"),
    (Kind::WorkloadGroup, "networking.istio.io", "workloadgroups"),
    (Kind::EnvoyFilter, "networking.istio.io", "envoyfilters"),
    (Kind::ProxyConfig, "networking.istio.io", "proxyconfigs"),
    (Kind::AuthorizationPolicy, "security.istio.io", "authorizationpolicies"),
    (Kind::PeerAuthentication, "security.istio.io", "peerauthentications"),
    (Kind::RequestAuthentication, "security.istio.io", "requestauthentications"),
    (Kind::Telemetry, "telemetry.istio.io", "telemetries"),
    (Kind::WasmPlugin, "extensions.istio.io", "wasmplugins"),
    (Kind::TrafficExtension, "extensions.istio.io", "trafficextensions"),
];

/// Where one of Kubernetes' own kinds stands.
pub(crate) fn platform(kind: Kind) -> Resource {
    match kind {
        Kind::EndpointSlice => Resource::new("discovery.k8s.io", "v1", "endpointslices"),
        Kind::Node => Resource::new("", "v1", "nodes"),
        Kind::Namespace => Resource::new("", "v1", "namespaces"),
        // A pod that has ended serves nobody, and there may be very many of them.
        Kind::Pod => {
            let fields = Some(Name::new("status.phase!=Succeeded,status.phase!=Failed"));
            Resource { fields, ..Resource::new("", "v1", "pods") }
        }
        // Those of Helm and tokens of accounts are large, many, and for nobody else.
        Kind::Secret => {
            let fields =
                Some(Name::new("type!=helm.sh/release.v1,type!=kubernetes.io/service-account-token"));
            Resource { fields, ..Resource::new("", "v1", "secrets") }
        }
        _ => Resource::new("", "v1", "services"),
    }
}

#[cfg(test)]
mod tests {
    use pilot_base::Name;
    use pilot_model::Kind;

    use super::{Resource, platform};

    #[test]
    fn paths_are_those_of_the_api() {
        let mut rules = Resource::new("networking.istio.io", "v1", "virtualservices");
        assert_eq!(rules.path(), "/apis/networking.istio.io/v1/virtualservices");
        rules.namespace = Some(Name::new("shop"));
        assert_eq!(rules.object("a"), "/apis/networking.istio.io/v1/namespaces/shop/virtualservices/a");
        assert_eq!(rules.name(), "virtualservices.networking.istio.io");
        let pods = platform(Kind::Pod).query(&[("limit", "500")]);
        assert_eq!(
            pods,
            "/api/v1/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed&limit=500"
        );
    }
}
