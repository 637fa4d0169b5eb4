//! Which EnvoyFilters are for a proxy, and in which order they are applied.

use std::cmp::Reverse;
use std::sync::Arc;

use pilot_base::{Name, SharedMap};
use pilot_envoy::{Patch, ProxyPatches, Settings};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::Workload;
use pilot_model::{ConfigId, Created, PolicyTarget, Proxy};
use regex::Regex;

use super::inputs::Inputs;

/// An EnvoyFilter, ready to be looked at for each proxy.
struct Filter {
    id: ConfigId,
    created: Created,
    priority: i32,
    target: PolicyTarget,
    patches: Vec<ForProxy>,
}

/// A patch, and which proxies it is for.
struct ForProxy {
    patch: Arc<Patch>,
    version: Option<Regex>,
}

impl PartialEq for Filter {
    fn eq(&self, other: &Self) -> bool {
        let patches = |filter: &Self| filter.patches.iter().map(|p| Arc::clone(&p.patch)).collect::<Vec<_>>();
        (&self.id, self.created, self.priority, &self.target)
            == (&other.id, other.created, other.priority, &other.target)
            && patches(self) == patches(other)
    }
}

#[derive(Clone, Copy)]
pub(super) struct EnvoyFilters {
    by_namespace: Table<Name, SharedMap<Name, Arc<Filter>>>,
}

impl EnvoyFilters {
    pub(super) fn declare(graph: &mut Graph, inputs: Inputs) -> Self {
        let filters = graph.map("prepared envoy filters", &inputs.envoy_filters, move |id, reader| {
            let config = reader.get(&inputs.envoy_filters, id)?;
            let patches = config.spec.patches.iter().map(|patch| ForProxy {
                // It was checked when it was read.
                version: patch.proxy_version.as_ref().and_then(|pattern| Regex::new(pattern).ok()),
                patch: Arc::new(Patch::new(id.clone(), patch.clone())),
            });
            Some(Arc::new(Filter {
                id: id.clone(),
                created: config.created,
                priority: config.spec.priority,
                target: config.spec.target.clone(),
                patches: patches.collect(),
            }))
        });
        let by_namespace = graph.group("envoy filters by namespace", |feeds| {
            feeds.from(&filters, |id: &ConfigId, filter: &Arc<Filter>, out| {
                out.emit(id.namespace.clone(), id.name.clone(), Arc::clone(filter));
            });
        });
        Self { by_namespace }
    }

    /// Everything that EnvoyFilters change for a proxy: those of the root namespace and of its own.
    pub(super) fn of(
        &self,
        proxy: &Proxy,
        settings: Settings<'_>,
        reader: &Reader<'_>,
    ) -> Option<Arc<ProxyPatches>> {
        let root = &settings.mesh.root_namespace;
        let namespaces = [Some(root), Some(&proxy.namespace).filter(|own| *own != root)];
        let workload = Workload {
            namespace: &proxy.namespace,
            labels: &proxy.labels,
            gateways_are_selected: settings.options.features.gateways_are_selected,
        };
        let mut filters: Vec<&Filter> = namespaces
            .into_iter()
            .flatten()
            .flat_map(|namespace| reader.get(&self.by_namespace, namespace).into_iter().flatten())
            .map(|(_, filter)| &**filter)
            .filter(|filter| workload.is_target(&filter.id, &filter.target))
            .collect();
        filters.sort_by_key(|filter| {
            let is_root = filter.id.namespace == *root;
            let name = format!("{}.{}", filter.id.name, filter.id.namespace);
            (filter.priority, Reverse(is_root), filter.created, name)
        });
        let patches = filters.iter().flat_map(|filter| &filter.patches);
        let patches: Vec<Arc<Patch>> =
            patches.filter(|patch| patch.is_for(proxy)).map(|patch| Arc::clone(&patch.patch)).collect();
        let patches = ProxyPatches::new(proxy.kind, &patches);
        (patches != ProxyPatches::default()).then(|| Arc::new(patches))
    }
}

impl ForProxy {
    fn is_for(&self, proxy: &Proxy) -> bool {
        let version = &proxy.version_text;
        let is_version = self.version.as_ref().is_none_or(|re| !version.is_empty() && re.is_match(version));
        is_version
            && self.patch.spec.metadata.iter().all(|(key, value)| proxy.metadata.get(key) == Some(value))
    }
}
