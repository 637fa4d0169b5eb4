//! Pods, as others look for them: a proxy by its name, an endpoint by its address.

use std::net::IpAddr;

use pilot_base::{Name, SharedMap};
use pilot_incr::{Graph, Reader, Table};
use pilot_model::{ConfigId, Pod, Proxy};

use super::inputs::Inputs;
use super::namespaces;

#[derive(Clone, Copy)]
pub(super) struct Pods {
    inputs: Inputs,
    /// Those that can be called, by their first address. Who shares the network of its node shares its address too.
    by_address: Table<IpAddr, SharedMap<ConfigId, ()>>,
}

impl Pods {
    pub(super) fn declare(graph: &mut Graph, inputs: Inputs) -> Self {
        let by_address = graph.tally("pods by address", |feeds| {
            feeds.from(&inputs.pods, |id: &ConfigId, pod: &Pod, out| {
                let first = pod.ips.first().filter(|_| pod.ready).and_then(|ip| ip.parse::<IpAddr>().ok());
                first.into_iter().for_each(|ip| out.emit(ip, id.clone(), ()));
            });
        });
        Self { inputs, by_address }
    }

    /// The pod that can be called at an address, in the cluster of an object and in its namespace; the first by name, if
    /// there are several.
    pub(super) fn at<'a>(&self, reader: &Reader<'a>, beside: &ConfigId, ip: IpAddr) -> Option<&'a Pod> {
        let here = |id: &ConfigId| (&id.cluster, &id.namespace) == (&beside.cluster, &beside.namespace);
        let mut found = reader.get(&self.by_address, &ip)?.iter().map(|(id, ())| id);
        reader.get(&self.inputs.pods, found.find(|id| here(id))?)
    }

    /// The pod that a proxy says it is. Its address tells only if that is switched on, because several pods may have it.
    pub(super) fn of<'a>(&self, reader: &Reader<'a>, proxy: &Proxy) -> Option<(ConfigId, &'a Pod)> {
        let cluster = namespaces::cluster_key(reader, self.inputs, &proxy.cluster)?;
        let mut id = ConfigId { cluster, ..ConfigId::new(proxy.namespace.clone(), Name::empty()) };
        if !namespaces::is_discovered(reader, self.inputs, &id) {
            return None;
        }
        let named = proxy.name.strip_suffix(proxy.namespace.as_str()).and_then(|name| name.strip_suffix('.'));
        if let Some(named) = named {
            id.name = Name::new(named);
            if let Some(pod) = reader.get(&self.inputs.pods, &id) {
                return Some((id, pod));
            }
        }
        let options = reader.get(&self.inputs.options, &())?;
        let ip = proxy.ips.first().filter(|_| options.features.pods_by_address)?;
        let pod = self.at(reader, &id, *ip)?;
        Some((id, pod))
    }
}
