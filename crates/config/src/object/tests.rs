use pilot_base::Severity;

use super::{Object, Reading, parse_timestamp, read};
use crate::ReadOptions;

fn reading(text: &str) -> Reading {
    read(text, "f.yaml", &ReadOptions::default()).unwrap()
}

/// severity, place, path, and a part of the message
fn issues(text: &str) -> Vec<String> {
    reading(text).issues.iter().map(ToString::to_string).collect()
}

const VS: &str = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: r}\n";

#[test]
fn every_served_version_reads_the_same() {
    for version in ["v1", "v1beta1", "v1alpha3"] {
        let text = format!(
            "apiVersion: networking.istio.io/{version}\nkind: VirtualService\nmetadata: {{name: r, namespace: ns}}\n\
             spec:\n  hosts: [r]\n  http:\n  - route: [{{destination: {{host: r}}}}]\n"
        );
        let reading = reading(&text);
        assert!(reading.issues.is_empty(), "{:?}", reading.issues);
        assert!(matches!(&reading.objects[0].2, Object::VirtualService(vs) if vs.spec.http.len() == 1));
    }
    assert!(issues(&VS.replace("/v1", "/v2"))[0].contains("has no version v2"));
}

#[test]
fn each_mistake_names_object_field_and_line() {
    let bad = format!(
        "{VS}spec:\n  hosts: [r]\n  http:\n  - timeout: -1s\n    route: [{{destination: {{host: r}}}}]\n"
    );
    assert_eq!(
        issues(&bad),
        ["f.yaml:7: error: VirtualService default/r: spec.http[0].timeout: must not be negative"]
    );
    let none = format!("{VS}spec:\n  hosts: [r]\n");
    assert!(issues(&none)[0].contains("spec: has no route"), "{:?}", issues(&none));
    let wrong = format!("{VS}spec:\n  hosts: r\n");
    assert!(
        issues(&wrong)[0].starts_with("f.yaml:5: error: VirtualService default/r: spec.hosts:"),
        "{:?}",
        issues(&wrong)
    );
    let weights = format!(
        "{VS}spec:\n  hosts: [r]\n  http:\n  - route: [{{destination: {{host: a}}}}, {{destination: {{host: b}}}}]\n"
    );
    assert!(issues(&weights)[0].contains("no destination has a weight"));
}

#[test]
fn a_broken_object_does_not_touch_its_neighbours() {
    let text = format!(
        "{VS}spec: {{hosts: 5}}\n---\napiVersion: v1\nkind: Service\nmetadata: {{name: s}}\nspec: {{ports: [{{name: http, port: 80}}]}}\n"
    );
    let reading = reading(&text);
    assert_eq!(reading.broken.len(), 1);
    assert_eq!(reading.objects.len(), 1);
    assert_eq!(reading.issues.len(), 1);
}

#[test]
fn unknown_things_are_told_and_passed_over() {
    let unknown = issues("apiVersion: networking.istio.io/v1\nkind: VirtualServce\nmetadata: {name: r}\n");
    assert!(unknown[0].contains("networking.istio.io has no kind VirtualServce"), "{unknown:?}");
    assert!(issues("apiVersion: v1\nkind: Srvice\nmetadata: {name: r}\n")[0].contains("not a kind"));
    assert!(issues("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n").is_empty());
    assert!(issues("hello: world\n")[0].contains("apiVersion and kind"));
    let field = format!(
        "{VS}spec:\n  hosts: [r]\n  http:\n  - timout: 5s\n    route: [{{destination: {{host: r}}}}]\n"
    );
    let reading = reading(&field);
    assert_eq!(reading.issues[0].severity, Severity::Warning);
    assert_eq!(reading.issues[0].path, "spec.http[0].timout");
    assert_eq!(reading.objects.len(), 1, "the rest of the object counts");
}

#[test]
fn texts_that_envoy_would_refuse_get_no_further() {
    let rule = |http: &str| format!("{VS}spec: {{hosts: [r], http: [{http}]}}\n");
    let to = "route: [{destination: {host: r}}]";
    for (http, field) in [
        (format!("{{match: [{{uri: {{regex: '/(open'}}}}], {to}}}"), "spec.http[0].match[0].uri"),
        (
            format!("{{match: [{{headers: {{x: {{regex: '(?x)a'}}}}}}], {to}}}"),
            "spec.http[0].match[0].headers.x",
        ),
        (format!("{{match: [{{uri: {{regex: 'a{{1001}}'}}}}], {to}}}"), "spec.http[0].match[0].uri"),
        (
            format!("{{corsPolicy: {{allowOrigins: [{{regex: '*'}}]}}, {to}}}"),
            "spec.http[0].corsPolicy.allowOrigins[0]",
        ),
        (
            format!("{{rewrite: {{uriRegexRewrite: {{match: '[', rewrite: x}}}}, {to}}}"),
            "spec.http[0].rewrite.uriRegexRewrite.match",
        ),
        (
            format!("{{headers: {{request: {{set: {{x: \"a\\nb\"}}}}}}, {to}}}"),
            "spec.http[0].headers.request.set.x",
        ),
        ("{redirect: {uri: \"/a\\r\"}}".to_owned(), "spec.http[0].redirect.uri"),
    ] {
        let reading = reading(&rule(&http));
        assert_eq!((reading.broken.len(), reading.objects.len()), (1, 0), "{http}: {:?}", reading.issues);
        assert_eq!(reading.issues[0].path, field);
    }
    for good in ["/a.*", r"/\d+", "(?i)x", r"\Qa.b\E", "[[:alpha:]]+"] {
        let text = rule(&format!("{{match: [{{uri: {{regex: '{good}'}}}}], {to}}}"));
        assert!(issues(&text).is_empty(), "{good}: {:?}", issues(&text));
    }
}

#[test]
fn a_bad_endpoint_is_left_out() {
    let text = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: s}\nspec:\n  hosts: [a.b]\n  \
                resolution: STATIC\n  ports: [{number: 80, name: http, protocol: HTTP}]\n  endpoints:\n  \
                - address: 10.0.0.1\n  - address: nowhere!\n";
    let reading = reading(text);
    assert_eq!(
        reading.issues[0].to_string(),
        "f.yaml:10: error: ServiceEntry default/s: spec.endpoints[1].address: \"nowhere!\" is not an IP address"
    );
    assert!(matches!(&reading.objects[0].2, Object::ServiceEntry(entry) if entry.spec.endpoints.len() == 1));
}

#[test]
fn kubernetes_objects_are_read() {
    let text = "apiVersion: v1\nkind: List\nitems:\n\
        - {apiVersion: v1, kind: Service, metadata: {name: s}, spec: {clusterIP: 10.0.0.5, selector: {app: s}, ports: [{name: http, port: 80, targetPort: web}]}}\n\
        - {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: s-1, labels: {kubernetes.io/service-name: s}}, \
           ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.1.0.1], targetRef: {kind: Pod, name: p}}, {addresses: [bad]}]}\n\
        - {apiVersion: v1, kind: Endpoints, metadata: {name: t}, subsets: [{addresses: [{ip: 10.1.0.2}], ports: [{port: 81}]}]}\n\
        - {apiVersion: v1, kind: Pod, metadata: {name: p, generateName: d-x1-, labels: {app: s, pod-template-hash: x1}, ownerReferences: [{kind: ReplicaSet, name: d-x1, controller: true}]}, status: {podIP: 10.1.0.1}}\n\
        - {apiVersion: v1, kind: Namespace, metadata: {name: ns}}\n\
        - {apiVersion: v1, kind: Node, metadata: {name: node}}\n";
    let reading = reading(text);
    assert_eq!(reading.objects.len(), 6);
    assert_eq!(reading.issues.len(), 1, "{:?}", reading.issues);
    let Object::Service(_, service) = &reading.objects[0].2 else { panic!("a service") };
    assert_eq!(service.host.as_str(), "s.default.svc.cluster.local");
    let Object::Pod(_, pod) = &reading.objects[3].2 else { panic!("a pod") };
    assert_eq!(pod.workload.as_str(), "d");
}

#[test]
fn timestamps_are_seconds() {
    assert_eq!(parse_timestamp("1970-01-01T00:00:00Z"), Some(0));
    assert_eq!(parse_timestamp("2024-02-29T12:00:01Z"), Some(1_709_208_001));
    assert_eq!(parse_timestamp("yesterday"), None);
}
