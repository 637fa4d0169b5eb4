//! What is known of namespaces.

use pilot_base::{Labels, Name};
use pilot_incr::Reader;
use pilot_mesh::NetworkMap;
use pilot_model::{ConfigId, Namespace};

use super::inputs::Inputs;

/// Every namespace of Kubernetes has its name as a label.
const NAME: &str = "kubernetes.io/metadata.name";

/// A namespace of the cluster that we belong to.
fn get<'a>(reader: &Reader<'a>, inputs: Inputs, namespace: &Name) -> Option<&'a Namespace> {
    reader.get(&inputs.namespaces, &ConfigId::new(Name::empty(), namespace.clone()))
}

/// The namespace that an object is in.
fn around<'a>(reader: &Reader<'a>, inputs: Inputs, id: &ConfigId) -> Option<&'a Namespace> {
    reader.get(&inputs.namespaces, &id.beside(Name::empty(), id.namespace.clone()))
}

/// The cluster that an object is in, by its name.
pub(super) fn cluster_of<'a>(reader: &Reader<'a>, inputs: Inputs, id: &'a ConfigId) -> Option<&'a Name> {
    let own = &reader.get(&inputs.options, &())?.cluster;
    Some(if id.cluster.is_empty() { own } else { &id.cluster })
}

/// What stands for a cluster in the names of objects: nothing for the one that we belong to, and for one that is not said.
pub(super) fn cluster_key(reader: &Reader<'_>, inputs: Inputs, cluster: &Name) -> Option<Name> {
    let own = &reader.get(&inputs.options, &())?.cluster;
    Some(if cluster == own { Name::empty() } else { cluster.clone() })
}

pub(super) fn annotations<'a>(reader: &Reader<'a>, inputs: Inputs, id: &ConfigId) -> Option<&'a Labels> {
    around(reader, inputs, id).map(|found| &found.annotations)
}

/// Do its proxies ask for clusters when they need them, if it says so?
pub(super) fn on_demand(reader: &Reader<'_>, inputs: Inputs, namespace: &Name) -> Option<bool> {
    get(reader, inputs, namespace)?.on_demand
}

/// Also of a namespace that nobody declared.
pub(super) fn labels(reader: &Reader<'_>, inputs: Inputs, id: &ConfigId) -> Labels {
    let declared = around(reader, inputs, id).map(|found| found.labels.clone()).unwrap_or_default();
    let name = [(Name::new(NAME), id.namespace.clone())];
    name.into_iter().chain(declared.iter().map(|(key, value)| (key.clone(), value.clone()))).collect()
}

/// Does a service, a pod or a slice count? All of them do, unless the mesh selects some namespaces.
pub(super) fn is_discovered(reader: &Reader<'_>, inputs: Inputs, id: &ConfigId) -> bool {
    let Some(mesh) = reader.get(&inputs.mesh, &()) else { return false };
    let selectors = &mesh.discovery_selectors;
    if selectors.is_empty() {
        return true;
    }
    let labels = labels(reader, inputs, id);
    selectors.iter().any(|selector| selector.selects(&labels))
}

/// Which networks the endpoints of a cluster are part of. `id` is one of its objects.
pub(super) fn network_map<'a>(
    reader: &Reader<'a>,
    inputs: Inputs,
    id: &'a ConfigId,
) -> Option<NetworkMap<'a>> {
    let options = reader.get(&inputs.options, &())?;
    // The servers of all clusters are in namespaces of one name, which need not be that of the mesh's rules.
    let home = id.beside(Name::empty(), options.namespace.clone());
    Some(NetworkMap {
        networks: reader.get(&inputs.networks, &()),
        home: reader.get(&inputs.namespaces, &home).map(|found| &found.labels),
        cluster: cluster_of(reader, inputs, id)?,
    })
}
