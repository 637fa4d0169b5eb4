use std::collections::BTreeMap;

use pilot_base::Name;

use crate::{PolicyTarget, WorkloadMode};

/// Code that proxies run on traffic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrafficExtension {
    pub target: PolicyTarget,
    pub phase: ExtensionPhase,
    /// The highest comes first; those without one come last.
    pub priority: Option<i32>,
    /// All traffic, if there are none.
    pub matches: Vec<TrafficSelector>,
    pub code: ExtensionCode,
}

/// Before which of Istio's own filters it runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum ExtensionPhase {
    Authn,
    Authz,
    Stats,
    #[default]
    Unspecified,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TrafficSelector {
    pub mode: WorkloadMode,
    /// Every port, if there are none.
    pub ports: Vec<u16>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExtensionCode {
    Lua(Name),
    Wasm(Box<Wasm>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wasm {
    pub url: WasmUrl,
    pub sha256: Name,
    pub pull_policy: Option<PullPolicy>,
    /// The name of a secret in the object's namespace.
    pub pull_secret: Option<Name>,
    /// What the code is told, as the text of a JSON object.
    pub config: Option<Name>,
    pub plugin_name: Name,
    pub fail_strategy: FailStrategy,
    pub env: BTreeMap<Name, Name>,
    /// Variables that the code sees as the proxy does.
    pub host_env: Vec<Name>,
    /// Does it look at connections, and not at requests?
    pub network: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WasmUrl {
    /// A path on the proxy's machine.
    File(Name),
    /// Fetched by the agent.
    Remote(Name),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PullPolicy {
    IfNotPresent,
    Always,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FailStrategy {
    #[default]
    Close,
    Open,
    Reload,
}
