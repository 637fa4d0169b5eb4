use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;

use crate::Env;
use crate::downward::{self, DownwardError};

/// Where Kubernetes puts the files about the pod. Relative, as in Istio: containers start in `/`.
pub(crate) const POD_DIRECTORY: &str = "./etc/istio/pod";

/// What the agent finds around it, read once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surroundings {
    pub(crate) env: Env,
    /// The pod's labels; `None` outside of Kubernetes.
    pub(crate) labels: Option<BTreeMap<String, String>>,
    pub(crate) annotations: BTreeMap<String, String>,
    /// The machine's own addresses.
    pub(crate) addresses: Vec<IpAddr>,
    /// Without a domain.
    pub(crate) host_name: String,
}

impl Surroundings {
    pub(crate) fn read(env: Env, pod: &Path) -> Result<Self, DownwardError> {
        Ok(Self {
            labels: downward::read(&pod.join("labels"))?,
            annotations: downward::read(&pod.join("annotations"))?.unwrap_or_default(),
            addresses: own_addresses(),
            host_name: host_name(&env),
            env,
        })
    }

    /// The addresses that the node goes by: the one it was given comes first, because servers take the first one.
    pub(crate) fn instance_addresses(&self) -> Vec<IpAddr> {
        let given = self.env.get("INSTANCE_IP").and_then(|text| text.parse().ok());
        let mut addresses: Vec<IpAddr> = given.into_iter().collect();
        for address in &self.addresses {
            if !addresses.contains(address) {
                addresses.push(*address);
            }
        }
        if addresses.is_empty() {
            addresses.push(IpAddr::from([127, 0, 0, 1]));
        }
        addresses
    }
}

/// Which addresses would this machine speak from? Connecting a UDP socket sends nothing, but has the kernel choose a
/// route; the destinations are reserved for documentation.
fn own_addresses() -> Vec<IpAddr> {
    let toward = |bind: &str, destination: &str| {
        let socket = UdpSocket::bind(bind).ok()?;
        socket.connect(destination).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let found = [toward("0.0.0.0:0", "192.0.2.1:9"), toward("[::]:0", "[2001:db8::1]:9")];
    found.into_iter().flatten().filter(is_own).collect()
}

fn is_own(address: &IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !address.is_loopback() && !address.is_unspecified() && !link_local
}

fn host_name(env: &Env) -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = kernel.as_deref().or_else(|| env.get("HOSTNAME")).unwrap_or("localhost");
    name.trim().split('.').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::{Surroundings, is_own, own_addresses};
    use crate::Env;

    fn ips(given: &str, own: &[&str]) -> Vec<String> {
        let around = Surroundings {
            env: Env::from([("INSTANCE_IP", given)]),
            addresses: own.iter().map(|ip| ip.parse().unwrap()).collect(),
            ..Surroundings::default()
        };
        around.instance_addresses().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_given_address_comes_first() {
        assert_eq!(
            ips("10.0.0.9", &["10.0.0.1", "10.0.0.9", "fd00::1"]),
            ["10.0.0.9", "10.0.0.1", "fd00::1"]
        );
        assert_eq!(ips("", &["10.0.0.1"]), ["10.0.0.1"]);
        assert_eq!(ips("not an address", &[]), ["127.0.0.1"]);
    }

    #[test]
    fn own_addresses_can_be_reached_by_others() {
        assert!(own_addresses().iter().all(is_own));
    }
}
