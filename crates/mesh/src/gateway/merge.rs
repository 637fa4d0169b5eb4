use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilot_base::Name;
use pilot_model::{Config, Gateway, GatewayServer, Protocol};

use super::{GatewaySet, LeftOut, MergedGateway, MergedPort, MergedServer, ServedHost, served_hosts};

/// Puts the servers of all Gateways of a workload together. Plain HTTP is shared with plain HTTP, TLS with TLS as long as
/// the names of hosts differ; of others that want the same port at the same address the first has it.
///
/// `gateways` come in the order of the set's.
pub fn merge_gateways(gateways: &[Arc<Config<Gateway>>], set: &GatewaySet) -> MergedGateway {
    let mut merger = Merger::new(set);
    for gateway in gateways {
        for (index, server) in gateway.spec.servers.iter().enumerate() {
            if let Err(why) = merger.add(gateway, server) {
                merger.out.left_out.push(LeftOut { gateway: gateway.id.clone(), server: index, why });
            }
        }
    }
    merger.out
}

/// What tells two ports apart.
type PortKey = (u16, Protocol, Name);

struct Merger<'a> {
    set: &'a GatewaySet,
    /// The newest plain server of a port.
    plain: BTreeMap<u16, PortKey>,
    taken: BTreeSet<u16>,
    /// Names that connections with TLS are told apart by, and at which address.
    names: BTreeMap<u16, BTreeMap<ServedHost, Name>>,
    out: MergedGateway,
}

impl<'a> Merger<'a> {
    fn new(set: &'a GatewaySet) -> Self {
        Self {
            set,
            plain: BTreeMap::new(),
            taken: BTreeSet::new(),
            names: BTreeMap::new(),
            out: MergedGateway::default(),
        }
    }

    fn add(&mut self, gateway: &Config<Gateway>, server: &GatewayServer) -> Result<(), String> {
        let port = self.set.ports.get(&server.port).copied().unwrap_or(server.port);
        let hosts = served_hosts(server, gateway);
        if server.tls.is_some() {
            self.claim_names(port, &hosts, &server.bind)?;
        }
        let merged = Arc::new(MergedServer {
            gateway: Name::from(gateway.id.to_string()),
            routes: route_name(server, port, gateway),
            http3: server.ends_https() && self.set.udp_ports.contains(&server.port),
            server: Arc::new(server.clone()),
            hosts,
        });
        let key: PortKey = (port, server.protocol, server.bind.clone());
        if self.taken.insert(port) {
            self.open(key, merged);
            return Ok(());
        }
        match self.plain.get(&port).cloned() {
            Some(plain) => self.beside_plain(&plain, key, merged),
            None if !server.is_tls() => {
                self.open(key, merged);
                Ok(())
            }
            None => self.beside_tls(key, merged),
        }
    }

    /// Envoy refuses chains that it cannot tell apart.
    fn claim_names(&mut self, port: u16, hosts: &[ServedHost], bind: &Name) -> Result<(), String> {
        let known = self.names.entry(port).or_default();
        let taken: Vec<String> =
            hosts.iter().filter(|h| known.get(h) == Some(bind)).map(|h| h.text().to_string()).collect();
        if !taken.is_empty() {
            return Err(format!("port {port} already serves {} with TLS", taken.join(", ")));
        }
        known.extend(hosts.iter().map(|host| (host.clone(), bind.clone())));
        Ok(())
    }

    fn beside_plain(
        &mut self,
        plain: &PortKey,
        key: PortKey,
        server: Arc<MergedServer>,
    ) -> Result<(), String> {
        let (port, protocol, bind) = &key;
        if plain.2 == *bind {
            if !(protocol.is_http() && plain.1.is_http()) {
                return Err(format!("port {port} already serves {}, which {protocol} cannot share", plain.1));
            }
            self.share(plain, server);
        } else if self.find(&key).is_some() {
            self.share(&key, server);
        } else {
            self.open(key, server);
        }
        Ok(())
    }

    fn beside_tls(&mut self, key: PortKey, server: Arc<MergedServer>) -> Result<(), String> {
        if server.server.serves_http() {
            if self.out.routes.contains_key(&server.routes) {
                return Err(format!("another server has the routes {} already", server.routes));
            }
            self.out.routes.insert(server.routes.clone(), vec![Arc::clone(&server)]);
        }
        match self.find(&key) {
            Some(at) => self.out.ports[at].servers.push(server),
            None => self.push(key, server),
        }
        Ok(())
    }

    fn open(&mut self, key: PortKey, server: Arc<MergedServer>) {
        if !server.server.is_tls() {
            self.plain.insert(key.0, key.clone());
        }
        if server.server.serves_http() {
            self.out.routes.insert(server.routes.clone(), vec![Arc::clone(&server)]);
        }
        self.push(key, server);
    }

    fn push(&mut self, (port, protocol, bind): PortKey, server: Arc<MergedServer>) {
        let routes = server.routes.clone();
        self.out.ports.push(MergedPort { port, bind, protocol, routes, servers: vec![server] });
    }

    /// Another server of plain HTTP at the same address: its hosts join the same routes.
    fn share(&mut self, key: &PortKey, server: Arc<MergedServer>) {
        if server.server.serves_http() {
            self.out.routes.entry(server.routes.clone()).or_default().push(Arc::clone(&server));
        }
        if let Some(at) = self.find(key) {
            self.out.ports[at].servers.push(server);
        }
    }

    fn find(&self, key: &PortKey) -> Option<usize> {
        self.out.ports.iter().position(|p| (p.port, p.protocol, &p.bind) == (key.0, key.1, &key.2))
    }
}

/// How a server's routes are called. EnvoyFilters and istioctl take these names apart.
fn route_name(server: &GatewayServer, port: u16, gateway: &Config<Gateway>) -> Name {
    let bind = if server.bind.is_empty() { String::new() } else { format!(".{}", server.bind) };
    if server.protocol.is_http() {
        return Name::from(format!("http.{port}{bind}"));
    }
    if server.ends_https() {
        let id = &gateway.id;
        return Name::from(format!(
            "https.{}.{}.{}.{}{bind}",
            server.port, server.port_name, id.name, id.namespace
        ));
    }
    Name::empty()
}

#[cfg(test)]
mod tests;
