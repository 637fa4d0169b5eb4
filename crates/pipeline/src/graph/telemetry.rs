//! Telemetry and extensions by the workloads they are for.

use std::sync::Arc;

use pilot_base::{Name, SharedMap};
use pilot_envoy::{ChainTraits, Settings, wasm_extension};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{
    ChainKind, ExtensionUse, TelemetryScope, TracingPlan, Workload, plugin_extension_id, used_extensions,
};
use pilot_model::{
    Config, ConfigId, Created, ExtensionCode, PolicyTarget, ProviderService, Proxy, Telemetry,
    TrafficExtension, WasmPlugin, WorkloadMode,
};
use pilot_xds::Layer as Resources;

use super::inputs::Inputs;
use super::registry::Registry;

/// The oldest first.
type Order = (Created, Name, Name);

#[derive(Clone, Copy)]
pub(super) struct Telemetries {
    registry: Registry,
    telemetries: Table<Name, SharedMap<Order, Arc<Config<Telemetry>>>>,
    extensions: Table<Name, SharedMap<Order, Arc<Extension>>>,
    /// The code of a namespace's extensions.
    pub(super) code: Table<Name, Resources>,
}

/// A TrafficExtension, or a WasmPlugin that stands for one.
#[derive(PartialEq, Debug)]
struct Extension {
    id: ConfigId,
    spec: TrafficExtension,
}

impl Extension {
    fn order(&self, created: Created) -> Order {
        (created, self.id.name.clone(), self.id.namespace.clone())
    }
}

/// What applies to one side of a workload.
pub(super) struct Side {
    pub(super) chain: ChainTraits,
    pub(super) tracing: TracingPlan,
    /// Those that look at requests.
    pub(super) extensions: Vec<ExtensionUse>,
}

impl Telemetries {
    pub(super) fn declare(graph: &mut Graph, inputs: Inputs, registry: Registry) -> Self {
        let telemetries = graph.group("telemetries by namespace", |feeds| {
            feeds.from(&inputs.telemetries, |id: &ConfigId, telemetry, out| {
                out.emit(id.namespace.clone(), telemetry.order(), Arc::clone(telemetry));
            });
        });
        let plugin = |id: &ConfigId, config: &Config<WasmPlugin>| Extension {
            id: plugin_extension_id(id),
            spec: config.spec.0.clone(),
        };
        let extensions = graph.group("extensions by namespace", |feeds| {
            feeds.from(&inputs.traffic_extensions, |id: &ConfigId, config, out| {
                let extension = Extension { id: id.clone(), spec: config.spec.clone() };
                out.emit(id.namespace.clone(), extension.order(config.created), Arc::new(extension));
            });
            feeds.from(&inputs.wasm_plugins, move |id: &ConfigId, config, out| {
                let extension = plugin(id, config);
                out.emit(id.namespace.clone(), extension.order(config.created), Arc::new(extension));
            });
        });
        let code = graph.group("extension code by namespace", |feeds| {
            feeds.from(&inputs.traffic_extensions, |id: &ConfigId, config, out| {
                if let ExtensionCode::Wasm(wasm) = &config.spec.code {
                    let code = wasm_extension(id, wasm);
                    out.emit(id.namespace.clone(), code.name().clone(), Some(code));
                }
            });
            feeds.from(&inputs.wasm_plugins, |id: &ConfigId, config, out| {
                if let ExtensionCode::Wasm(wasm) = &config.spec.0.code {
                    let code = wasm_extension(&plugin_extension_id(id), wasm);
                    out.emit(id.namespace.clone(), code.name().clone(), Some(code));
                }
            });
        });
        Self { registry, telemetries, extensions, code }
    }

    /// What applies to a proxy, as a client and as a server.
    pub(super) fn sides(&self, proxy: &Proxy, settings: Settings<'_>, reader: &Reader<'_>) -> [Side; 2] {
        let workload = Workload {
            namespace: &proxy.namespace,
            labels: &proxy.labels,
            gateways_are_selected: settings.options.features.gateways_are_selected,
        };
        let root = &settings.mesh.root_namespace;
        let is_known = |service: &ProviderService| self.is_known(service, reader);
        let scope = TelemetryScope {
            levels: self.levels(workload, root, reader),
            mesh: settings.mesh,
            is_known: &is_known,
        };
        let extensions = self.extensions(workload, root, reader);
        let used = |side, kind| used_extensions(extensions.iter().map(|e| (&e.id, &e.spec)), side, kind);
        [WorkloadMode::Client, WorkloadMode::Server].map(|side| Side {
            chain: ChainTraits {
                logs: scope.access_logs(side),
                stats: scope.metrics(side),
                extensions: used(side, ChainKind::Network),
            },
            tracing: scope.tracing(side),
            extensions: used(side, ChainKind::Http),
        })
    }

    /// The first object for all of the mesh, the first for all of the namespace, and all for the workload.
    fn levels<'a>(&self, workload: Workload<'_>, root: &Name, reader: &Reader<'a>) -> Vec<&'a Telemetry> {
        let of = |namespace: &Name| reader.get(&self.telemetries, namespace).into_iter().flatten();
        let for_all = |namespace: &Name| {
            of(namespace).map(|(_, telemetry)| telemetry).find(|t| is_for_all(&t.spec.target))
        };
        let own = Some(workload.namespace).filter(|own| *own != root);
        let general = for_all(root).into_iter().chain(own.and_then(for_all));
        let special = of(workload.namespace).map(|(_, telemetry)| telemetry).filter(|telemetry| {
            let target = &telemetry.spec.target;
            !is_for_all(target) && workload.is_target(&telemetry.id, target)
        });
        general.chain(special).map(|telemetry| &telemetry.spec).collect()
    }

    fn extensions<'a>(
        &self,
        workload: Workload<'_>,
        root: &Name,
        reader: &Reader<'a>,
    ) -> Vec<&'a Arc<Extension>> {
        let namespaces = [Some(workload.namespace), Some(root).filter(|root| *root != workload.namespace)];
        let all = namespaces.into_iter().flatten().flat_map(|ns| reader.get(&self.extensions, ns));
        let all = all.flatten().map(|(_, extension)| extension);
        all.filter(|extension| workload.is_target(&extension.id, &extension.spec.target)).collect()
    }

    /// Is there such a service? Without a namespace there must be only one of its name.
    fn is_known(&self, service: &ProviderService, reader: &Reader<'_>) -> bool {
        let services = self.registry.services(reader, &service.host);
        let mut namespaces: Vec<&Name> = services.iter().map(|service| &service.namespace).collect();
        namespaces.sort();
        namespaces.dedup();
        match &service.namespace {
            Some(namespace) => namespaces.contains(&namespace),
            None => namespaces.len() == 1,
        }
    }
}

fn is_for_all(target: &PolicyTarget) -> bool {
    target.selector.as_ref().is_none_or(|selector| selector.is_empty()) && target.refs.is_empty()
}

/// By OpenTelemetry's conventions a service is called by an annotation, a label, its owner or its pod, whichever is
/// there first.
pub(super) fn otel_service(proxy: &Proxy) -> Name {
    let label = |key: &str| proxy.labels.get(key).cloned().unwrap_or_default();
    let pod = proxy.name.split_once('.').map(|(pod, _)| pod).unwrap_or_default();
    let candidates = [
        proxy.otel_annotation.clone(),
        label("app.kubernetes.io/instance"),
        label("app.kubernetes.io/name"),
        proxy.workload_name.clone(),
        Name::new(pod),
        proxy.container.clone(),
    ];
    candidates.into_iter().find(|name| !name.is_empty()).unwrap_or_else(|| Name::new("unknown_service"))
}
