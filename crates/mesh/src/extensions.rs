//! Code of the user's in the filter chains of a workload.

use pilot_base::Name;
use pilot_model::{ConfigId, ExtensionCode, ExtensionPhase, TrafficExtension, WorkloadMode};

/// An extension, as far as a filter chain on one side of a workload is concerned.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExtensionUse {
    pub name: Name,
    pub phase: ExtensionPhase,
    /// Every port, if there are none.
    pub ports: Vec<u16>,
    pub code: UsedCode,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum UsedCode {
    Lua(Name),
    /// The code itself is asked for by the name of the extension.
    Wasm,
}

/// What a filter chain looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChainKind {
    Http,
    Network,
}

/// What an extension's resource and filters are called.
pub fn extension_name(id: &ConfigId) -> Name {
    Name::from(format!("extensions.istio.io/trafficextension/{}.{}", id.namespace, id.name))
}

/// A WasmPlugin is a TrafficExtension by another name, one that no real one can have.
pub fn plugin_extension_id(id: &ConfigId) -> ConfigId {
    ConfigId::new(id.namespace.clone(), format!("{}~istio-translated-wasmplugin", id.name))
}

impl ExtensionUse {
    pub fn applies_at(&self, port: u16) -> bool {
        self.ports.is_empty() || self.ports.contains(&port)
    }
}

/// The extensions on one side, in the order in which they run: by phase, and the highest priority first.
pub fn used_extensions<'a>(
    extensions: impl Iterator<Item = (&'a ConfigId, &'a TrafficExtension)>,
    side: WorkloadMode,
    kind: ChainKind,
) -> Vec<ExtensionUse> {
    let mut found: Vec<(&ConfigId, &TrafficExtension, Vec<u16>)> = Vec::new();
    for (id, extension) in extensions {
        let network = matches!(&extension.code, ExtensionCode::Wasm(wasm) if wasm.network);
        if network != (kind == ChainKind::Network) {
            continue;
        }
        if let Some(ports) = ports(extension, side) {
            found.push((id, extension, ports));
        }
    }
    found.sort_by_key(|(_, extension, _)| {
        (extension.phase, std::cmp::Reverse(extension.priority.unwrap_or(i32::MIN)))
    });
    let one = |(id, extension, ports): (&ConfigId, &TrafficExtension, Vec<u16>)| ExtensionUse {
        name: extension_name(id),
        phase: extension.phase,
        ports,
        code: match &extension.code {
            ExtensionCode::Lua(code) => UsedCode::Lua(code.clone()),
            ExtensionCode::Wasm(_) => UsedCode::Wasm,
        },
    };
    found.into_iter().map(one).collect()
}

/// At which ports it runs on a side; at all, if there are none. Nothing, if it does not run there.
fn ports(extension: &TrafficExtension, side: WorkloadMode) -> Option<Vec<u16>> {
    if extension.matches.is_empty() {
        return Some(Vec::new());
    }
    let here = || extension.matches.iter().filter(|selector| selector.mode.covers(side));
    here().next()?;
    if here().any(|selector| selector.ports.is_empty()) {
        return Some(Vec::new());
    }
    let mut ports: Vec<u16> = here().flat_map(|selector| selector.ports.iter().copied()).collect();
    ports.sort_unstable();
    ports.dedup();
    Some(ports)
}

#[cfg(test)]
mod tests {
    use super::{ChainKind, used_extensions};
    use pilot_base::Name;
    use pilot_model::{
        ConfigId, ExtensionCode, ExtensionPhase, PolicyTarget, TrafficExtension, TrafficSelector,
        WorkloadMode,
    };

    fn lua(phase: ExtensionPhase, priority: Option<i32>, matches: Vec<TrafficSelector>) -> TrafficExtension {
        let code = ExtensionCode::Lua(Name::new("x"));
        TrafficExtension { target: PolicyTarget::default(), phase, priority, matches, code }
    }

    #[test]
    fn extensions_run_by_phase_and_priority_where_they_match() {
        let only_server = TrafficSelector { mode: WorkloadMode::Server, ports: vec![80] };
        let all = [
            ("a", lua(ExtensionPhase::Unspecified, Some(1), vec![])),
            ("b", lua(ExtensionPhase::Unspecified, Some(2), vec![])),
            ("c", lua(ExtensionPhase::Stats, None, vec![])),
            ("d", lua(ExtensionPhase::Authn, None, vec![only_server])),
        ]
        .map(|(name, extension)| (ConfigId::new("ns", name), extension));
        let names = |side| {
            let used = used_extensions(all.iter().map(|(id, e)| (id, e)), side, ChainKind::Http);
            used.iter().map(|u| u.name.rsplit('.').next().unwrap_or_default().to_owned()).collect::<String>()
        };
        assert_eq!(names(WorkloadMode::Server), "dcba");
        assert_eq!(names(WorkloadMode::Client), "cba");
    }
}
