//! Kubernetes objects that speak of each other: services, slices, pods and nodes; and Secrets.

use proptest::prelude::*;

use super::{NAMESPACES, pick};

pub(super) fn object() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => pod(),
        1 => node(),
        2 => service(),
        2 => slice(),
        1 => system_namespace(),
        1 => secret(),
    ]
}

/// Their names are those of proxies too.
fn pod() -> impl Strategy<Value = String> {
    let addresses = pick(&[
        "podIP: 10.1.0.1",
        "podIP: 10.1.0.2",
        "podIP: 10.1.0.7, podIPs: [{ip: 10.1.0.7}, {ip: 'fd00::7'}]",
    ]);
    let ready = pick(&["'True'", "'True'", "'False'"]);
    let spec = pick(&[
        "nodeName: node-1, containers: [{ports: [{name: web, containerPort: 8080}]}]",
        "nodeName: node-2, serviceAccountName: sa, subdomain: s3",
    ]);
    let labels = pick(&[
        "app: x",
        "app: w, topology.istio.io/network: n2",
        "app: w, security.istio.io/tlsMode: istio",
    ]);
    (pick(&NAMESPACES), pick(&["p0", "p1", "p2"]), (labels, spec), addresses, ready).prop_map(
        |(namespace, name, (labels, spec), addresses, ready)| {
            format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: {namespace}, labels: {{{labels}}}}}, \
                 spec: {{{spec}}}, status: {{{addresses}, conditions: [{{type: Ready, status: {ready}}}]}}}}"
            )
        },
    )
}

fn node() -> impl Strategy<Value = String> {
    let labels = pick(&["topology.kubernetes.io/region: r1, topology.kubernetes.io/zone: z2", "role: edge"]);
    let address = pick(&["", "{type: ExternalIP, address: 192.0.2.1}"]);
    (pick(&["node-1", "node-2"]), labels, address).prop_map(|(name, labels, address)| {
        format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: {name}, labels: {{{labels}}}}}, status: {{addresses: [{address}]}}}}"
        )
    })
}

fn service() -> impl Strategy<Value = String> {
    let meta = pick(&[
        "",
        "labels: {topology.istio.io/network: n2}",
        "labels: {topology.istio.io/network: n3}, annotations: {traffic.istio.io/nodeSelector: '{\"role\": \"edge\"}'}",
    ]);
    let spec = pick(&[
        "clusterIP: 10.0.0.3, selector: {app: x}, ports: [{name: http, port: 80, targetPort: web}]",
        "clusterIP: None, selector: {app: w}, ports: [{name: udp, port: 53, protocol: UDP}, {name: tcp, port: 90}]",
        "clusterIP: 10.0.0.4, internalTrafficPolicy: Local, ports: [{name: http, port: 80}, {name: web, port: 81, targetPort: 80}]",
        "type: NodePort, clusterIP: 10.0.0.5, selector: {app: w}, ports: [{name: tls, port: 15443, nodePort: 31443}]",
        "type: ClusterIP, clusterIP: 10.0.0.6, externalIPs: [192.0.2.7, gw.example.com], ports: [{name: tls, port: 15443}]",
    ]);
    (pick(&NAMESPACES), pick(&["s3", "s4"]), meta, spec).prop_map(|(namespace, name, meta, spec)| {
        let comma = if meta.is_empty() { "" } else { ", " };
        format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: {namespace}{comma}{meta}}}, spec: {{{spec}}}}}"
        )
    })
}

/// Two for each service, which may say the same.
fn slice() -> impl Strategy<Value = String> {
    let endpoints = pick(&[
        "{addresses: [10.1.0.1], targetRef: {kind: Pod, name: p0}}",
        "{addresses: [10.1.0.2], targetRef: {kind: Pod, name: p1}}, {addresses: [10.1.0.1]}",
        "{addresses: [10.1.0.1], conditions: {ready: false, serving: false, terminating: false}}",
        "{addresses: [10.1.0.7]}, {addresses: [10.1.0.7]}",
    ]);
    let ports = pick(&[
        "{name: http, port: 8080}",
        "{name: udp, port: 53, protocol: UDP}, {name: tcp, port: 90}, {name: http}",
    ]);
    (pick(&NAMESPACES), pick(&["s3", "s4"]), pick(&["a", "b"]), ports, endpoints).prop_map(
        |(namespace, service, name, ports, endpoints)| {
            format!(
                "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
                 metadata: {{name: {service}-{name}, namespace: {namespace}, labels: {{kubernetes.io/service-name: {service}}}}}, \
                 ports: [{ports}], endpoints: [{endpoints}]}}"
            )
        },
    )
}

fn system_namespace() -> impl Strategy<Value = String> {
    pick(&["", "topology.istio.io/network: n1"]).prop_map(|labels| {
        format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: istio-system, labels: {{{labels}}}}}}}")
    })
}

fn secret() -> impl Strategy<Value = String> {
    let data =
        pick(&["tls.crt: YQ==, tls.key: Yg==", "tls.crt: YQ==, tls.key: Yw==, ca.crt: ZA==", "cacert: ZQ=="]);
    (pick(&NAMESPACES), pick(&["cert", "cert-cacert"]), data).prop_map(|(namespace, name, data)| {
        format!(
            "{{apiVersion: v1, kind: Secret, metadata: {{name: {name}, namespace: {namespace}}}, data: {{{data}}}}}"
        )
    })
}
