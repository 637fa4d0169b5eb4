//! A pipeline that is told a world as text, and what it sends to one proxy, in words.
#![allow(dead_code, reason = "each suite asks for some of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilot_base::{Labels, Name};
use pilot_config::{ReadOptions, read, read_mesh_networks};
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use pilot_envoy_api::envoy::config::endpoint::v3::{ClusterLoadAssignment, LbEndpoint};
use pilot_envoy_api::envoy::config::listener::v3::Listener;
use pilot_envoy_api::istio::networking::nds::v1::NameTable;
use pilot_incr::{Shard, Txn};
use pilot_model::{HostAddresses, MeshConfig, MeshOptions, Object, Proxy, ProxyId, ProxyType};
use pilot_pipeline::{Changes, Pipeline};
use pilot_xds::TypeUrl;

const SHARD: Shard = Shard(1);
const PROXY: ProxyId = ProxyId(1);

pub(crate) struct World(pub(crate) Pipeline);

impl World {
    pub(crate) fn new(options: MeshOptions) -> Self {
        let mut pipeline = Pipeline::new();
        let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
        txn.upsert(&inputs.options, SHARD, (), options);
        txn.upsert(&inputs.mesh, SHARD, (), MeshConfig::default());
        pipeline.commit(txn);
        Self(pipeline)
    }

    /// Adds objects, or puts them in the place of others. Those of another cluster are moved there.
    pub(crate) fn tell_in(&mut self, cluster: &str, text: &str) -> Changes {
        let (mut txn, inputs) = (Txn::new(), self.0.inputs());
        let options = ReadOptions { cluster: Name::new("Kubernetes"), ..ReadOptions::default() };
        let reading = read(text, "world.yaml", &options).unwrap();
        assert!(reading.issues.is_empty(), "{:?}", reading.issues);
        for (_, _, mut object) in reading.objects {
            if !cluster.is_empty() {
                object.move_to(&Name::new(cluster));
            }
            inputs.upsert(&mut txn, SHARD, object);
        }
        self.0.commit(txn)
    }

    pub(crate) fn tell(&mut self, text: &str) -> Changes {
        self.tell_in("", text)
    }

    pub(crate) fn forget(&mut self, text: &str) -> Changes {
        let (mut txn, inputs) = (Txn::new(), self.0.inputs());
        for (_, _, object) in read(text, "world.yaml", &ReadOptions::default()).unwrap().objects {
            inputs.remove(&mut txn, SHARD, Object::key(&object));
        }
        self.0.commit(txn)
    }

    pub(crate) fn networks(&mut self, text: &str) -> Changes {
        let (networks, _) = read_mesh_networks(text, "networks.yaml").unwrap();
        let mut txn = Txn::new();
        txn.upsert(&self.0.inputs().networks, SHARD, (), networks);
        self.0.commit(txn)
    }

    /// A name was looked up.
    pub(crate) fn found(&mut self, name: &str, addresses: &[&str], failure: Option<&str>) {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let found = HostAddresses { addresses, failure: failure.map(Name::new) };
        let mut txn = Txn::new();
        txn.upsert(&self.0.inputs().host_addresses, SHARD, Name::new(name), found);
        self.0.commit(txn);
    }

    pub(crate) fn issues(&self) -> Vec<String> {
        self.0.issues().map(ToString::to_string).collect()
    }

    pub(crate) fn connect(&mut self, proxy: Proxy) {
        let mut txn = Txn::new();
        txn.upsert(&self.0.inputs().proxies, SHARD, PROXY, Arc::new(proxy));
        self.0.commit(txn);
    }

    fn resources<M: prost::Message + Default>(&self, kind: TypeUrl) -> Vec<(String, M)> {
        let manifests = self.0.manifests_of(PROXY).expect("the proxy is known");
        let read = |r: &Arc<pilot_xds::Encoded>| (r.name().to_string(), M::decode(&r.message()[..]).unwrap());
        manifests.of(kind).iter().map(read).collect()
    }

    pub(crate) fn names_of(&self, kind: TypeUrl) -> Vec<String> {
        let manifests = self.0.manifests_of(PROXY).expect("the proxy is known");
        manifests.of(kind).iter().map(|resource| resource.name().to_string()).collect()
    }

    pub(crate) fn version_of(&self, kind: TypeUrl, name: &str) -> Option<String> {
        let manifests = self.0.manifests_of(PROXY).expect("the proxy is known");
        manifests.of(kind).get(name).map(|resource| resource.version().to_string())
    }

    /// Ports at which it listens for others.
    pub(crate) fn inbound_ports(&self) -> Vec<u32> {
        let listeners = self.resources::<Listener>(TypeUrl::Listener);
        let chains = listeners.into_iter().filter(|(name, _)| name == "virtualInbound");
        let chains = chains.flat_map(|(_, listener)| listener.filter_chains);
        let ports = chains.filter_map(|chain| chain.filter_chain_match?.destination_port);
        // Where what was not called is turned away.
        let ports: BTreeSet<u32> = ports.filter(|port| *port != 15006).collect();
        ports.into_iter().collect()
    }

    fn assignment(&self, cluster: &str) -> ClusterLoadAssignment {
        let mut all = self.resources::<ClusterLoadAssignment>(TypeUrl::Endpoint).into_iter();
        all.find(|(name, _)| name == cluster).unwrap_or_else(|| panic!("no endpoints for {cluster}")).1
    }

    /// `address:port`, and more addresses after it.
    pub(crate) fn endpoints(&self, cluster: &str) -> Vec<String> {
        let groups = self.assignment(cluster).endpoints;
        groups.iter().flat_map(|group| &group.lb_endpoints).map(in_words).collect()
    }

    /// How the endpoints are, in the order of their addresses.
    pub(crate) fn health(&self, cluster: &str) -> Vec<(String, &'static str)> {
        let groups = self.assignment(cluster).endpoints;
        let all = groups.iter().flat_map(|group| &group.lb_endpoints);
        let of = |endpoint: &LbEndpoint| match endpoint.health_status {
            0 => "UNKNOWN",
            1 => "HEALTHY",
            2 => "UNHEALTHY",
            3 => "DRAINING",
            _ => "else",
        };
        let mut out: Vec<_> = all.map(|endpoint| (in_words(endpoint), of(endpoint))).collect();
        out.sort();
        out
    }

    /// Priorities of the endpoints by their addresses.
    pub(crate) fn priorities(&self, cluster: &str) -> BTreeMap<String, u32> {
        let groups = self.assignment(cluster).endpoints.into_iter();
        let each = |group: &pilot_envoy_api::envoy::config::endpoint::v3::LocalityLbEndpoints| {
            group.lb_endpoints.iter().map(|e| (in_words(e), group.priority)).collect::<Vec<_>>()
        };
        groups.flat_map(|group| each(&group)).collect()
    }

    /// What a name is answered with.
    pub(crate) fn lookup(&self, name: &str) -> Vec<String> {
        let tables = self.resources::<NameTable>(TypeUrl::NameTable);
        tables
            .iter()
            .find_map(|(_, table)| table.table.get(name))
            .map(|info| info.ips.clone())
            .unwrap_or_default()
    }
}

fn in_words(endpoint: &LbEndpoint) -> String {
    let Some(HostIdentifier::Endpoint(endpoint)) = &endpoint.host_identifier else { return String::new() };
    let more = endpoint.additional_addresses.iter().map(|more| more.address.as_ref());
    let all = std::iter::once(endpoint.address.as_ref()).chain(more).flatten();
    all.map(socket).collect::<Vec<_>>().join(" ")
}

fn socket(address: &core::Address) -> String {
    let Some(core::address::Address::SocketAddress(socket)) = &address.address else { return String::new() };
    let port = match socket.port_specifier {
        Some(core::socket_address::PortSpecifier::PortValue(port)) => port,
        _ => 0,
    };
    format!("{}:{port}", socket.address)
}

/// A sidecar in the namespace `shop`.
pub(crate) fn sidecar(name: &str, ip: &str) -> Proxy {
    Proxy {
        dns_domain: Name::new("shop.svc.cluster.local"),
        cluster: Name::new("Kubernetes"),
        ..Proxy::new(ProxyType::Sidecar, &format!("{name}.shop"), "shop", vec![ip.parse().unwrap()])
    }
}

pub(crate) fn labels(pairs: &[(&str, &str)]) -> Labels {
    Labels::new(pairs.iter().copied())
}
