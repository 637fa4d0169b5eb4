use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use pilot_envoy_api::envoy::config::cluster::v3::Cluster;
use pilot_envoy_api::envoy::config::endpoint::v3::ClusterLoadAssignment;
use pilot_envoy_api::envoy::config::listener::v3::Listener;
use pilot_envoy_api::envoy::config::route::v3::RouteConfiguration;
use pilot_xds::{Manifests, TypeUrl};
use prost::Message;

/// The configuration that a proxy holds, read as the proxy reads it.
#[derive(Default, Debug)]
pub struct Snapshot {
    pub clusters: BTreeMap<String, Cluster>,
    pub endpoints: BTreeMap<String, ClusterLoadAssignment>,
    pub listeners: BTreeMap<String, Listener>,
    pub routes: BTreeMap<String, RouteConfiguration>,
    /// Clusters that the proxy does not have until a request needs them.
    pub on_demand: BTreeSet<String>,
    /// Endpoints that the proxy leaves out for a while, by cluster.
    pub ejected: BTreeSet<(String, SocketAddr)>,
}

impl Snapshot {
    pub fn of(manifests: &Manifests) -> Result<Self, String> {
        let clusters = manifests.of(TypeUrl::Cluster);
        let names = clusters.iter().map(|resource| resource.name());
        let on_demand = names.filter(|name| !clusters.is_at_once(name)).map(ToString::to_string).collect();
        Ok(Self {
            on_demand,
            clusters: read(manifests, TypeUrl::Cluster)?,
            endpoints: read(manifests, TypeUrl::Endpoint)?,
            listeners: read(manifests, TypeUrl::Listener)?,
            routes: read(manifests, TypeUrl::Route)?,
            ejected: BTreeSet::new(),
        })
    }
}

fn read<M: Message + Default>(manifests: &Manifests, t: TypeUrl) -> Result<BTreeMap<String, M>, String> {
    let decode = |name: &str, bytes: Vec<u8>| {
        M::decode(bytes.as_slice()).map_err(|error| format!("{t} {name} cannot be read: {error}"))
    };
    manifests.of(t).iter().map(|r| Ok((r.name().to_string(), decode(r.name(), r.message())?))).collect()
}
