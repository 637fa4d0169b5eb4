//! What is known of namespaces.

use pilot_base::{Labels, Name};
use pilot_incr::Reader;
use pilot_mesh::NetworkMap;
use pilot_model::{ConfigId, Namespace};

use super::inputs::Inputs;

/// Every namespace of Kubernetes has its name as a label.
const NAME: &str = "kubernetes.io/metadata.name";

fn get<'a>(reader: &Reader<'a>, inputs: Inputs, namespace: &Name) -> Option<&'a Namespace> {
    reader.get(&inputs.namespaces, &ConfigId::new(Name::empty(), namespace.clone()))
}

pub(super) fn annotations<'a>(reader: &Reader<'a>, inputs: Inputs, namespace: &Name) -> Option<&'a Labels> {
    get(reader, inputs, namespace).map(|found| &found.annotations)
}

/// Do its proxies ask for clusters when they need them, if it says so?
pub(super) fn on_demand(reader: &Reader<'_>, inputs: Inputs, namespace: &Name) -> Option<bool> {
    get(reader, inputs, namespace)?.on_demand
}

/// Also of a namespace that nobody declared.
pub(super) fn labels(reader: &Reader<'_>, inputs: Inputs, namespace: &Name) -> Labels {
    let declared = get(reader, inputs, namespace).map(|found| found.labels.clone()).unwrap_or_default();
    let name = [(Name::new(NAME), namespace.clone())];
    name.into_iter().chain(declared.iter().map(|(key, value)| (key.clone(), value.clone()))).collect()
}

/// Do services and pods of a namespace count? All of them do, unless the mesh selects some.
pub(super) fn is_discovered(reader: &Reader<'_>, inputs: Inputs, namespace: &Name) -> bool {
    let Some(mesh) = reader.get(&inputs.mesh, &()) else { return false };
    let selectors = &mesh.discovery_selectors;
    if selectors.is_empty() {
        return true;
    }
    let labels = labels(reader, inputs, namespace);
    selectors.iter().any(|selector| selector.selects(&labels))
}

/// Which networks endpoints are part of.
pub(super) fn network_map<'a>(reader: &Reader<'a>, inputs: Inputs) -> Option<NetworkMap<'a>> {
    let mesh = reader.get(&inputs.mesh, &())?;
    Some(NetworkMap {
        networks: reader.get(&inputs.networks, &()),
        home: get(reader, inputs, &mesh.root_namespace).map(|found| &found.labels),
        cluster: &reader.get(&inputs.options, &())?.cluster,
    })
}
