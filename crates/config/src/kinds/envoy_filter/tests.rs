use pilot_model::{ApplyTo, EnvoyFilter, Object, ObjectMatch, PatchOperation};

use crate::{ReadOptions, read};

/// The object, and what is said about it as `path: message`.
fn filter(patches: &str) -> (EnvoyFilter, Vec<String>) {
    let text = format!(
        "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {{name: f, namespace: ns}}\n\
         spec:\n  configPatches:\n{patches}"
    );
    let reading = read(&text, "f.yaml", &ReadOptions::default()).unwrap();
    let issues = reading.issues.iter().map(|issue| {
        let place = issue.place.clone().unwrap_or_default();
        format!("{place} {}: {}", issue.path.trim_start_matches("spec.configPatches"), issue.message)
    });
    let issues = issues.collect();
    match reading.objects.into_iter().next() {
        Some((_, _, Object::EnvoyFilter(config))) => (config.spec.clone(), issues),
        _ => panic!("{issues:?}"),
    }
}

#[test]
fn a_patch_is_read_with_its_message() {
    let (filter, issues) = filter(
        "  - applyTo: HTTP_FILTER
    match:
      context: SIDECAR_INBOUND
      proxy: {proxyVersion: '^1\\.2[0-9].*', metadata: {a: b}}
      listener:
        portNumber: 8080
        filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.router}}}
    patch:
      operation: INSERT_BEFORE
      value:
        name: lua
        typed_config:
          inlineCode: x
          '@type': type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
  - {applyTo: CLUSTER, patch: {operation: INSERT_FIRST, value: {name: c, connect_timeout: 1.5s}}}
",
    );
    assert!(issues.is_empty(), "{issues:?}");
    assert_eq!(filter.patches.len(), 2);
    assert_eq!(filter.patches[0].apply_to, ApplyTo::HttpFilter);
    assert!(matches!(&filter.patches[0].object, ObjectMatch::Listener(l) if l.port == Some(8080)));
    assert_eq!(filter.patches[1].operation, PatchOperation::Add);
    assert!(!filter.patches[1].value.is_empty());
}

#[test]
fn a_bad_patch_is_left_out_and_told_with_its_place() {
    let (filter, issues) = filter(
        "  - applyTo: CLUSTER
    patch:
      operation: MERGE
      value:
        connect_timeout: soon
  - applyTo: HTTP_FILTER
    patch:
      operation: INSERT_FIRST
      value:
        name: x
        typed_config:
          '@type': type.googleapis.com/no.such.Type
  - applyTo: CLUSTER
    patch: {operation: MERGE, value: {name: fine}}
  - applyTo: CLUSTER
    match: {proxy: {proxyVersion: '('}}
    patch: {operation: MERGE, value: {}}
  - {applyTo: CLUSTER, match: {listener: {}}, patch: {operation: REMOVE}}
  - {applyTo: CLUSTER, patch: {operation: ADD}}
  - {patch: {operation: ADD}}
  - {applyTo: CLUSTER}
",
    );
    assert_eq!(filter.patches.iter().map(|patch| patch.index).collect::<Vec<_>>(), [2]);
    let starts = [
        "f.yaml:10 [0].patch.value.connect_timeout: ",
        "f.yaml:17 [1].patch.value.typed_config: no.such.Type is not a type",
        "f.yaml:21 [3].match.proxy.proxyVersion: \"(\" is not a regular expression",
        "f.yaml:23 [4].match.listener: ",
        "f.yaml:24 [5].patch.value: is missing",
        "f.yaml:25 [6].applyTo: is missing",
        "f.yaml:26 [7].patch: is missing",
    ];
    assert_eq!(issues.len(), starts.len(), "{issues:#?}");
    for (issue, start) in issues.iter().zip(starts) {
        assert!(issue.starts_with(start), "{issue} does not start with {start}");
    }
}

#[test]
fn what_has_no_effect_is_told() {
    let (filter, issues) = filter(
        "  - {applyTo: CLUSTER, patch: {operation: MERGE, value: {conect_timeout: 1s, name: a}}}
  - {applyTo: CLUSTER, patch: {operation: MERGE, value: {lb_policy: FASTEST}}}
  - {applyTo: CLUSTER, patch: {operation: REPLACE, value: {}}}
  - {applyTo: NETWORK_FILTER, patch: {operation: REMOVE}}
  - {applyTo: HTTP_FILTER, patch: {operation: ADD, value: {name: envoy.filters.http.lua}}}
  - {applyTo: CLUSTER, match: {context: WAYPOINT}, patch: {operation: REMOVE}}
",
    );
    assert_eq!(filter.patches.len(), 5);
    let texts = [
        "[0].patch.value.conect_timeout: is not a field",
        "[1].patch.value.lb_policy: unrecognized enum value 'FASTEST'",
        "[2].patch.operation: REPLACE has no effect on CLUSTER",
        "[3].patch.operation: REMOVE has no effect unless",
        "[4].patch.operation: puts the filter behind the router",
        "[4].patch.value: asks for envoy.filters.http.lua by name only",
        "[5].match.context: there are no waypoints",
    ];
    assert_eq!(issues.len(), texts.len(), "{issues:#?}");
    for (issue, text) in issues.iter().zip(texts) {
        assert!(issue.contains(text), "{issue} does not have {text}");
    }
}
