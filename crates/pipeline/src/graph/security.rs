//! Policies by the workloads they are for, and what they amount to there.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::{Host, Name, SharedMap};
use pilot_envoy::{PolicyTraits, SecurityFilters, SecurityPolicies, security_filters};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{NamespacePeers, Workload};
use pilot_model::{
    AuthorizationPolicy, Config, ConfigId, Created, Endpoint, KeySource, MtlsMode, PeerAuthentication,
    PolicyTarget, Proxy, RequestAuthentication,
};

use super::inputs::Inputs;
use super::registry::Registry;

/// The oldest first.
type Order = (Created, Name, Name);
type ByNamespace<S> = Table<Name, SharedMap<Order, Arc<Config<S>>>>;

#[derive(Clone, Copy)]
pub(super) struct Policies {
    inputs: Inputs,
    peers: ByNamespace<PeerAuthentication>,
    requests: ByNamespace<RequestAuthentication>,
    authorization: ByNamespace<AuthorizationPolicy>,
}

impl Policies {
    pub(super) fn declare(graph: &mut Graph, inputs: Inputs) -> Self {
        macro_rules! by_namespace {
            ($name:literal, $input:expr) => {
                graph.group($name, |feeds| {
                    feeds.from(&$input, |id: &ConfigId, policy, out| {
                        out.emit(id.namespace.clone(), policy.order(), Arc::clone(policy));
                    });
                })
            };
        }
        Self {
            inputs,
            peers: by_namespace!("peer authentications by namespace", inputs.peer_authentications),
            requests: by_namespace!("request authentications by namespace", inputs.request_authentications),
            authorization: by_namespace!(
                "authorization policies by namespace",
                inputs.authorization_policies
            ),
        }
    }

    /// Who is let in to the workloads of a namespace.
    pub(super) fn peers<'a>(&self, reader: &Reader<'a>, namespace: &Name) -> NamespacePeers<'a> {
        let root = reader.get(&self.inputs.mesh, &()).map(|mesh| &mesh.root_namespace);
        let of = |namespace: Option<&Name>| {
            let policies = namespace.and_then(|namespace| reader.get(&self.peers, namespace));
            policies.into_iter().flatten().map(|(_, policy)| &policy.spec)
        };
        NamespacePeers::new(of(root), of(Some(namespace).filter(|own| root != Some(*own))))
    }

    /// The same for endpoints of any namespace, each namespace looked at once.
    pub(super) fn peer_index<'r, 'a>(&self, reader: &'r Reader<'a>) -> PeerIndex<'r, 'a> {
        PeerIndex { policies: *self, reader, known: RefCell::default() }
    }

    /// The policies that shape the filters of a proxy's listeners, by name.
    pub(super) fn traits(&self, proxy: &Proxy, reader: &Reader<'_>) -> Option<PolicyTraits> {
        let settings = self.inputs.settings(reader)?;
        let workload = Workload {
            namespace: &proxy.namespace,
            labels: &proxy.labels,
            gateways_are_selected: settings.options.features.gateways_are_selected,
        };
        let (own, root) = (&proxy.namespace, &settings.mesh.root_namespace);
        Some(PolicyTraits {
            kind: proxy.kind,
            requests: applying(&self.requests, [own, root], workload, |policy| &policy.target, reader),
            authorization: applying(
                &self.authorization,
                [root, own],
                workload,
                |policy| &policy.target,
                reader,
            ),
        })
    }

    /// The filters, once for all workloads with the same policies.
    pub(super) fn filters(
        self,
        graph: &mut Graph,
        askers: &Table<Arc<PolicyTraits>, super::audience::Askers>,
        registry: Registry,
    ) -> Table<Arc<PolicyTraits>, Arc<SecurityFilters>> {
        graph.map("security filters", askers, move |traits: &Arc<PolicyTraits>, reader| {
            let settings = self.inputs.settings(reader)?;
            let is_known = |namespace: Option<&Name>, host: &Host| registry.is_known(reader, namespace, host);
            let fetched = |source: &KeySource| {
                reader.get(&self.inputs.key_sets, source).and_then(|set| set.keys.clone())
            };
            let requests = traits.requests.iter();
            let authorization = traits.authorization.iter();
            let policies = SecurityPolicies {
                kind: traits.kind,
                requests: requests
                    .filter_map(|id| reader.get(&self.inputs.request_authentications, id))
                    .map(|policy| &**policy)
                    .collect(),
                authorization: authorization
                    .filter_map(|id| reader.get(&self.inputs.authorization_policies, id))
                    .map(|policy| &**policy)
                    .collect(),
                is_known: &is_known,
                fetched: &fetched,
            };
            Some(Arc::new(security_filters(&policies, settings)))
        })
    }
}

/// Who is let in to endpoints.
pub(super) struct PeerIndex<'r, 'a> {
    policies: Policies,
    reader: &'r Reader<'a>,
    known: RefCell<BTreeMap<Name, NamespacePeers<'a>>>,
}

impl PeerIndex<'_, '_> {
    pub(super) fn takes_mtls(&self, endpoint: &Endpoint) -> bool {
        let mut known = self.known.borrow_mut();
        let namespace = &endpoint.namespace;
        let peers =
            known.entry(namespace.clone()).or_insert_with(|| self.policies.peers(self.reader, namespace));
        peers.modes(&endpoint.labels).at(endpoint.port) != MtlsMode::Disable
    }
}

/// Those of the namespaces that are for the workload. The same namespace twice is one.
fn applying<S>(
    table: &ByNamespace<S>,
    namespaces: [&Name; 2],
    workload: Workload<'_>,
    target: impl Fn(&S) -> &PolicyTarget,
    reader: &Reader<'_>,
) -> Vec<ConfigId>
where
    S: Clone + PartialEq + Send + Sync + 'static,
{
    let [first, second] = namespaces;
    let distinct = [Some(first), Some(second).filter(|second| *second != first)];
    let policies = distinct.into_iter().flatten().filter_map(|namespace| reader.get(table, namespace));
    let all = policies.flatten().map(|(_, policy)| policy);
    all.filter(|policy| workload.is_target(&policy.id, target(&policy.spec)))
        .map(|policy| policy.id.clone())
        .collect()
}
