use pilot_base::Name;
use pilot_model::{EndpointSlice, Object, Pod, Protocol, Secret, Service, WorkloadPort};

use crate::{ReadOptions, Reading, read};

fn reading(text: &str) -> Reading {
    read(text, "test.yaml", &ReadOptions::default()).expect("the test's own YAML")
}

fn pod(text: &str) -> Pod {
    let reading = reading(&format!("{{apiVersion: v1, kind: Pod, {text}}}"));
    assert!(reading.issues.is_empty(), "{:?}", reading.issues);
    match reading.objects.into_iter().next() {
        Some((_, _, Object::Pod(_, pod))) => pod,
        other => panic!("a pod, not {other:?}"),
    }
}

fn slice(text: &str) -> (EndpointSlice, Vec<String>) {
    let meta = "metadata: {name: s-1, labels: {kubernetes.io/service-name: s}}";
    let reading =
        reading(&format!("{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, {meta}, {text}}}"));
    let issues = reading.issues.iter().map(|issue| issue.path.to_string()).collect();
    match reading.objects.into_iter().next() {
        Some((_, _, Object::EndpointSlice(_, slice))) => (slice, issues),
        other => panic!("a slice, not {other:?}"),
    }
}

fn service(text: &str) -> (Service, Vec<String>) {
    let reading = reading(&format!("{{apiVersion: v1, kind: Service, {text}}}"));
    let issues = reading.issues.iter().map(|issue| issue.path.to_string()).collect();
    match reading.objects.into_iter().next() {
        Some((_, _, Object::Service(_, service))) => (service, issues),
        other => panic!("a service, not {other:?}"),
    }
}

#[test]
fn a_pod_can_be_called_once_it_says_so_and_until_it_is_told_to_end() {
    let ready = "conditions: [{type: Ready, status: 'True'}]";
    let with =
        |meta: &str, status: &str| pod(&format!("metadata: {{name: p{meta}}}, status: {{{status}}}")).ready;
    assert!(with("", &format!("podIP: 10.0.0.1, {ready}")));
    assert!(!with("", "podIP: 10.0.0.1"), "nobody has asked it yet");
    assert!(!with("", ready), "it has no address");
    assert!(!with("", "podIP: 10.0.0.1, conditions: [{type: Ready, status: 'False'}]"));
    assert!(!with(", deletionTimestamp: '2026-01-01T00:00:00Z'", &format!("podIP: 10.0.0.1, {ready}")));
    assert!(!with("", &format!("phase: Succeeded, podIP: 10.0.0.1, {ready}")));
    let failed = reading("{apiVersion: v1, kind: Pod, metadata: {name: p}, status: {phase: Failed}}");
    assert!(failed.objects.is_empty() && failed.broken.is_empty() && failed.issues.is_empty());
}

#[test]
fn named_ports_are_those_of_tcp_and_the_first_of_a_name_counts() {
    let pod = pod("metadata: {name: p}, spec: {containers: [\
        {ports: [{name: web, containerPort: 8080}, {name: dns, containerPort: 53, protocol: UDP}, {containerPort: 1}]}, \
        {ports: [{name: web, containerPort: 9090}, {name: admin, containerPort: 9000, protocol: TCP}]}], \
        initContainers: [{ports: [{name: setup, containerPort: 1000}]}, \
        {restartPolicy: Always, ports: [{name: admin, containerPort: 1}, {name: proxy, containerPort: 15090}]}]}");
    let ports: Vec<(&str, u16)> = pod.ports.iter().map(|(name, port)| (name.as_str(), *port)).collect();
    assert_eq!(ports, [("admin", 9000), ("proxy", 15090), ("web", 8080)]);
}

#[test]
fn a_port_without_a_number_takes_no_other_along() {
    let (slice, issues) = slice(
        "addressType: IPv4, endpoints: [{addresses: [10.0.0.1]}], \
         ports: [{name: a, port: 80}, {name: b, port: null}, {name: c}, {name: d, port: 0}, {name: e, port: 53, protocol: UDP}]",
    );
    let ports: Vec<_> = slice.ports.iter().map(|p| (p.name.as_str(), p.number, p.protocol)).collect();
    assert_eq!(ports, [("a", 80, Protocol::Tcp), ("e", 53, Protocol::Udp)]);
    assert_eq!(issues, ["ports[3].port"]);
}

#[test]
fn slices_of_names_are_told_once_and_those_of_cluster_sets_are_others() {
    let (names, issues) = slice(
        "addressType: FQDN, endpoints: [{addresses: [a.example.com]}, {addresses: [b.example.com]}], ports: [{port: 80}]",
    );
    assert!(names.endpoints.is_empty());
    assert_eq!(issues, ["addressType"]);
    let labels = "kubernetes.io/service-name: s, multicluster.kubernetes.io/service-name: s";
    let other = reading(&format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: s-1, labels: {{{labels}}}}}, \
         addressType: IPv4, endpoints: [{{addresses: [10.0.0.1]}}], ports: []}}"
    ));
    assert!(other.objects.is_empty() && other.issues.is_empty(), "{other:?}");
    assert!(slice("addressType: IPv6, endpoints: [], ports: []").0.ipv6);
}

#[test]
fn gateways_on_nodes_say_which_and_at_which_ports() {
    let of = |annotation: &str, kind: &str| {
        service(&format!(
            "metadata: {{name: gw, annotations: {{{annotation}}}}}, spec: {{type: {kind}, clusterIP: 10.0.0.1, \
             ports: [{{name: tls, port: 15443, nodePort: 31443}}, {{name: other, port: 80}}]}}"
        ))
    };
    let (some, issues) = of(r#"traffic.istio.io/nodeSelector: '{"role": "edge"}'"#, "NodePort");
    assert!(issues.is_empty());
    let found = some.node_ports.expect("it says which nodes");
    assert_eq!(found.nodes.get("role").map(Name::as_str), Some("edge"));
    assert_eq!(found.ports.iter().map(|(a, b)| (*a, *b)).collect::<Vec<_>>(), [(15443, 31443)]);
    assert!(of("traffic.istio.io/nodeSelector: ''", "NodePort").0.node_ports.is_some());
    assert!(of("", "NodePort").0.node_ports.is_none());
    assert!(of("traffic.istio.io/nodeSelector: ''", "LoadBalancer").0.node_ports.is_none());
    let (all, issues) = of("traffic.istio.io/nodeSelector: 'role=edge'", "NodePort");
    assert_eq!(issues, ["metadata.annotations[traffic.istio.io/nodeSelector]"]);
    assert!(all.node_ports.is_some_and(|found| found.nodes.iter().next().is_none()));
}

#[test]
fn nodes_are_reached_from_outside_at_their_external_address() {
    let text = "{apiVersion: v1, kind: Node, metadata: {name: node-1}, status: {addresses: [\
        {type: InternalIP, address: 10.0.0.1}, {type: ExternalIP, address: 192.0.2.1}, {type: ExternalIP, address: 192.0.2.2}]}}";
    let read = reading(text).objects.into_iter().next();
    let Some((_, _, Object::Node(_, node))) = read else { panic!("a node") };
    assert_eq!(node.outer_address.as_deref(), Some("192.0.2.1"));
}

#[test]
fn target_ports_out_of_range_are_told_with_their_field() {
    let of = |target: &str| {
        let text = format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: s}}, spec: {{ports: [{{port: 80, targetPort: {target}}}]}}}}"
        );
        let reading = reading(&text);
        reading.issues.iter().map(|issue| issue.path.to_string()).collect::<Vec<_>>()
    };
    assert!(of("web").is_empty() && of("8080").is_empty() && of("null").is_empty());
    assert_eq!(of("70000"), ["spec.ports[0].targetPort"]);
    assert_eq!(of("-1"), ["spec.ports[0].targetPort"]);
    let (none, _) = service("metadata: {name: s}, spec: {ports: [{name: a, port: 80, targetPort: 0}]}");
    assert_eq!(none.workload_ports.get("a"), Some(&WorkloadPort::Number(80)));
}

fn secret(text: &str) -> (Option<Secret>, Vec<String>) {
    let reading = reading(&format!("{{apiVersion: v1, kind: Secret, metadata: {{name: s}}, {text}}}"));
    let issues = reading.issues.iter().map(|issue| issue.path.to_string()).collect();
    match reading.objects.into_iter().next() {
        None => (None, issues),
        Some((_, _, Object::Secret(_, secret))) => (Some(secret), issues),
        other => panic!("a secret, not {other:?}"),
    }
}

#[test]
fn secrets_of_both_forms_are_read_and_those_of_others_are_not() {
    let (read, issues) = secret("data: {tls.crt: YQ==, tls.key: Yg==, ca.crt: Yw==, tls.ocsp-staple: ZA==}");
    assert_eq!(issues, [""; 0]);
    let read = read.unwrap();
    let pair = read.pair.unwrap();
    assert_eq!((pair.chain.bytes(), pair.key.bytes()), (&b"a"[..], &b"b"[..]));
    assert_eq!(pair.staple.unwrap().bytes(), b"d");
    assert_eq!(read.authority.unwrap().roots.bytes(), b"c");

    let (read, _) = secret("stringData: {cert: a, key: b, cacert: c, crl: d, tls.crt: e, tls.key: f}");
    let read = read.unwrap();
    assert_eq!(read.pair.unwrap().chain.bytes(), b"a", "Istio's own names come first");
    assert_eq!(read.authority.unwrap().revoked.unwrap().bytes(), b"d");

    let (read, _) = secret("data: {ca.crt: Yw==}");
    assert!(read.is_some_and(|read| read.pair.is_none()));
    for of_others in
        ["data: {password: YQ==}", "data: {tls.crt: YQ==}", "data: {tls.crt: '', tls.key: ''}", "type: x"]
    {
        assert_eq!(secret(of_others), (None, Vec::new()), "{of_others}");
    }
    let (read, issues) = secret("data: {tls.crt: '?', tls.key: Yg==, ca.crt: Yw==}");
    assert!(read.is_some_and(|read| read.pair.is_none() && read.authority.is_some()));
    assert_eq!(issues, ["data[tls.crt]"]);
}
