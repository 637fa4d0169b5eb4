//! All routes of one host become a service, and rules where paths or weights tell its applications apart.

use std::collections::{BTreeMap, BTreeSet};

use pilot_source::{Instance, InstancePort, Registration};
use serde_json::{Value, json};

use crate::message::{Backend, BackendSet, InternalRoutes, Routes};

/// What routes do not say themselves.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) namespace: String,
    pub(crate) service_port: u16,
    pub(crate) gateways: Vec<String>,
}

/// A host with all that leads to it.
pub(crate) struct Host {
    pub(crate) registration: Registration,
    /// Objects in JSON, one per line of a document.
    pub(crate) rules: Option<String>,
}

/// The label by which applications of one host are told apart, as old Pilot had it.
const APP: &str = "cfapp";

/// Applications of a host that share a path: the weight of each, and how many instances it has.
type Shares = BTreeMap<String, (u32, usize)>;

#[derive(Default)]
struct Found {
    /// Instances by id: routes of several paths may lead to the same ones.
    instances: BTreeMap<String, Instance>,
    addresses: BTreeSet<String>,
    paths: BTreeMap<String, Shares>,
}

/// Everything that Copilot says, by host.
pub(crate) fn hosts(routes: Routes, internal: InternalRoutes, settings: &Settings) -> BTreeMap<String, Host> {
    let mut found: BTreeMap<String, Found> = BTreeMap::new();
    for route in routes.routes {
        let (app, host) = (text(&route.capi_process_guid), text(&route.hostname).to_ascii_lowercase());
        let of_host = found.entry(host).or_default();
        let backends = backends(route.backends);
        let path = text(&route.path).trim_end_matches('/').to_owned();
        let share = of_host.paths.entry(path).or_default().entry(app.clone()).or_default();
        share.0 = share.0.saturating_add(u32::try_from(route.route_weight).unwrap_or_default());
        share.1 += backends.len();
        for backend in backends {
            let mut instance = instance(&backend, "http", settings);
            instance.id = format!("{app}/{}", instance.id);
            instance.metadata.insert(APP.to_owned(), app.clone());
            of_host.instances.insert(instance.id.clone(), instance);
        }
    }
    for route in internal.internal_routes {
        let of_host = found.entry(text(&route.hostname).to_ascii_lowercase()).or_default();
        of_host.addresses.extend(Some(text(&route.vip)).filter(|vip| !vip.is_empty()));
        for backend in backends(route.backends) {
            let instance = instance(&backend, "tcp", settings);
            of_host.instances.insert(instance.id.clone(), instance);
        }
    }
    found.into_iter().map(|(name, found)| (name.clone(), found.host(name, settings))).collect()
}

fn backends(set: Option<BackendSet>) -> Vec<Backend> {
    set.map(|set| set.backends).unwrap_or_default()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn instance(backend: &Backend, protocol: &str, settings: &Settings) -> Instance {
    let address = text(&backend.address);
    let port = InstancePort {
        name: String::new(),
        number: backend.port,
        protocol: protocol.to_owned(),
        service_port: Some(settings.service_port.into()),
    };
    let id = format!("{address}:{}", backend.port);
    Instance { id, address, ports: vec![port], ..Instance::default() }
}

impl Found {
    fn host(self, name: String, settings: &Settings) -> Host {
        let rules = self.need_rules(settings).then(|| self.rules(&name, settings));
        let Self { instances, addresses, .. } = self;
        let registration = Registration {
            hosts: vec![name.clone()],
            name,
            addresses: addresses.into_iter().collect(),
            instances: instances.into_values().collect(),
            ..Registration::default()
        };
        Host { registration, rules }
    }

    /// A host whose instances all serve everything alike needs none, unless the world calls it through a gateway.
    fn need_rules(&self, settings: &Settings) -> bool {
        let has_paths = self.paths.keys().any(|path| !path.is_empty());
        let has_weights =
            |shares: &Shares| shares.len() > 1 && shares.values().any(|(weight, _)| *weight > 0);
        let is_public = !settings.gateways.is_empty() && !self.paths.is_empty();
        has_paths || self.paths.values().any(has_weights) || is_public
    }

    fn rules(&self, host: &str, settings: &Settings) -> String {
        let mut paths: Vec<(&String, &Shares)> = self.paths.iter().collect();
        // What is said of a longer path counts, and what is said of none comes last.
        paths.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        let route = |(path, shares): (&String, &Shares)| {
            let route = destinations(host, shares, settings);
            match path.as_str() {
                "" => json!({"route": route}),
                path => json!({"match": matches(path), "route": route}),
            }
        };
        let http: Vec<Value> = paths.into_iter().map(route).collect();
        let mut service = json!({"hosts": [host], "http": http});
        if !settings.gateways.is_empty() {
            let mesh = ["mesh".to_owned()];
            service["gateways"] = settings.gateways.iter().chain(&mesh).cloned().collect();
        }
        let apps: BTreeSet<&String> = self.paths.values().flat_map(BTreeMap::keys).collect();
        let subset = |app: &String| json!({"name": app, "labels": {APP: app}});
        let subsets: Vec<Value> = apps.into_iter().map(subset).collect();
        let object = |kind: &str, name: &str, spec: Value| {
            let metadata = json!({"name": format!("{name}-for-{host}"), "namespace": settings.namespace});
            json!({"apiVersion": "networking.istio.io/v1", "kind": kind, "metadata": metadata, "spec": spec})
        };
        let rule = object("DestinationRule", "dest-rule", json!({"host": host, "subsets": subsets}));
        format!("{}\n---\n{rule}\n", object("VirtualService", "virtual-service", service))
    }
}

/// A path and everything below it. Old Pilot's prefix let `/a` match `/ab` too, which is another route.
fn matches(path: &str) -> Value {
    json!([{"uri": {"exact": path}}, {"uri": {"prefix": format!("{path}/")}}])
}

/// Where a Copilot says no weights, each instance gets its share; who has none is not called while others have.
fn destinations(host: &str, shares: &Shares, settings: &Settings) -> Value {
    let is_weighted = shares.values().any(|(weight, _)| *weight > 0);
    let is_anybody_there = shares.values().any(|(_, instances)| *instances > 0);
    let each = shares.iter().map(|(app, (weight, instances))| {
        let destination = json!({"host": host, "subset": app, "port": {"number": settings.service_port}});
        let weight = match (is_weighted, is_anybody_there) {
            (true, _) => *weight as usize,
            (false, true) => *instances,
            (false, false) => 1,
        };
        match shares.len() {
            1 => json!({"destination": destination}),
            _ => json!({"destination": destination, "weight": weight}),
        }
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::{Settings, hosts};
    use crate::message::{Backend, BackendSet, InternalRoute, InternalRoutes, Route, Routes};

    fn backends(ports: &[u32]) -> Option<BackendSet> {
        let one = |port: &u32| Backend { address: b"10.0.0.1".to_vec(), port: *port };
        Some(BackendSet { backends: ports.iter().map(one).collect() })
    }

    fn route(path: &str, app: &str, ports: &[u32], route_weight: i32) -> Route {
        let (hostname, path, capi_process_guid) = (b"Shop.example.com".to_vec(), path.into(), app.into());
        Route { hostname, path, backends: backends(ports), capi_process_guid, route_weight }
    }

    fn settings() -> Settings {
        Settings { namespace: "cf".into(), service_port: 8080, gateways: Vec::new() }
    }

    #[test]
    fn a_plain_host_is_a_service_without_rules() {
        let routes = Routes { routes: vec![route("", "a", &[61001, 61002], 100)] };
        let vip = InternalRoute {
            hostname: b"shop.apps.internal".to_vec(),
            vip: b"127.1.0.1".to_vec(),
            backends: backends(&[8080]),
        };
        let internal = InternalRoutes { internal_routes: vec![vip] };
        let all = hosts(routes, internal, &settings());
        let shop = &all["shop.example.com"];
        assert!(shop.rules.is_none());
        assert_eq!(shop.registration.instances.len(), 2);
        assert_eq!(shop.registration.instances[0].metadata["cfapp"], "a");
        let inside = &all["shop.apps.internal"].registration;
        assert_eq!(
            (&inside.addresses[..], inside.instances[0].ports[0].protocol.as_str()),
            (&["127.1.0.1".to_owned()][..], "tcp")
        );
    }

    #[test]
    fn paths_and_weights_become_rules() {
        let routes = vec![
            route("", "a", &[1, 2], 75),
            route("", "b", &[3], 25),
            route("/cart", "c", &[4], 0),
            route("/cart/", "d", &[5, 6], 0),
        ];
        let all = hosts(Routes { routes }, InternalRoutes::default(), &settings());
        let rules = all["shop.example.com"].rules.clone().unwrap();
        let (service, rule) = rules.split_once("---").unwrap();
        let service: serde_json::Value = serde_json::from_str(service).unwrap();
        assert_eq!(service["spec"]["http"][0]["match"][1]["uri"]["prefix"], "/cart/");
        let weights = |at: usize| {
            let all = service["spec"]["http"][at]["route"].as_array().unwrap().iter();
            all.map(|one| (one["destination"]["subset"].as_str().unwrap(), one["weight"].as_u64().unwrap()))
                .collect::<Vec<_>>()
        };
        assert_eq!((weights(0), weights(1)), (vec![("c", 1), ("d", 2)], vec![("a", 75), ("b", 25)]));
        assert_eq!(rule.matches("cfapp").count(), 4);
        assert!(service["spec"].get("gateways").is_none());
    }

    #[test]
    fn who_has_no_instances_is_not_called_while_others_have() {
        let weights = |routes: Vec<Route>| {
            let all = hosts(Routes { routes }, InternalRoutes::default(), &settings());
            let rules = all["shop.example.com"].rules.clone().unwrap();
            let (service, _) = rules.split_once("---").unwrap();
            let service: serde_json::Value = serde_json::from_str(service).unwrap();
            let all = service["spec"]["http"][0]["route"].as_array().unwrap().iter();
            all.map(|one| one["weight"].as_u64().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(weights(vec![route("/x", "a", &[1, 2], 0), route("/x", "b", &[], 0)]), [2, 0]);
        assert_eq!(weights(vec![route("/x", "a", &[], 0), route("/x", "b", &[], 0)]), [1, 1]);
    }

    #[test]
    fn what_the_world_calls_stands_at_its_gateways() {
        let settings = Settings { gateways: vec!["istio-system/public".into()], ..settings() };
        let routes = Routes { routes: vec![route("", "a", &[1], 100)] };
        let all = hosts(routes, InternalRoutes::default(), &settings);
        let rules = all["shop.example.com"].rules.clone().unwrap();
        assert!(rules.contains(r#""gateways":["istio-system/public","mesh"]"#), "{rules}");
    }
}
