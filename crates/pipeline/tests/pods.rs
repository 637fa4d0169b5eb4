//! Pods: who a proxy is, what it serves, and what the endpoints behind services are.
#![allow(clippy::panic, reason = "a test that cannot go on fails")]

mod world;

use pilot_base::Name;
use pilot_model::{Features, MeshOptions, Proxy, ProxyType};
use pilot_xds::TypeUrl;

use world::{World, labels, sidecar};

const READY: &str = "conditions: [{type: Ready, status: 'True'}]";

fn pod(name: &str, ip: &str, app: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, labels: {{app: {app}}}}}, \
         spec: {{{spec}}}, status: {{podIP: {ip}, {READY}}}}}\n---\n"
    )
}

fn service(name: &str, address: &str, ports: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: shop}}, \
         spec: {{clusterIP: {address}, selector: {{app: {name}}}, ports: [{ports}]}}}}\n---\n"
    )
}

fn slice(name: &str, of: &str, rest: &str) -> String {
    format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, \
         metadata: {{name: {name}, namespace: shop, labels: {{kubernetes.io/service-name: {of}}}}}, {rest}}}\n---\n"
    )
}

fn nodes() -> &'static str {
    "{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {topology.kubernetes.io/region: r1, topology.kubernetes.io/zone: z1}}}\n---\n\
     {apiVersion: v1, kind: Node, metadata: {name: n2, labels: {topology.kubernetes.io/region: r1, topology.kubernetes.io/zone: z2}}}\n---\n"
}

fn with(change: impl FnOnce(&mut Features)) -> World {
    let mut options = MeshOptions::default();
    change(&mut options.features);
    World::new(options)
}

fn plain() -> World {
    World::new(MeshOptions::default())
}

#[test]
fn a_proxy_is_where_the_node_of_its_pod_is() {
    let mut world = plain();
    world.tell(nodes());
    world.tell(&pod("client", "10.1.0.9", "client", "nodeName: n1"));
    world.tell(&pod("web-1", "10.1.0.1", "web", "nodeName: n1"));
    world.tell(&pod("web-2", "10.1.0.2", "web", "nodeName: n2"));
    world.tell(
        "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {clusterIP: 10.0.0.1, \
         trafficDistribution: PreferClose, selector: {app: web}, ports: [{name: http, port: 80}]}}",
    );
    world.tell(&slice(
        "web-1",
        "web",
        "addressType: IPv4, ports: [{name: http, port: 80}], endpoints: [\
         {addresses: [10.1.0.1], targetRef: {kind: Pod, name: web-1}}, {addresses: [10.1.0.2], targetRef: {kind: Pod, name: web-2}}]",
    ));
    world.connect(sidecar("client", "10.1.0.9"));
    let near = |world: &World| world.priorities("outbound|80||web.shop.svc.cluster.local");
    assert_eq!(near(&world), [("10.1.0.1:80".to_owned(), 0), ("10.1.0.2:80".to_owned(), 1)].into());
    // The pod is on another node now.
    world.tell(&pod("client", "10.1.0.9", "client", "nodeName: n2"));
    assert_eq!(near(&world), [("10.1.0.1:80".to_owned(), 1), ("10.1.0.2:80".to_owned(), 0)].into());
    // Who is no pod says itself where it is.
    let elsewhere = Proxy { locality: pilot_model::Locality::parse("r1/z1"), ..sidecar("vm", "10.1.0.9") };
    world.connect(elsewhere);
    assert_eq!(near(&world)["10.1.0.1:80"], 0);
}

#[test]
fn entries_call_pods_at_the_ports_that_they_name() {
    let mut world = plain();
    world.tell(
        "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: e, namespace: shop}, \
         spec: {hosts: [e.com], resolution: STATIC, location: MESH_INTERNAL, workloadSelector: {labels: {app: web}}, \
         ports: [{name: web, number: 80, protocol: HTTP, targetPort: 81}, {name: tgt, number: 90, protocol: TCP, targetPort: 91}, \
         {name: num, number: 70, protocol: TCP}]}}",
    );
    let ports = "containers: [{ports: [{name: web, containerPort: 8080}, {name: web, containerPort: 1}]}]";
    world.tell(&pod("web-1", "10.1.0.1", "web", ports));
    world.connect(sidecar("client", "10.1.0.9"));
    let at = |port: u16| world.endpoints(&format!("outbound|{port}||e.com"));
    assert_eq!(
        (at(80), at(90), at(70)),
        (vec!["10.1.0.1:8080".to_owned()], vec!["10.1.0.1:91".to_owned()], vec!["10.1.0.1:70".to_owned()])
    );
}

#[test]
fn a_pod_that_ends_is_behind_no_entry() {
    let mut world = plain();
    world.tell(
        "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: e, namespace: shop}, \
         spec: {hosts: [e.com], resolution: STATIC, workloadSelector: {labels: {app: web}}, ports: [{name: web, number: 80, protocol: HTTP}]}}",
    );
    world.connect(sidecar("client", "10.1.0.9"));
    world.tell(&pod("web-1", "10.1.0.1", "web", ""));
    assert_eq!(world.endpoints("outbound|80||e.com"), ["10.1.0.1:80"]);
    world.tell(&format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: web-1, namespace: shop, labels: {{app: web}}, \
         deletionTimestamp: '2026-01-01T00:00:00Z'}}, status: {{podIP: 10.1.0.1, {READY}}}}}"
    ));
    assert!(world.endpoints("outbound|80||e.com").is_empty());
}

#[test]
fn entries_and_services_select_across_only_where_that_is_on() {
    let entry = "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: e, namespace: shop}, \
         spec: {hosts: [e.com], resolution: STATIC, workloadSelector: {labels: {app: web}}, ports: [{name: web, number: 80, protocol: HTTP}]}}\n---\n";
    let outside = "{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: vm, namespace: shop}, \
         spec: {address: 10.1.0.5, labels: {app: web}}}";
    let told = |mut world: World| {
        world.tell(&(entry.to_owned() + &pod("web-1", "10.1.0.1", "web", "")));
        world.tell(&(service("web", "10.0.0.1", "{name: http, port: 80}") + outside));
        world.connect(sidecar("client", "10.1.0.9"));
        let of_entry = world.endpoints("outbound|80||e.com");
        (of_entry, world.endpoints("outbound|80||web.shop.svc.cluster.local"))
    };
    let all = |addresses: &[&str]| addresses.iter().map(|a| format!("{a}:80")).collect::<Vec<_>>();
    assert_eq!(told(plain()), (all(&["10.1.0.1", "10.1.0.5"]), all(&["10.1.0.5"])));
    assert_eq!(told(with(|f| f.entries_select_pods = false)), (all(&["10.1.0.5"]), all(&["10.1.0.5"])));
    assert_eq!(told(with(|f| f.services_select_entries = false)), (all(&["10.1.0.1", "10.1.0.5"]), vec![]));
}

#[test]
fn workloads_of_other_clusters_are_behind_their_own_services_and_all_entries() {
    let entry = "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: e, namespace: shop}, \
         spec: {hosts: [e.com], resolution: STATIC, workloadSelector: {labels: {app: web}}, ports: [{name: web, number: 80, protocol: HTTP}]}}";
    let vm = |address: &str| {
        format!(
            "{{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {{name: vm, namespace: shop}}, \
             spec: {{address: {address}, labels: {{app: web}}}}}}"
        )
    };
    let mut world = plain();
    world.connect(sidecar("client", "10.1.0.9"));
    world.tell(entry);
    world.tell(&vm("10.1.0.5"));
    world.tell_in("east", &vm("10.2.0.5"));
    assert_eq!(world.endpoints("outbound|80||e.com"), ["10.1.0.5:80", "10.2.0.5:80"], "two of one name");
    let host = "outbound|80||web.shop.svc.cluster.local";
    world.tell_in("east", &service("web", "10.0.0.1", "{name: http, port: 80}"));
    assert_eq!(world.endpoints(host), ["10.2.0.5:80"], "what it selects is in its cluster");
    world.tell(&service("web", "10.0.0.1", "{name: http, port: 80}"));
    assert_eq!(world.endpoints(host), ["10.1.0.5:80", "10.2.0.5:80"]);
    world.tell_in("east", &vm("10.2.0.6"));
    assert_eq!(world.endpoints(host), ["10.1.0.5:80", "10.2.0.6:80"]);
    assert_eq!(world.endpoints("outbound|80||e.com"), ["10.1.0.5:80", "10.2.0.6:80"]);
}

#[test]
fn a_headless_service_is_found_by_name_also_if_its_first_port_is_one_of_udp() {
    let mut world = plain();
    world.tell(&service("dns", "None", "{name: udp, port: 53, protocol: UDP}, {name: tcp, port: 54}"));
    world.tell(&slice(
        "dns-1",
        "dns",
        "addressType: IPv4, ports: [{name: udp, port: 53, protocol: UDP}, {name: tcp, port: 54}], \
         endpoints: [{addresses: [10.1.0.1]}, {addresses: [10.1.0.2]}]",
    ));
    world.connect(Proxy { dns_capture: true, ..sidecar("client", "10.1.0.9") });
    assert_eq!(world.lookup("dns.shop.svc.cluster.local"), ["10.1.0.1", "10.1.0.2"]);
    assert!(world.names_of(TypeUrl::Cluster).iter().all(|name| !name.starts_with("outbound|53|")));
}

#[test]
fn who_shares_an_address_is_told_apart_by_name() {
    let mut world = plain();
    let host = |name: &str, port: u16| {
        pod(
            name,
            "192.168.0.1",
            name,
            &format!("hostNetwork: true, containers: [{{ports: [{{containerPort: {port}}}]}}]"),
        )
    };
    world.tell(&(host("edge", 8080) + &host("other", 9090)));
    world.tell(&service("edge", "10.0.0.1", "{name: http, port: 80, targetPort: 8080}"));
    world.tell(&service("other", "10.0.0.2", "{name: http, port: 80, targetPort: 9090}"));
    for (name, port) in [("edge-1", 8080), ("other-1", 9090)] {
        let (of, _) = name.split_once('-').expect("a name");
        let rest = format!(
            "addressType: IPv4, ports: [{{name: http, port: {port}}}], \
             endpoints: [{{addresses: [192.168.0.1], targetRef: {{kind: Pod, name: {of}}}}}]"
        );
        world.tell(&slice(name, of, &rest));
    }
    world.connect(sidecar("edge", "192.168.0.1"));
    assert_eq!(world.inbound_ports(), [8080]);
    world.connect(sidecar("other", "192.168.0.1"));
    assert_eq!(world.inbound_ports(), [9090]);
    // A gateway is the one that its own pod's labels select.
    world.tell(
        "{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: g, namespace: shop}, \
         spec: {selector: {app: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}}",
    );
    let router = |name: &str| Proxy { kind: ProxyType::Router, ..sidecar(name, "192.168.0.1") };
    world.connect(router("edge"));
    assert_eq!(world.names_of(TypeUrl::Listener), ["0.0.0.0_8080"]);
    world.connect(router("other"));
    assert!(world.names_of(TypeUrl::Listener).is_empty());
}

#[test]
fn an_address_tells_whose_pod_it_is_only_where_that_is_on() {
    let told = |mut world: World| {
        world.tell(&pod("web-1", "10.1.0.1", "web", ""));
        world.tell(&service("web", "10.0.0.1", "{name: http, port: 80, targetPort: 8080}"));
        world.connect(sidecar("a-name-of-its-own", "10.1.0.1"));
        world.inbound_ports()
    };
    assert!(told(plain()).is_empty());
    assert_eq!(told(with(|f| f.pods_by_address = true)), [8080]);
}

#[test]
fn a_pod_serves_what_selects_it_before_a_slice_names_it() {
    let mut world = plain();
    world.tell(&pod("web-1", "10.1.0.1", "web", "containers: [{ports: [{name: web, containerPort: 8080}]}]"));
    world.connect(sidecar("web-1", "10.1.0.1"));
    assert!(world.inbound_ports().is_empty());
    world.tell(&service(
        "web",
        "10.0.0.1",
        "{name: http, port: 80, targetPort: web}, {name: none, port: 90, targetPort: none}",
    ));
    assert_eq!(world.inbound_ports(), [8080]);
    // Who is not known yet tells its labels and ports itself.
    let told = Proxy {
        labels: labels(&[("app", "web")]),
        pod_ports: [(Name::new("web"), 8081)].into(),
        ..sidecar("web-2", "10.1.0.2")
    };
    world.connect(told);
    assert_eq!(world.inbound_ports(), [8081]);
}

#[test]
fn a_pod_that_no_service_selects_serves_what_is_written_for_its_address() {
    let mut world = plain();
    world.tell(&pod("db-1", "10.1.0.1", "db", ""));
    world.tell(
        "{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop}, spec: {clusterIP: None, ports: [{name: tcp, port: 5432}]}}",
    );
    world.tell(&slice(
        "db-1",
        "db",
        "addressType: IPv4, ports: [{name: tcp, port: 5433}], endpoints: [{addresses: [10.1.0.1]}]",
    ));
    world.connect(sidecar("db-1", "10.1.0.1"));
    assert_eq!(world.inbound_ports(), [5433]);
}

#[test]
fn both_addresses_of_a_pod_are_one_endpoint() {
    let text = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: web-1, namespace: shop, labels: {{app: web}}}}, \
         status: {{podIP: 10.1.0.1, podIPs: [{{ip: 10.1.0.1}}, {{ip: 'fd00::1'}}], {READY}}}}}\n---\n\
         {{apiVersion: v1, kind: Service, metadata: {{name: web, namespace: shop}}, spec: {{clusterIP: 10.0.0.1, \
         clusterIPs: [10.0.0.1, 'fd00:10::1'], selector: {{app: web}}, ports: [{{name: http, port: 80}}]}}}}\n---\n"
    ) + &slice(
        "web-4",
        "web",
        "addressType: IPv4, ports: [{name: http, port: 80}], endpoints: [{addresses: [10.1.0.1], targetRef: {kind: Pod, name: web-1}}]",
    ) + &slice(
        "web-6",
        "web",
        "addressType: IPv6, ports: [{name: http, port: 80}], endpoints: [{addresses: ['fd00::1'], targetRef: {kind: Pod, name: web-1}}]",
    ) + "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: e, namespace: shop}, \
         spec: {hosts: [e.com], resolution: STATIC, workloadSelector: {labels: {app: web}}, ports: [{name: web, number: 80, protocol: HTTP}]}}";
    let told = |mut world: World| {
        world.tell(&text);
        world.connect(sidecar("client", "10.1.0.9"));
        let of_entry = world.endpoints("outbound|80||e.com");
        (world.endpoints("outbound|80||web.shop.svc.cluster.local"), of_entry)
    };
    let both = || vec!["10.1.0.1:80 fd00::1:80".to_owned()];
    assert_eq!(told(with(|f| f.dual_stack = true)), (both(), both()));
    let apart = vec!["10.1.0.1:80".to_owned(), "fd00::1:80".to_owned()];
    assert_eq!(told(plain()), (apart, vec!["10.1.0.1:80".to_owned()]));
}

#[test]
fn an_endpoint_without_a_name_is_the_pod_at_its_address() {
    let mut world = plain();
    world.tell(nodes());
    world.tell(&service("web", "10.0.0.1", "{name: http, port: 80}"));
    world.tell(
        "{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: web, namespace: shop}, \
         spec: {host: web, subsets: [{name: z1, labels: {topology.kubernetes.io/zone: z1}}]}}",
    );
    world.tell(&slice("web-1", "web", "addressType: IPv4, ports: [{name: http, port: 80}], endpoints: [{addresses: [10.1.0.1]}, {addresses: [10.1.0.2]}]"));
    world.connect(sidecar("client", "10.1.0.9"));
    let near = |world: &World| world.endpoints("outbound|80|z1|web.shop.svc.cluster.local");
    assert!(near(&world).is_empty());
    world.tell(&pod("web-1", "10.1.0.1", "web", "nodeName: n1"));
    assert_eq!(near(&world), ["10.1.0.1:80"]);
}

#[test]
fn what_two_slices_say_counts_once() {
    let mut world = plain();
    world.tell(&service("web", "10.0.0.1", "{name: http, port: 80}, {name: tcp, port: 90}"));
    let rest = |ready: bool, more: &str| {
        format!(
            "addressType: IPv4, ports: [{{name: http, port: 80}}, {{name: tcp, port: 90}}], \
             endpoints: [{{addresses: [10.1.0.1], conditions: {{ready: {ready}, serving: {ready}, terminating: false}}}}{more}]"
        )
    };
    world.tell(&slice("web-1", "web", &rest(false, "")));
    world.connect(sidecar("client", "10.1.0.9"));
    let health = |world: &World| world.health("outbound|80||web.shop.svc.cluster.local");
    assert_eq!(health(&world), [("10.1.0.1:80".to_owned(), "UNHEALTHY")]);
    // It moves to another slice, which knows more of it.
    world.tell(&slice("web-2", "web", &rest(true, ", {addresses: [10.1.0.1]}, {addresses: [10.1.0.2]}")));
    assert_eq!(
        health(&world),
        [("10.1.0.1:80".to_owned(), "HEALTHY"), ("10.1.0.2:80".to_owned(), "HEALTHY")]
    );
    assert_eq!(world.endpoints("outbound|90||web.shop.svc.cluster.local"), ["10.1.0.1:90", "10.1.0.2:90"]);
    world.forget(&slice("web-2", "web", &rest(true, "")));
    assert_eq!(health(&world), [("10.1.0.1:80".to_owned(), "UNHEALTHY")]);
}

#[test]
fn only_the_own_node_means_that_of_the_own_cluster() {
    let mut world = plain();
    let text = service("web", "10.0.0.1", "{name: http, port: 80}")
        .replace("selector:", "internalTrafficPolicy: Local, selector:");
    let of = |name: &str, ip: &str| {
        pod(name, ip, "web", "nodeName: n1")
            + &slice(
                name,
                "web",
                &format!(
                    "addressType: IPv4, ports: [{{name: http, port: 80}}], endpoints: [{{addresses: [{ip}], targetRef: {{kind: Pod, name: {name}}}}}]"
                ),
            )
    };
    world.tell(&(text.clone() + &of("web-1", "10.1.0.1")));
    world.tell_in("east", &(text + &of("web-2", "10.2.0.1")));
    let client = || Proxy { node: Name::new("n1"), ..sidecar("client", "10.1.0.9") };
    world.connect(client());
    let near = |world: &World| world.endpoints("outbound|80||web.shop.svc.cluster.local");
    assert_eq!(near(&world), ["10.1.0.1:80"]);
    world.connect(Proxy { cluster: Name::new("east"), ..client() });
    assert_eq!(near(&world), ["10.2.0.1:80"]);
}

#[test]
fn a_cluster_may_be_called_by_its_alias() {
    let aliases = [(Name::new("old-east"), Name::new("east"))];
    let mut world = World::new(MeshOptions { cluster_aliases: aliases.into(), ..MeshOptions::default() });
    world.tell_in("east", &pod("web-1", "10.1.0.1", "web", ""));
    world.tell_in("east", &service("web", "10.0.0.1", "{name: http, port: 80, targetPort: 8080}"));
    world.connect(Proxy { cluster: Name::new("old-east"), ..sidecar("web-1", "10.1.0.1") });
    assert_eq!(world.inbound_ports(), [8080]);
    world.connect(Proxy { cluster: Name::new("west"), ..sidecar("web-1", "10.1.0.1") });
    assert!(world.inbound_ports().is_empty());
}
