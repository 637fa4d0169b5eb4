use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_envoy_api::envoy::config::cluster::v3::Cluster;
use pilot_envoy_api::envoy::config::listener::v3 as listener;
use pilot_envoy_api::envoy::config::route::v3 as route;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3 as manager;
use pilot_envoy_api::{from_any, to_any};
use pilot_model::{
    ApplyTo, ChainMatch, ClusterMatch, ConfigId, EnvoyPatch, ListenerMatch, ObjectMatch, PatchContext,
    PatchOperation as Op, ProxyType, RouteConfigurationMatch, RouteMatch, VirtualHostMatch,
};
use pilot_xds::{ChildMap, Children, Chunk, Encoded, Summary, TypeUrl};
use prost::Message;

use super::{
    Faults, Outcome, Patch, Patches, ProxyPatches, TablePatches, added_clusters, patch_cluster,
    patch_listener,
};

fn patch(apply_to: ApplyTo, operation: Op, object: ObjectMatch, value: &impl Message) -> EnvoyPatch {
    EnvoyPatch {
        index: 0,
        apply_to,
        context: PatchContext::Any,
        proxy_version: None,
        metadata: Vec::new(),
        object,
        operation,
        value: value.encode_to_vec().into(),
    }
}

fn of(specs: impl IntoIterator<Item = EnvoyPatch>) -> ProxyPatches {
    let named = |spec| Arc::new(Patch::new(ConfigId::new("ns", "filter"), spec));
    ProxyPatches::new(ProxyType::Sidecar, &specs.into_iter().map(named).collect::<Vec<_>>())
}

fn outbound(spec: EnvoyPatch) -> Arc<Patches> {
    let set = of([spec]).outbound;
    set.clusters.or(set.listeners).or(set.routes).unwrap()
}

fn named(name: &str) -> Cluster {
    Cluster { name: name.to_owned(), ..Cluster::default() }
}

fn patched_cluster(name: &str, hosts: &[Host], matching: ClusterMatch) -> Outcome {
    let over = Cluster { alt_stat_name: "patched".to_owned(), ..Cluster::default() };
    let patches = outbound(patch(ApplyTo::Cluster, Op::Merge, ObjectMatch::Cluster(matching), &over));
    let encoded = Encoded::new(TypeUrl::Cluster, Name::new(name), &named(name).encode_to_vec());
    patch_cluster(&encoded, hosts, &patches, &mut Faults::default())
}

#[test]
fn clusters_are_matched_by_what_their_names_say() {
    let name = "outbound|80|v1|a.example";
    let changed = |matching| patched_cluster(name, &[], matching) != Outcome::Same;
    assert!(changed(ClusterMatch::default()));
    assert!(changed(ClusterMatch { service: "a.example".into(), port: Some(80), ..ClusterMatch::default() }));
    assert!(changed(ClusterMatch { subset: "v1".into(), ..ClusterMatch::default() }));
    assert!(!changed(ClusterMatch { subset: "v2".into(), ..ClusterMatch::default() }));
    assert!(!changed(ClusterMatch { port: Some(81), ..ClusterMatch::default() }));
    assert!(!changed(ClusterMatch { name: "PassthroughCluster".into(), ..ClusterMatch::default() }));
    let inbound = |hosts: &[Host]| {
        let matching = ClusterMatch { service: "a.example".into(), ..ClusterMatch::default() };
        patched_cluster("inbound|8080||", hosts, matching) != Outcome::Same
    };
    assert!(inbound(&[Host::new("b.example"), Host::new("a.example")]));
    assert!(!inbound(&[Host::new("b.example")]));
}

#[test]
fn what_is_added_without_a_side_is_added_once() {
    let patches = of([patch(ApplyTo::Cluster, Op::Add, ObjectMatch::Any, &named("extra"))]);
    let names = |patches: &Patches| {
        added_clusters(patches, &mut Faults::default())
            .iter()
            .map(|c| c.name().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(patches.outbound.clusters.as_ref().unwrap()), ["extra"]);
    assert_eq!(patches.inbound.clusters, None);
}

fn http_filter(name: &str) -> manager::HttpFilter {
    manager::HttpFilter { name: name.to_owned(), ..manager::HttpFilter::default() }
}

/// A listener with one chain that has the connection manager with filters `a` and `router`.
fn http_listener() -> Encoded {
    let config = manager::HttpConnectionManager {
        http_filters: vec![http_filter("a"), http_filter("router")],
        ..manager::HttpConnectionManager::default()
    };
    let filter = listener::Filter {
        name: "envoy.filters.network.http_connection_manager".to_owned(),
        config_type: Some(listener::filter::ConfigType::TypedConfig(to_any(&config))),
    };
    let chain = listener::FilterChain { filters: vec![filter], ..listener::FilterChain::default() };
    let message = listener::Listener {
        name: "0.0.0.0_80".to_owned(),
        filter_chains: vec![chain],
        ..listener::Listener::default()
    };
    Encoded::new(TypeUrl::Listener, "0.0.0.0_80".into(), &message.encode_to_vec())
}

fn http_filters(operation: Op, sub_filter: Option<&str>) -> Vec<String> {
    let chain = ChainMatch {
        filter: Some("envoy.filters.network.http_connection_manager".into()),
        sub_filter: sub_filter.map(Name::new),
        ..ChainMatch::default()
    };
    let object =
        ObjectMatch::Listener(ListenerMatch { filter_chain: Some(chain), ..ListenerMatch::default() });
    let patches = outbound(patch(ApplyTo::HttpFilter, operation, object, &http_filter("new")));
    let before = http_listener();
    let bytes = match patch_listener(&before, Some(&patches), None, &mut Faults::default()) {
        Outcome::Same => before.message(),
        Outcome::Changed(after) => after.message(),
        Outcome::Removed => panic!("the listener is gone"),
    };
    let after = listener::Listener::decode(bytes.as_slice()).unwrap();
    let Some(listener::filter::ConfigType::TypedConfig(any)) = &after.filter_chains[0].filters[0].config_type
    else {
        panic!("no configuration")
    };
    from_any::<manager::HttpConnectionManager>(any)
        .unwrap()
        .http_filters
        .into_iter()
        .map(|f| f.name)
        .collect()
}

#[test]
fn filters_are_put_where_the_operation_says() {
    let cases: [(Op, Option<&str>, &[&str]); 11] = [
        (Op::Add, None, &["a", "router", "new"]),
        (Op::InsertFirst, Some("router"), &["new", "a", "router"]),
        (Op::InsertBefore, Some("router"), &["a", "new", "router"]),
        (Op::InsertBefore, None, &["new", "a", "router"]),
        (Op::InsertBefore, Some("absent"), &["a", "router"]),
        (Op::InsertAfter, Some("a"), &["a", "new", "router"]),
        (Op::InsertAfter, None, &["a", "router", "new"]),
        (Op::Replace, Some("a"), &["new", "router"]),
        (Op::Replace, None, &["a", "router"]),
        (Op::Remove, Some("a"), &["router"]),
        (Op::Remove, None, &["a", "router"]),
    ];
    for (operation, wanted, expected) in cases {
        assert_eq!(http_filters(operation, wanted), expected, "{operation} {wanted:?}");
    }
}

#[test]
fn a_listener_that_no_patch_is_for_keeps_its_bytes() {
    let object = ObjectMatch::Listener(ListenerMatch { port: Some(81), ..ListenerMatch::default() });
    let value = listener::Listener { transparent: Some(true), ..listener::Listener::default() };
    let patches = outbound(patch(ApplyTo::Listener, Op::Merge, object, &value));
    let outcome = patch_listener(&http_listener(), Some(&patches), None, &mut Faults::default());
    assert_eq!(outcome, Outcome::Same);
}

fn host(name: &str, routes: &[&str]) -> route::VirtualHost {
    let route = |name: &&str| route::Route { name: (*name).to_owned(), ..route::Route::default() };
    route::VirtualHost {
        name: name.to_owned(),
        domains: vec![name.to_owned()],
        routes: routes.iter().map(route).collect(),
        ..route::VirtualHost::default()
    }
}

fn host_match(name: &str, route: Option<&str>) -> ObjectMatch {
    let route = route.map(|name| RouteMatch { name: name.into(), action: None });
    let vhost = VirtualHostMatch { name: name.into(), route, ..VirtualHostMatch::default() };
    ObjectMatch::RouteConfiguration(RouteConfigurationMatch {
        vhost: Some(vhost),
        ..RouteConfigurationMatch::default()
    })
}

/// The hosts of a table with `a`, `b` and a last one, and their routes, after a patch.
fn table(spec: EnvoyPatch) -> Vec<String> {
    let entry = |host: &route::VirtualHost| Chunk::new(2, &host.encode_to_vec());
    let hosts = [host("a", &["1", "2"]), host("b", &["1"])];
    let map: ChildMap = hosts.iter().map(|h| (Name::new(&h.name), Some(entry(h)))).collect();
    let children =
        Children::new(map.clone(), Summary::of(&map), ChildMap::new(), Some(entry(&host("*", &[]))));
    let header = route::RouteConfiguration { name: "80".to_owned(), ..route::RouteConfiguration::default() };
    let before = Encoded::assemble(TypeUrl::Route, "80".into(), &header.encode_to_vec(), children);
    let patches = outbound(spec);
    let faults = &mut Faults::default();
    let scope = TablePatches::new("80", &patches).unwrap();
    let changed =
        map.iter().filter_map(|(name, chunk)| Some((name.clone(), scope.entry(chunk.as_ref()?, faults)?)));
    let changes: ChildMap = changed.collect();
    let after = scope.table(&before, &changes, faults).map_or_else(|| before.message(), |t| t.message());
    let show = |host: route::VirtualHost| {
        let routes: Vec<String> = host.routes.into_iter().map(|route| route.name).collect();
        format!("{}:{}", host.name, routes.join(""))
    };
    route::RouteConfiguration::decode(after.as_slice()).unwrap().virtual_hosts.into_iter().map(show).collect()
}

#[test]
fn hosts_and_routes_of_a_table_are_changed_one_by_one() {
    let new = route::Route { name: "n".to_owned(), ..route::Route::default() };
    let on_route = |operation, matching| table(patch(ApplyTo::HttpRoute, operation, matching, &new));
    assert_eq!(on_route(Op::InsertFirst, host_match("a", None)), ["a:n12", "b:1", "*:"]);
    assert_eq!(on_route(Op::InsertAfter, host_match("a", Some("1"))), ["a:1n2", "b:1", "*:"]);
    assert_eq!(on_route(Op::InsertFirst, host_match("a", Some("3"))), ["a:12", "b:1", "*:"]);
    assert_eq!(on_route(Op::Remove, host_match("", Some("1"))), ["a:2", "b:", "*:"]);
    assert_eq!(on_route(Op::Add, ObjectMatch::Any), ["a:12n", "b:1n", "*:n"]);
    let on_host = |operation, matching, value: &route::VirtualHost| {
        table(patch(ApplyTo::VirtualHost, operation, matching, value))
    };
    assert_eq!(on_host(Op::Remove, host_match("a", None), &host("", &[])), ["b:1", "*:"]);
    assert_eq!(on_host(Op::Add, ObjectMatch::Any, &host("c", &["9"])), ["a:12", "b:1", "*:", "c:9"]);
    assert_eq!(on_host(Op::Replace, host_match("a", None), &host("z", &["9"])), ["z:9", "b:1", "*:"]);
    assert_eq!(on_host(Op::Merge, host_match("b", None), &host("", &["9"])), ["a:12", "b:19", "*:"]);
}

#[test]
fn types_that_differ_are_a_fault_and_change_nothing() {
    let config = manager::HttpConnectionManager::default();
    let value = listener::Filter {
        name: String::new(),
        config_type: Some(listener::filter::ConfigType::TypedConfig(to_any(&Cluster::default()))),
    };
    assert_ne!(to_any(&config).type_url, to_any(&Cluster::default()).type_url);
    let patches = outbound(patch(ApplyTo::NetworkFilter, Op::Merge, ObjectMatch::Any, &value));
    let mut faults = Faults::default();
    assert_eq!(patch_listener(&http_listener(), Some(&patches), None, &mut faults), Outcome::Same);
    let fault = faults.iter().next().unwrap();
    assert!(fault.message.contains("the types must be the same"), "{}", fault.message);
}
