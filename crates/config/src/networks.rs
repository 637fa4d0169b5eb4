//! The networks of a mesh. Like its settings they are no object, but a file.

use std::collections::BTreeMap;
use std::net::IpAddr;

use pilot_api::mesh as api;
use pilot_api::mesh::network::istio_network_gateway::Gw;
use pilot_api::mesh::network::network_endpoints::Ne;
use pilot_base::{Cidr, Host, Issue, Name, ObjectRef};
use pilot_model::{GatewayAt, MeshNetworks, Network, NetworkMembers};

use crate::check::{Check, is_host_name};
use crate::yaml::{self, Node, Value};
use crate::{de, yaml_issue};

/// Reads the networks of a mesh. With a mistake in them they are not used at all, so that whoever has older ones keeps
/// them.
pub fn read_mesh_networks(text: &str, file: &str) -> Result<(MeshNetworks, Vec<Issue>), Vec<Issue>> {
    let object = ObjectRef::new("MeshNetworks", Name::empty(), file);
    let documents = yaml::parse(text).map_err(|error| vec![yaml_issue(&object, file, &error)])?;
    let empty = Node { line: 1, value: Value::Map(Vec::new()) };
    let node = documents.first().unwrap_or(&empty);
    let mut check = Check::new(object.clone(), node, file);
    let typed = de::read::<api::MeshNetworks>(node, "").map_err(|error| {
        vec![Issue::error(object, error.path, error.message).at(format!("{file}:{}", error.line))]
    })?;
    for unknown in typed.unknown {
        check.warn(unknown.path, "is not a field of mesh networks and has no effect");
    }
    let mut networks = BTreeMap::new();
    for (name, raw) in typed.value.networks {
        let network = network(raw, &format!("networks.{name}"), &mut check);
        networks.insert(Name::from(name), network);
    }
    if check.is_rejected() {
        Err(check.into_issues())
    } else {
        Ok((MeshNetworks(networks), check.into_issues()))
    }
}

fn network(raw: api::Network, path: &str, check: &mut Check<'_>) -> Network {
    let mut out = Network::default();
    for (i, members) in raw.endpoints.into_iter().enumerate() {
        let path = format!("{path}.endpoints[{i}]");
        match members.ne {
            Some(Ne::FromCidr(cidr)) => match Cidr::parse(&cidr) {
                Some(range) => out.members.push(NetworkMembers::Range(range)),
                None => {
                    check.reject(format!("{path}.fromCidr"), format!("{cidr:?} is not a range of addresses"));
                }
            },
            Some(Ne::FromRegistry(registry)) => out.members.push(NetworkMembers::Cluster(registry.into())),
            None => check.reject(path, "must say one of fromCidr and fromRegistry"),
        }
    }
    for (i, gateway) in raw.gateways.into_iter().enumerate() {
        let path = format!("{path}.gateways[{i}]");
        let port = check.port(format!("{path}.port"), gateway.port);
        match gateway.gw {
            Some(Gw::Address(address)) => {
                gateway_address(&format!("{path}.address"), &address, check);
                out.gateways.push(GatewayAt::Address(address.into(), port));
            }
            Some(Gw::RegistryServiceName(service)) => {
                out.gateways.push(GatewayAt::Service(Host::new(&service), port));
            }
            None => check.reject(path, "must say one of address and registryServiceName"),
        }
    }
    out
}

fn gateway_address(path: &str, address: &str, check: &mut Check<'_>) {
    if address.parse::<IpAddr>().is_err() && !is_host_name(address) {
        check.reject(path, format!("{address:?} is neither an address nor a host"));
    }
}

#[cfg(test)]
mod tests {
    use super::read_mesh_networks;
    use pilot_base::Name;
    use pilot_model::{GatewayAt, NetworkMembers};

    #[test]
    fn members_and_gateways_are_read() {
        let text = "networks:\n  n1:\n    endpoints: [{fromRegistry: east}, {fromCidr: 10.0.0.0/8}]\n    gateways: [{address: 1.1.1.1, port: 15443}, {registryServiceName: gw.istio-system.svc.cluster.local, port: 443}]\n";
        let (networks, issues) = read_mesh_networks(text, "networks").unwrap();
        assert!(issues.is_empty());
        let network = &networks.0[&Name::new("n1")];
        assert_eq!(network.members[0], NetworkMembers::Cluster("east".into()));
        assert_eq!(network.gateways[0], GatewayAt::Address("1.1.1.1".into(), 15443));
        assert_eq!((network.members.len(), network.gateways.len()), (2, 2));
        assert!(read_mesh_networks("networks: {}", "networks").unwrap().0.0.is_empty());
        let named = "networks: {n: {gateways: [{address: gw.example.com, port: 15443}]}}";
        assert!(read_mesh_networks(named, "n").unwrap().1.is_empty());
    }

    #[test]
    fn mistakes_name_their_field() {
        let path = |text: &str| read_mesh_networks(text, "n").unwrap_err()[0].path.clone();
        assert_eq!(
            path("networks: {n: {endpoints: [{fromCidr: 10.0.0.0}]}}"),
            "networks.n.endpoints[0].fromCidr"
        );
        assert_eq!(
            path("networks: {n: {gateways: [{address: 1.1.1.1, port: 0}]}}"),
            "networks.n.gateways[0].port"
        );
        assert_eq!(
            path("networks: {n: {gateways: [{address: a b, port: 1}]}}"),
            "networks.n.gateways[0].address"
        );
    }
}
