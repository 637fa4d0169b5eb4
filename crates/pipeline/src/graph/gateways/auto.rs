//! Services that gateways between networks reach by the names of their clusters.

use std::sync::Arc;

use pilot_base::{Host, Name, SharedMap};
use pilot_envoy::{AutoChain, AutoPassthrough, auto_chains};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::Layer;
use pilot_xds::{ChildMap, Children, Summary};

use super::ListenerAsker;
use crate::graph::audience::Audiences;
use crate::graph::layered::{Family, Overlay};
use crate::graph::plans::Plans;

type Asker = (Layer, Arc<AutoPassthrough>);

/// The chains of all services, for everyone and where a namespace sees them differently.
#[derive(Clone, Copy)]
pub(super) struct AutoChains {
    chains: Table<Asker, ChildMap>,
    sizes: Table<Asker, Summary>,
}

impl AutoChains {
    pub(super) fn declare(graph: &mut Graph, plans: Plans, audiences: Audiences) -> Self {
        let inputs = plans.inputs;
        let askers: Table<Asker, SharedMap<(), ()>> = graph.tally("auto passthrough askers", |feeds| {
            feeds.from(&audiences.gateway_listener, |asker: &ListenerAsker, _, out| {
                if let Some(auto) = wanted(asker) {
                    out.emit((Layer::Base, Arc::clone(&auto)), (), ());
                    out.emit((Layer::Namespace(asker.0.clone()), auto), (), ());
                }
            });
        });
        let family = Family {
            names: ["auto chain keys", "auto chains", "own auto chain keys", "own auto chains"],
            shared: &plans.shared,
            own: &plans.own,
        };
        let chains = family.declare(graph, &askers, move |(layer, host, auto), reader| {
            let plan = plans.get(layer, host, reader)?;
            Some(auto_chains(plan, auto, inputs.settings(reader)?))
        });
        let chains: Table<Asker, ChildMap> = graph.group("auto chains by layer", |feeds| {
            feeds.from(
                &chains.shared,
                |(layer, _, auto): &(Layer, Host, _), chains: &Vec<AutoChain>, out| {
                    for chain in chains {
                        let asker = (layer.clone(), Arc::clone(auto));
                        out.emit(asker, chain.key.clone(), Some(chain.chain.clone()));
                    }
                },
            );
            feeds.from(
                &chains.own,
                |(layer, _, auto): &(Layer, Host, _), chains: &Overlay<AutoChain>, out| {
                    for (key, chain) in chains {
                        let asker = (layer.clone(), Arc::clone(auto));
                        out.emit(asker, key.clone(), chain.as_ref().map(|chain| chain.chain.clone()));
                    }
                },
            );
        });
        let sizes = graph.map("auto chain sizes", &chains, move |asker, reader| {
            Some(Summary::of(reader.get(&chains, asker)?))
        });
        Self { chains, sizes }
    }

    /// What an asker's listener is made of.
    pub(super) fn children(&self, asker: &ListenerAsker, reader: &Reader<'_>) -> Children {
        let none = ChildMap::new();
        let Some(auto) = wanted(asker) else {
            return Children::new(none.clone(), Summary::default(), none, None);
        };
        let base: Asker = (Layer::Base, Arc::clone(&auto));
        let namespace: Name = asker.0.clone();
        let own = reader.get(&self.chains, &(Layer::Namespace(namespace), auto)).unwrap_or(&none);
        let shared = reader.get(&self.chains, &base).unwrap_or(&none);
        let summary = reader.get(&self.sizes, &base).copied().unwrap_or_default();
        Children::new(shared.clone(), summary, own.clone(), None)
    }
}

fn wanted((_, set, traits, ..): &ListenerAsker) -> Option<Arc<AutoPassthrough>> {
    let hosts = set.auto_hosts.clone();
    let (idle_timeout, chain) = (traits.idle_timeout, Arc::clone(&traits.chain));
    let auto = AutoPassthrough { hosts, idle_timeout, chain };
    (!auto.hosts.is_empty()).then(|| Arc::new(auto))
}
