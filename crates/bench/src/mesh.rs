//! The made-up mesh, as texts. The same shape gives the same texts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::Ipv4Addr;

use pilot_base::Hasher64;

use crate::shape::Shape;
use crate::stamp;

/// A service as far as it can change.
#[derive(Clone, PartialEq, Debug)]
pub struct Service {
    pub index: usize,
    /// Is it one that comes later, and goes again?
    pub is_guest: bool,
    pub tcp: bool,
    pub rules: Rules,
    pub endpoints: usize,
    /// The change that its first endpoint is marked with.
    pub address: u32,
    /// The change that its first route is marked with.
    pub route: u32,
}

/// What stands beside the ServiceEntry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rules {
    None,
    /// A DestinationRule with a policy.
    Policy,
    /// A DestinationRule with two subsets and a VirtualService that splits between them.
    Split,
}

/// All services, guests last.
#[derive(Clone, Debug)]
pub struct Mesh {
    shape: Shape,
    pub services: Vec<Service>,
}

const HTTP_PORT: u16 = 80;
const TCP_PORT: u16 = 3306;

/// Of a hundred services without rules of their own, so many have a DestinationRule all the same.
const POLICY_PERCENT: u64 = 20;

/// Endpoint changes of churn are spread over so many services.
const MOST_CHANGING: usize = 50;

impl Service {
    pub fn name(&self) -> String {
        // Equally long, so that the floor can make one of the other.
        format!("{}-{:05}", if self.is_guest { "new" } else { "svc" }, self.index)
    }

    pub fn host(&self) -> String {
        format!("{}.mesh.example", self.name())
    }

    /// The cluster of all of its endpoints.
    pub fn cluster(&self) -> String {
        format!("outbound|{}||{}", self.port(), self.host())
    }

    /// Where its routes stand: the table of the port, and the virtual host there.
    pub fn route_place(&self) -> (String, String) {
        (HTTP_PORT.to_string(), format!("{}:{HTTP_PORT}", self.host()))
    }

    fn port(&self) -> u16 {
        if self.tcp { TCP_PORT } else { HTTP_PORT }
    }

    /// Where its endpoint and its rules are told.
    pub fn files(&self) -> [String; 2] {
        [format!("{}.yaml", self.name()), format!("{}-rules.yaml", self.name())]
    }
}

impl Mesh {
    pub fn new(shape: &Shape) -> Self {
        let mut mesh = Self { shape: shape.clone(), services: Vec::new() };
        mesh.services = (0..shape.services).map(|index| mesh.service(index)).collect();
        mesh
    }

    /// A service as it is in the beginning.
    pub fn service(&self, index: usize) -> Service {
        let below = |purpose, percent| self.draw(purpose, index) % 100 < percent;
        // The first one is what single changes are made to, so it is what they need.
        let tcp = index > 0 && below("tcp", self.shape.tcp_percent);
        let rules = match () {
            () if index == 0 || (!tcp && below("split", self.shape.rules_percent)) => Rules::Split,
            () if below("policy", POLICY_PERCENT) => Rules::Policy,
            () => Rules::None,
        };
        let address = u32::try_from(index).unwrap_or(0);
        Service { index, is_guest: false, tcp, rules, endpoints: self.shape.endpoints, address, route: 0 }
    }

    /// A service that is not there in the beginning.
    pub fn guest(&self, index: usize) -> Service {
        let service = Service { is_guest: true, tcp: false, rules: Rules::None, ..self.service(index) };
        let last = stamp::COUNT - 1;
        Service { address: last - u32::try_from(index).unwrap_or(0), ..service }
    }

    /// A number that depends on the seed, the service and what it is drawn for, and on nothing else.
    fn draw(&self, purpose: &str, index: usize) -> u64 {
        let mut hasher = Hasher64::default();
        hasher.write_u64(self.shape.seed).write(purpose.as_bytes()).write_u64(index as u64).finish().0
    }

    pub fn namespace(&self, index: usize) -> String {
        format!("ns-{:05}", index % self.shape.namespaces())
    }

    /// The services whose endpoints change. Everybody sees them, Sidecar or not.
    pub fn changing(&self) -> Vec<usize> {
        let within = self.shape.scope.map_or(MOST_CHANGING, |scope| scope / 2);
        let plain =
            self.services.iter().filter(|service| !service.tcp && service.index < self.common(within));
        plain.map(|service| service.index).collect()
    }

    /// With a scope, the first services are in everybody's.
    fn common(&self, most: usize) -> usize {
        most.min(self.services.len()).max(1)
    }

    /// Where a proxy runs: beside an endpoint whose address stays.
    pub fn seat(&self, proxy: usize) -> (usize, Ipv4Addr) {
        let service = proxy % self.shape.services;
        let endpoint = 1 + (proxy / self.shape.services) % (self.shape.endpoints - 1);
        (service, plain_address(service, endpoint))
    }

    /// Every file of the folder.
    pub fn files(&self) -> BTreeMap<String, String> {
        let mut files = BTreeMap::new();
        for service in &self.services {
            let [entry, rules] = service.files();
            files.insert(entry, self.entry(service));
            files.extend(self.rules(service).map(|text| (rules, text)));
        }
        for namespace in 0..self.shape.scope.map_or(0, |_| self.shape.namespaces()) {
            let name = self.namespace(namespace);
            files.insert(format!("sidecar-{name}.yaml"), self.sidecar(namespace, &name));
        }
        files
    }

    pub fn entry(&self, service: &Service) -> String {
        let (name, host, port) = (service.name(), service.host(), service.port());
        let protocol = if service.tcp { "TCP" } else { "HTTP" };
        let mut text = format!(
            "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}, namespace: {}}}\n\
             spec:\n  hosts: [{host}]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
             ports: [{{number: {port}, name: {}, protocol: {protocol}}}]\n",
            self.namespace(service.index),
            protocol.to_lowercase(),
        );
        if service.tcp {
            let virtual_address = spread(12, service.index);
            let _infallible = writeln!(text, "  addresses: [{virtual_address}]");
        }
        text.push_str("  endpoints:\n");
        for endpoint in 0..service.endpoints {
            let address = match endpoint {
                0 => stamp::address(service.address),
                _ if service.is_guest => spread(14, service.index * MOST_OF_A_SERVICE + endpoint),
                _ => plain_address(service.index, endpoint),
            };
            let version = 1 + endpoint % 2;
            let _infallible =
                writeln!(text, "  - {{address: {address}, labels: {{app: {name}, version: v{version}}}}}");
        }
        text
    }

    /// The rules of a service, if it has any.
    pub fn rules(&self, service: &Service) -> Option<String> {
        let (name, host, namespace) = (service.name(), service.host(), self.namespace(service.index));
        let head = |kind: &str| {
            format!(
                "apiVersion: networking.istio.io/v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n"
            )
        };
        let policy = "  trafficPolicy: {connectionPool: {http: {http2MaxRequests: 1000}}}\n";
        let mut text = format!("{}  host: {host}\n{policy}", head("DestinationRule"));
        match service.rules {
            Rules::None => return None,
            Rules::Policy => {}
            Rules::Split => {
                let mark = stamp::route_name(&name, service.route);
                let _infallible = write!(
                    text,
                    "  subsets:\n  - {{name: v1, labels: {{version: v1}}}}\n  - {{name: v2, labels: {{version: v2}}}}\n\
                     ---\n{}  hosts: [{host}]\n  http:\n  - name: {mark}\n    \
                     match: [{{headers: {{x-canary: {{exact: \"yes\"}}}}}}]\n    \
                     route: [{{destination: {{host: {host}, subset: v2}}}}]\n  - name: {name}-main\n    route:\n    \
                     - {{destination: {{host: {host}, subset: v1}}, weight: 90}}\n    \
                     - {{destination: {{host: {host}, subset: v2}}, weight: 10}}\n",
                    head("VirtualService"),
                );
            }
        }
        Some(text)
    }

    /// The hosts that proxies of a namespace see: half of them everybody sees, one is to come, the rest is drawn.
    fn sidecar(&self, namespace: usize, name: &str) -> String {
        let scope = self.shape.scope.unwrap_or(0);
        let common = self.common(scope / 2);
        let mut hosts: Vec<String> =
            self.services[..common].iter().chain([&self.guest(0)]).map(Service::host).collect();
        let mut step = 0;
        while hosts.len() < scope {
            let drawn =
                self.draw("scope", namespace * MOST_OF_A_SERVICE + step) as usize % self.services.len();
            let host = self.services[drawn].host();
            step += 1;
            // Drawn twice it counts once; after so many tries the scope stays smaller.
            if !hosts.contains(&host) {
                hosts.push(host);
            } else if step > 100 * scope {
                break;
            }
        }
        let hosts: Vec<String> = hosts.iter().map(|host| format!("\"*/{host}\"")).collect();
        format!(
            "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: scope, namespace: {name}}}\n\
             spec: {{egress: [{{hosts: [{}]}}]}}\n",
            hosts.join(", ")
        )
    }
}

/// More endpoints no service has.
const MOST_OF_A_SERVICE: usize = 160;

fn plain_address(service: usize, endpoint: usize) -> Ipv4Addr {
    spread(10, service * MOST_OF_A_SERVICE + endpoint)
}

/// Address number `n` of those that begin with `first`.
fn spread(first: u8, n: usize) -> Ipv4Addr {
    let [_, a, b, c] = u32::try_from(n).unwrap_or(u32::MAX).to_be_bytes();
    Ipv4Addr::new(first, a, b, c)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Mesh, Rules};
    use crate::shape::Shape;

    #[test]
    fn the_same_seed_gives_the_same_mesh_and_another_one_does_not() {
        let shape = Shape { services: 200, scope: Some(10), ..Shape::default() };
        let files = Mesh::new(&shape).files();
        assert_eq!(files, Mesh::new(&shape).files());
        assert_ne!(files, Mesh::new(&Shape { seed: 2, ..shape }).files());
    }

    #[test]
    fn shares_are_about_what_the_shape_says() {
        let mesh = Mesh::new(&Shape { services: 2_000, ..Shape::default() });
        let share = |count: usize| count * 100 / mesh.services.len();
        let splits = share(mesh.services.iter().filter(|service| service.rules == Rules::Split).count());
        let tcp = share(mesh.services.iter().filter(|service| service.tcp).count());
        assert!((24..=30).contains(&splits) && (8..=12).contains(&tcp), "{splits} {tcp}");
    }

    #[test]
    fn everybody_sees_what_changes_even_with_a_scope() {
        let mesh = Mesh::new(&Shape { services: 100, scope: Some(10), ..Shape::default() });
        let files = mesh.files();
        let sidecars: Vec<_> = files.iter().filter(|(name, _)| name.starts_with("sidecar")).collect();
        assert_eq!(sidecars.len(), 5);
        for index in mesh.changing() {
            let host = mesh.services[index].host();
            assert!(sidecars.iter().all(|(_, text)| text.contains(&host)), "{host}");
        }
        let hosts: BTreeSet<usize> = sidecars.iter().map(|(_, text)| text.matches("*/").count()).collect();
        assert_eq!(hosts, BTreeSet::from([10]));
    }

    #[test]
    fn every_namespace_can_have_one_service() {
        let mesh = Mesh::new(&Shape { services: 30, namespaces: Some(30), ..Shape::default() });
        let namespaces: BTreeSet<String> = (0..30).map(|index| mesh.namespace(index)).collect();
        assert_eq!(namespaces.len(), 30);
    }
}
