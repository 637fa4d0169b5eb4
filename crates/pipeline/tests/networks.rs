//! Networks: who is in which, and over which gateways others are reached.
#![allow(clippy::panic, reason = "a test that cannot go on fails")]

mod world;

use pilot_base::Name;
use pilot_model::{Features, MeshOptions, Proxy};

use world::{World, sidecar};

const REMOTE: &str = "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: e, namespace: shop}
spec:
  hosts: [e.com]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{name: http, number: 80, protocol: HTTP}]
  endpoints: [{address: 10.2.0.1, network: n2, serviceAccount: sa, labels: {security.istio.io/tlsMode: istio}}]
";

fn gateway(kind: &str, annotations: &str, rest: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: east-west, namespace: istio-system, \
         labels: {{topology.istio.io/network: n2}}, annotations: {{{annotations}}}}}, spec: {{type: {kind}, clusterIP: 10.0.0.1, \
         ports: [{{name: tls, port: 15443, nodePort: 31443}}]}}, {rest}}}"
    )
}

fn node(name: &str, role: &str, address: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Node, metadata: {{name: {name}, labels: {{role: {role}}}}}, \
         status: {{addresses: [{{type: InternalIP, address: 10.9.0.1}}, {{type: ExternalIP, address: {address}}}]}}}}\n---\n"
    )
}

fn world(change: impl FnOnce(&mut Features)) -> World {
    let mut options = MeshOptions::default();
    change(&mut options.features);
    let mut world = World::new(options);
    world.tell(REMOTE);
    world.connect(Proxy { network: Name::new("n1"), ..sidecar("client", "10.1.0.9") });
    world
}

fn reached(world: &World) -> Vec<String> {
    world.endpoints("outbound|80||e.com")
}

#[test]
fn a_gateway_with_a_name_is_reached_at_its_addresses_once_they_are_known() {
    let mut world = world(|_| ());
    assert_eq!(reached(&world), ["10.2.0.1:80"], "without gateways everything is reached directly");
    let told = world.tell(&gateway(
        "LoadBalancer",
        "",
        "status: {loadBalancer: {ingress: [{hostname: gw.example.com}, {ip: 192.0.2.1}]}}",
    ));
    assert_eq!(told.wanted_names, [(Name::new("gw.example.com"), true)]);
    assert_eq!(reached(&world), ["192.0.2.1:15443"]);
    world.found("gw.example.com", &["192.0.2.9", "192.0.2.8"], None);
    assert_eq!(reached(&world), ["192.0.2.1:15443", "192.0.2.8:15443", "192.0.2.9:15443"]);
    assert_eq!(world.issues(), [""; 0]);
    world.found("gw.example.com", &["192.0.2.8"], Some("no answer"));
    assert_eq!(reached(&world), ["192.0.2.1:15443", "192.0.2.8:15443"]);
    let issues = world.issues();
    let expected = "warning: Service istio-system/east-west: status.loadBalancer.ingress: gw.example.com was not found: \
                    no answer; its last addresses are still used";
    assert!(issues.len() == 1 && issues[0].contains(expected), "{issues:?}");
    let gone = world.forget(&gateway("LoadBalancer", "", "status: {}"));
    assert_eq!(gone.wanted_names, [(Name::new("gw.example.com"), false)]);
    assert_eq!((reached(&world), world.issues().len()), (vec!["10.2.0.1:80".to_owned()], 0));
}

#[test]
fn names_that_nobody_looks_up_are_told() {
    let mut world = world(|features| features.resolve_gateways = false);
    let told = world.networks("networks: {n2: {gateways: [{address: gw.example.com, port: 15443}]}}");
    assert!(told.wanted_names.is_empty());
    assert_eq!(reached(&world), ["10.2.0.1:80"]);
    let issues = world.issues();
    assert!(
        issues.len() == 1
            && issues[0].contains("networks.n2.gateways[0].address: gw.example.com is not looked up"),
        "{issues:?}"
    );
}

#[test]
fn names_that_the_mesh_declares_are_looked_up_too() {
    let mut world = world(|_| ());
    let told = world.networks("networks: {n2: {gateways: [{address: gw.example.com, port: 15443}]}}");
    assert_eq!(told.wanted_names, [(Name::new("gw.example.com"), true)]);
    world.found("gw.example.com", &["192.0.2.9"], None);
    assert_eq!(reached(&world), ["192.0.2.9:15443"]);
}

#[test]
fn a_gateway_on_nodes_is_reached_at_their_outer_addresses() {
    let mut world = world(|_| ());
    world.tell(
        &(node("a", "edge", "192.0.2.1") + &node("b", "edge", "192.0.2.2") + &node("c", "app", "192.0.2.3")),
    );
    world.tell(&gateway("NodePort", r#"traffic.istio.io/nodeSelector: '{"role": "edge"}'"#, "status: {}"));
    assert_eq!(reached(&world), ["192.0.2.1:31443", "192.0.2.2:31443"]);
    world.tell(&node("c", "edge", "192.0.2.3"));
    assert_eq!(reached(&world).len(), 3);
    // All nodes, as it selects none.
    world.tell(&node("c", "app", "192.0.2.3"));
    world.tell(&gateway("NodePort", "traffic.istio.io/nodeSelector: ''", "status: {}"));
    assert_eq!(reached(&world).len(), 3);
    for name in ["a", "b", "c"] {
        world.forget(&node(name, "edge", "192.0.2.1"));
    }
    assert_eq!(reached(&world), ["10.2.0.1:80"]);
    let issues = world.issues();
    let expected =
        "metadata.annotations: nobody reaches network n2 over it: no node that it selects has an ExternalIP";
    assert!(issues.len() == 1 && issues[0].contains(expected), "{issues:?}");
}

#[test]
fn a_gateway_that_cannot_be_reached_is_told() {
    let mut world = world(|_| ());
    world.tell(&gateway("LoadBalancer", "", "status: {}"));
    assert!(world.issues()[0].contains("has no address outside of its cluster yet"), "{:?}", world.issues());
    let text = gateway("LoadBalancer", "", "status: {}").replace("port: 15443", "port: 443");
    world.tell(&text);
    assert!(
        world.issues()[0].contains("spec.ports: nobody reaches network n2 over it: it has no port 15443")
    );
    world.tell(&text.replace("labels: {topology.istio.io/network: n2}", "labels: {}"));
    assert_eq!(world.issues(), [""; 0]);
}

#[test]
fn pods_behind_entries_are_in_the_network_of_their_cluster() {
    let mut world = world(|_| ());
    let of_namespace = |name: &str, network: &str| {
        format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}, labels: {{topology.istio.io/network: {network}}}}}}}"
        )
    };
    let entry = REMOTE.replace("name: e,", "name: p,").replace("e.com", "p.com");
    let (head, _) = entry.split_once("  endpoints:").expect("its endpoints");
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: web-1, namespace: shop, \
               labels: {app: web, security.istio.io/tlsMode: istio}}, \
               status: {podIP: 10.3.0.1, conditions: [{type: Ready, status: 'True'}]}}";
    let gateway = gateway("LoadBalancer", "", "status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}");
    let text = format!("{head}  workloadSelector: {{labels: {{app: web}}}}\n---\n{pod}\n---\n{gateway}");
    world.tell(&text);
    let reached = |world: &World| world.endpoints("outbound|80||p.com");
    assert_eq!(reached(&world), ["10.3.0.1:80"]);
    world.tell(&of_namespace("istio-system", "n2"));
    assert_eq!(reached(&world), ["192.0.2.1:15443"]);
    // The server's namespace says it, and no other.
    world.tell(&of_namespace("istio-system", "n1"));
    world.tell(&of_namespace("istio-config", "n2"));
    assert_eq!(reached(&world), ["10.3.0.1:80"]);
    let mut elsewhere = World::new(MeshOptions { namespace: Name::new("control"), ..MeshOptions::default() });
    elsewhere.tell(&of_namespace("istio-system", "n1"));
    elsewhere.tell(&of_namespace("control", "n2"));
    elsewhere.tell(&text);
    elsewhere.connect(Proxy { network: Name::new("n1"), ..sidecar("client", "10.1.0.9") });
    assert_eq!(reached(&elsewhere), ["192.0.2.1:15443"]);
}
