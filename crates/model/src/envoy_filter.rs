use std::fmt;
use std::sync::Arc;

use pilot_base::Name;

use crate::PolicyTarget;

/// Changes to what proxies are sent, in Envoy's own words.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct EnvoyFilter {
    pub target: PolicyTarget,
    /// Those with smaller numbers are applied first.
    pub priority: i32,
    pub patches: Vec<EnvoyPatch>,
}

/// One change.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EnvoyPatch {
    /// Its place in the list its user wrote.
    pub index: usize,
    pub apply_to: ApplyTo,
    pub context: PatchContext,
    /// A regular expression for the version of a proxy.
    pub proxy_version: Option<Name>,
    /// What a proxy must say about itself.
    pub metadata: Vec<(Name, Name)>,
    pub object: ObjectMatch,
    pub operation: PatchOperation,
    /// Envoy's message, encoded. Which one follows from what it is applied to.
    pub value: Arc<[u8]>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ApplyTo {
    Listener,
    FilterChain,
    NetworkFilter,
    HttpFilter,
    RouteConfiguration,
    VirtualHost,
    HttpRoute,
    Cluster,
    ExtensionConfig,
    Bootstrap,
    ListenerFilter,
}

impl ApplyTo {
    pub fn name(self) -> &'static str {
        match self {
            Self::Listener => "LISTENER",
            Self::FilterChain => "FILTER_CHAIN",
            Self::NetworkFilter => "NETWORK_FILTER",
            Self::HttpFilter => "HTTP_FILTER",
            Self::RouteConfiguration => "ROUTE_CONFIGURATION",
            Self::VirtualHost => "VIRTUAL_HOST",
            Self::HttpRoute => "HTTP_ROUTE",
            Self::Cluster => "CLUSTER",
            Self::ExtensionConfig => "EXTENSION_CONFIG",
            Self::Bootstrap => "BOOTSTRAP",
            Self::ListenerFilter => "LISTENER_FILTER",
        }
    }
}

impl fmt::Display for ApplyTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which side of which proxy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum PatchContext {
    #[default]
    Any,
    SidecarInbound,
    SidecarOutbound,
    Gateway,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PatchOperation {
    Merge,
    /// Like `Merge`, but lists take the place of lists.
    MergeAndReplaceList,
    Add,
    Remove,
    InsertBefore,
    InsertAfter,
    InsertFirst,
    Replace,
}

impl PatchOperation {
    pub fn is_merge(self) -> bool {
        matches!(self, Self::Merge | Self::MergeAndReplaceList)
    }

    pub fn is_insert(self) -> bool {
        matches!(self, Self::InsertBefore | Self::InsertAfter | Self::InsertFirst)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Merge => "MERGE",
            Self::MergeAndReplaceList => "MERGE_AND_REPLACE_LIST",
            Self::Add => "ADD",
            Self::Remove => "REMOVE",
            Self::InsertBefore => "INSERT_BEFORE",
            Self::InsertAfter => "INSERT_AFTER",
            Self::InsertFirst => "INSERT_FIRST",
            Self::Replace => "REPLACE",
        }
    }
}

impl fmt::Display for PatchOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is changed. Empty names and absent numbers match everything.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum ObjectMatch {
    #[default]
    Any,
    Listener(ListenerMatch),
    RouteConfiguration(RouteConfigurationMatch),
    Cluster(ClusterMatch),
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ClusterMatch {
    pub name: Name,
    pub service: Name,
    pub subset: Name,
    pub port: Option<u32>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ListenerMatch {
    pub name: Name,
    pub port: Option<u32>,
    pub listener_filter: Name,
    pub filter_chain: Option<ChainMatch>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ChainMatch {
    pub name: Name,
    pub sni: Name,
    pub transport_protocol: Name,
    /// All of them must be there.
    pub application_protocols: Vec<Name>,
    pub destination_port: Option<u32>,
    pub filter: Option<Name>,
    pub sub_filter: Option<Name>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RouteConfigurationMatch {
    pub name: Name,
    pub port: Option<u32>,
    pub port_name: Name,
    /// `namespace/name`
    pub gateway: Name,
    pub vhost: Option<VirtualHostMatch>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct VirtualHostMatch {
    pub name: Name,
    pub domain: Name,
    pub route: Option<RouteMatch>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RouteMatch {
    pub name: Name,
    pub action: Option<RouteActionKind>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RouteActionKind {
    Route,
    Redirect,
    DirectResponse,
}
