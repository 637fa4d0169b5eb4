//! Objects of the kinds that shape gateways, security, telemetry and everything in Envoy's own words.

use proptest::prelude::*;

use super::{NAMESPACES, pick};

/// One of several bodies for an object of a kind; each namespace has at most two of them.
fn one_of(
    version: &'static str,
    kind: &'static str,
    specs: &'static [&'static str],
) -> impl Strategy<Value = String> {
    (pick(&NAMESPACES), pick(&["one", "two"]), pick(specs)).prop_map(move |(namespace, name, spec)| {
        format!(
            "{{apiVersion: {version}, kind: {kind}, metadata: {{name: {name}, namespace: {namespace}}}, spec: {{{spec}}}}}"
        )
    })
}

pub(super) fn object() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => networking(),
        2 => gateways(),
        2 => security(),
        1 => envoy_filter(),
        1 => telemetry(),
    ]
}

fn networking() -> impl Strategy<Value = String> {
    let entries = one_of(
        "networking.istio.io/v1",
        "ServiceEntry",
        &[
            "hosts: [d1.com], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]",
            "hosts: [d1.com, d2.com], resolution: DNS, ports: [{number: 443, name: tls, protocol: TLS}], \
             endpoints: [{address: a.d1.com, locality: r1/z1}, {address: b.d1.com}]",
            "hosts: [w.com], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], \
             workloadSelector: {labels: {app: x}}",
            "hosts: ['*.n.com'], resolution: NONE, ports: [{number: 443, name: tls, protocol: TLS}]",
        ],
    );
    let workloads = one_of(
        "networking.istio.io/v1",
        "WorkloadEntry",
        &[
            "address: 10.1.0.1, labels: {app: x, version: v1}",
            "address: 10.1.0.2, labels: {app: x}, ports: {http: 8080}, serviceAccount: sa",
        ],
    );
    let routes = one_of(
        "networking.istio.io/v1",
        "VirtualService",
        &[
            "hosts: [e1.com], tcp: [{match: [{port: 80}], route: [{destination: {host: d1.com}}]}]",
            "hosts: [d2.com, '*.n.com'], tls: [{match: [{port: 443, sniHosts: [d2.com]}], route: [{destination: {host: d1.com}}]}]",
            "hosts: [d1.com], http: [{match: [{sourceLabels: {app: x}}], route: [{destination: {host: w.com}}]}]",
            "hosts: [w.com], http: [{match: [{uri: {prefix: /d}}], delegate: {name: two}}]",
            "http: [{match: [{uri: {prefix: /d/e}}], route: [{destination: {host: d1.com}}]}]",
        ],
    );
    let sidecars = one_of(
        "networking.istio.io/v1",
        "Sidecar",
        &[
            "egress: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*/*']}, {hosts: ['./*']}]",
            "workloadSelector: {labels: {app: x}}, ingress: [{port: {number: 9080, name: http, protocol: HTTP}, \
             defaultEndpoint: '127.0.0.1:8080'}]",
            "egress: [{bind: 127.0.0.9, port: {number: 81, name: tcp, protocol: TCP}, hosts: ['*/e1.com']}]",
        ],
    );
    prop_oneof![entries, workloads, routes, sidecars]
}

fn gateways() -> impl Strategy<Value = String> {
    let gateways = one_of(
        "networking.istio.io/v1",
        "Gateway",
        &[
            "servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]",
            "selector: {app: x}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [e1.com], \
             tls: {httpsRedirect: true}}]",
            "servers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: ['*.com'], \
             tls: {mode: SIMPLE, credentialName: c}}]",
            "servers: [{port: {number: 443, name: tls, protocol: TLS}, hosts: [d2.com], tls: {mode: PASSTHROUGH}}]",
            "selector: {app: x}, servers: [{port: {number: 9000, name: tcp, protocol: TCP}, hosts: ['*']}]",
        ],
    );
    let routes = one_of(
        "networking.istio.io/v1",
        "VirtualService",
        &[
            "hosts: [e1.com], gateways: [one], http: [{route: [{destination: {host: e1.com}}]}]",
            "hosts: [x.com], gateways: [a/one, b/two, mesh], http: [{match: [{uri: {prefix: /x}}], route: [{destination: {host: s1}}]}]",
            "hosts: [d2.com], gateways: [two], tls: [{match: [{sniHosts: [d2.com]}], route: [{destination: {host: d2.com}}]}]",
            "hosts: ['*'], gateways: [one, two], tcp: [{match: [{port: 9000}], route: [{destination: {host: e1.com}}]}]",
        ],
    );
    prop_oneof![gateways, routes]
}

fn security() -> impl Strategy<Value = String> {
    let peers = one_of(
        "security.istio.io/v1",
        "PeerAuthentication",
        &[
            "mtls: {mode: STRICT}",
            "mtls: {mode: DISABLE}",
            "selector: {matchLabels: {app: x}}, mtls: {mode: STRICT}, portLevelMtls: {8080: {mode: DISABLE}}",
        ],
    );
    let tokens = one_of(
        "security.istio.io/v1",
        "RequestAuthentication",
        &[
            "jwtRules: [{issuer: one, jwks: '{\"keys\": []}'}]",
            "selector: {matchLabels: {app: x}}, jwtRules: [{issuer: two, jwks: '{\"keys\": []}', fromHeaders: [{name: x-token}]}]",
        ],
    );
    let policies = one_of(
        "security.istio.io/v1",
        "AuthorizationPolicy",
        &[
            "{}",
            "action: DENY, rules: [{to: [{operation: {paths: [/secret]}}]}]",
            "selector: {matchLabels: {app: x}}, rules: [{from: [{source: {namespaces: [b]}}]}]",
        ],
    );
    let policies = policies.prop_map(|text| text.replace("spec: {{}}", "spec: {}"));
    prop_oneof![peers, tokens, policies]
}

fn envoy_filter() -> impl Strategy<Value = String> {
    one_of(
        "networking.istio.io/v1alpha3",
        "EnvoyFilter",
        &[
            "configPatches: [{applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND}, \
             patch: {operation: MERGE, value: {connect_timeout: 3s}}}]",
            "workloadSelector: {labels: {app: x}}, configPatches: [{applyTo: VIRTUAL_HOST, \
             patch: {operation: MERGE, value: {request_headers_to_remove: [x-secret]}}}]",
            "configPatches: [{applyTo: LISTENER, match: {context: GATEWAY}, \
             patch: {operation: MERGE, value: {per_connection_buffer_limit_bytes: 4096}}}]",
            "configPatches: [{applyTo: CLUSTER, patch: {operation: ADD, value: {name: extra, connect_timeout: 1s, type: STATIC}}}]",
            "priority: -10, configPatches: [{applyTo: ROUTE_CONFIGURATION, \
             patch: {operation: MERGE, value: {response_headers_to_remove: [server]}}}]",
        ],
    )
}

fn telemetry() -> impl Strategy<Value = String> {
    let telemetry = one_of(
        "telemetry.istio.io/v1",
        "Telemetry",
        &[
            "accessLogging: [{disabled: true}]",
            "selector: {matchLabels: {app: x}}, tracing: [{randomSamplingPercentage: 50}]",
            "accessLogging: [{providers: [{name: envoy}], filter: {expression: 'response.code >= 400'}}]",
        ],
    );
    let lua = one_of(
        "extensions.istio.io/v1alpha1",
        "WasmPlugin",
        &[
            "url: 'file:///opt/filter.wasm', phase: AUTHN",
            "url: 'file:///opt/filter.wasm', selector: {matchLabels: {app: x}}, priority: 10",
        ],
    );
    prop_oneof![telemetry, lua]
}
