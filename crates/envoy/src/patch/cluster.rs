use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_envoy_api::envoy::config::cluster::v3::Cluster;
use pilot_envoy_api::envoy::config::core::v3::{TransportSocket, transport_socket::ConfigType};
use pilot_model::{ApplyTo, ClusterMatch, ObjectMatch, PatchOperation};
use pilot_xds::{Encoded, TypeUrl};
use prost::Message as _;

use super::list::{merge, merge_config};
use super::{Faults, Outcome, Patch, Patches};

/// `hosts` are the services that stand behind an inbound cluster, which its name does not tell.
pub fn patch_cluster(encoded: &Encoded, hosts: &[Host], patches: &Patches, faults: &mut Faults) -> Outcome {
    let name = ClusterKey::parse(encoded.name(), hosts);
    let mut cluster: Option<Cluster> = None;
    for patch in patches.to(ApplyTo::Cluster).filter(|patch| name.matches(patch)) {
        match patch.spec.operation {
            PatchOperation::Remove => return Outcome::Removed,
            operation if operation.is_merge() => {
                let cluster = cluster
                    .get_or_insert_with(|| Cluster::decode(encoded.message().as_slice()).unwrap_or_default());
                merge_cluster(cluster, patch, faults);
                if cluster.name != encoded.name().as_str() {
                    faults.add(patch, "must not give a cluster another name: its own is kept");
                    cluster.name = encoded.name().to_string();
                }
            }
            _ => (),
        }
    }
    match cluster {
        None => Outcome::Same,
        Some(cluster) => Outcome::Changed(encode(&cluster)),
    }
}

/// Clusters that patches bring.
pub fn added_clusters(patches: &Patches, faults: &mut Faults) -> Vec<Arc<Encoded>> {
    let mut out = Vec::new();
    for patch in patches.to(ApplyTo::Cluster).filter(|patch| patch.spec.operation == PatchOperation::Add) {
        let cluster: Cluster = patch.value();
        if cluster.name.is_empty() {
            faults.add(patch, "a cluster needs a name");
        } else {
            out.push(encode(&cluster));
        }
    }
    out
}

fn encode(cluster: &Cluster) -> Arc<Encoded> {
    Arc::new(Encoded::new(TypeUrl::Cluster, Name::new(&cluster.name), &cluster.encode_to_vec()))
}

/// What the name of a cluster tells.
struct ClusterKey<'a> {
    name: &'a str,
    port: u32,
    subset: &'a str,
    host: &'a str,
    hosts: &'a [Host],
}

impl<'a> ClusterKey<'a> {
    /// `outbound|80|v1|reviews.default.svc.cluster.local`, or the form of it that can stand in a server name.
    fn parse(name: &'a str, hosts: &'a [Host]) -> Self {
        let dns = name.starts_with("outbound_.") || name.starts_with("inbound_.");
        let separator = if dns { "_." } else { "|" };
        let mut parts = name.splitn(4, separator);
        let direction = parts.next();
        let port = parts.next().and_then(|port| port.parse().ok()).unwrap_or(0);
        let (subset, host) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let hosts = if direction == Some("inbound") { hosts } else { &[] };
        Self { name, port, subset, host, hosts }
    }

    fn matches(&self, patch: &Patch) -> bool {
        let ObjectMatch::Cluster(ClusterMatch { name, service, subset, port }) = &patch.spec.object else {
            return true;
        };
        if !name.is_empty() {
            return name.as_str() == self.name;
        }
        let is_service = match self.hosts {
            [] => service.as_str() == self.host,
            hosts => hosts.iter().any(|host| host.as_str() == service.as_str()),
        };
        (subset.is_empty() || subset.as_str() == self.subset)
            && (service.is_empty() || is_service)
            && port.is_none_or(|port| port == self.port)
    }
}

/// A patch with a transport socket changes that and nothing else.
fn merge_cluster(cluster: &mut Cluster, patch: &Patch, faults: &mut Faults) {
    let over: Cluster = patch.value();
    let Some(socket) = over.transport_socket else { return merge(cluster, patch, faults) };
    let there = if cluster.transport_socket_matches.is_empty() {
        cluster.transport_socket.as_mut().filter(|there| there.name == socket.name)
    } else {
        let mut sockets =
            cluster.transport_socket_matches.iter_mut().filter_map(|m| m.transport_socket.as_mut());
        match sockets.find(|there| there.name == socket.name) {
            // Both a socket and a choice of sockets would be one too many.
            None => return,
            found => found,
        }
    };
    match there {
        None => cluster.transport_socket = Some(socket),
        Some(there) => merge_socket(there, &socket, patch, faults),
    }
}

pub(super) fn merge_socket(
    there: &mut TransportSocket,
    over: &TransportSocket,
    patch: &Patch,
    faults: &mut Faults,
) {
    if let (Some(ConfigType::TypedConfig(base)), Some(ConfigType::TypedConfig(over))) =
        (&mut there.config_type, &over.config_type)
    {
        merge_config(base, over, patch, faults);
    }
}
