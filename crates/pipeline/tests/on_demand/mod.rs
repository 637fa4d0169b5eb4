//! Namespaces whose proxies ask for clusters when a request needs them.

use std::collections::BTreeSet;

use pilot_envoy_api::envoy::config::route::v3::RouteConfiguration;
use pilot_envoy_api::envoy::config::route::v3::route::Action;
use pilot_xds::{Manifests, TypeUrl};
use proptest::prelude::*;

use super::{NAMESPACES, decode, pick};

pub(super) fn namespace() -> impl Strategy<Value = String> {
    let said =
        pick(&["annotations: {pilot.dev/on-demand: 'true'}", "annotations: {pilot.dev/on-demand: 'false'}"]);
    (pick(&NAMESPACES), said).prop_map(|(namespace, said)| {
        format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}, {said}}}}}")
    })
}

/// What is sent at once is part of what there is, and everything is that something else than a request needs.
pub(super) fn check(manifests: &Manifests) -> Result<(), TestCaseError> {
    let clusters = manifests.of(TypeUrl::Cluster);
    let Some(at_once) = clusters.at_once() else { return Ok(()) };
    for cluster in at_once.iter() {
        prop_assert_eq!(clusters.get(cluster.name()), Some(cluster));
    }
    let mirrors = mirrors(manifests);
    for cluster in clusters.iter().filter(|cluster| !at_once.contains(cluster.name())) {
        let name = cluster.name().as_str();
        prop_assert!(!mirrors.contains(name), "copies of requests cannot wait for {name}");
        for listener in manifests.of(TypeUrl::Listener).iter() {
            let is_named = holds(&listener.message(), name);
            prop_assert!(!is_named, "{} cannot wait for {name}", listener.name());
        }
    }
    Ok(())
}

fn mirrors(manifests: &Manifests) -> BTreeSet<String> {
    let tables = decode::<RouteConfiguration>(manifests, TypeUrl::Route);
    let routes = tables.into_iter().flat_map(|table| table.virtual_hosts).flat_map(|host| host.routes);
    let actions = routes.filter_map(|route| match route.action {
        Some(Action::Route(action)) => Some(action),
        _ => None,
    });
    actions.flat_map(|action| action.request_mirror_policies).map(|policy| policy.cluster).collect()
}

/// Is the text a whole string somewhere in a message, whatever the field? Such strings have their length in front.
fn holds(message: &[u8], text: &str) -> bool {
    let Ok(length) = u8::try_from(text.len()) else { return false };
    assert!(length < 128, "a longer name has a longer length: {text}");
    let wanted: Vec<u8> = std::iter::once(length).chain(text.bytes()).collect();
    message.windows(wanted.len()).any(|window| window == wanted)
}
