use prost::{Message as _, Name as _};
use serde::de::DeserializeSeed as _;
use serde_json::json;

use super::{Dynamic, Json, Lists, Unknown, merge_any, merge_typed};
use crate::envoy::config::cluster::v3::Cluster;
use crate::envoy::config::route::v3::VirtualHost;

fn read(message: &str, value: serde_json::Value) -> Result<Dynamic, String> {
    let json = Json { message, unknown: Unknown::Refuse };
    json.deserialize(value).map_err(|error| error.to_string())
}

fn cluster(value: serde_json::Value) -> Cluster {
    let bytes = read(&Cluster::full_name(), value).unwrap().encode();
    Cluster::decode(bytes.as_slice()).unwrap()
}

fn merged(base: serde_json::Value, over: serde_json::Value, lists: Lists) -> Cluster {
    let mut base = cluster(base);
    assert!(merge_typed(&mut base, &cluster(over).encode_to_vec(), lists));
    base
}

#[test]
fn lists_grow_and_maps_are_joined() {
    let thresholds = |n: u32| json!({"circuit_breakers": {"thresholds": [{"max_connections": n}]}});
    let of = |c: &Cluster| {
        let breakers = c.circuit_breakers.as_ref().unwrap();
        breakers.thresholds.iter().map(|t| t.max_connections.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(of(&merged(thresholds(1), thresholds(2), Lists::Append)), [1, 2]);
    assert_eq!(of(&merged(thresholds(1), thresholds(2), Lists::Replace)), [2]);
    let metadata = |key: &str| json!({"metadata": {"filter_metadata": {key: {"a": 1}}}});
    let both = merged(metadata("x"), metadata("y"), Lists::Append).metadata.unwrap();
    assert_eq!(both.filter_metadata.keys().collect::<Vec<_>>(), ["x", "y"]);
}

#[test]
fn a_duration_is_one_value() {
    let timeout = |text: &str| json!({"connect_timeout": text});
    let c = merged(timeout("10s"), timeout("0.25s"), Lists::Append);
    let timeout = c.connect_timeout.unwrap();
    assert_eq!((timeout.seconds, timeout.nanos), (0, 250_000_000));
}

#[test]
fn what_an_any_holds_is_merged_if_it_is_of_the_same_type() {
    let any = |url: &str, value: serde_json::Value| prost_types::Any {
        type_url: format!("type.googleapis.com/{url}"),
        value: read(url, value).unwrap().encode(),
    };
    let lua = "envoy.extensions.filters.http.lua.v3.Lua";
    let base = any(lua, json!({"stat_prefix": "a"}));
    let over = any(lua, json!({"default_source_code": {"inline_string": "b"}}));
    let both = any(lua, json!({"stat_prefix": "a", "default_source_code": {"inline_string": "b"}}));
    assert_eq!(merge_any(&base, &over), Some(both));
    let router = any("envoy.extensions.filters.http.router.v3.Router", json!({}));
    assert_eq!(merge_any(&base, &router), None);
}

#[test]
fn one_message_has_one_encoding_also_inside_an_any() {
    let code: serde_json::Map<String, serde_json::Value> =
        (0..40).map(|i| (format!("k{i}"), json!({"inline_string": "x"}))).collect();
    let host = json!({"name": "h", "domains": ["*"], "typed_per_filter_config": {"lua": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua", "source_codes": code}}});
    let first = read(&VirtualHost::full_name(), host.clone()).unwrap().encode();
    for _ in 0..5 {
        assert_eq!(read(&VirtualHost::full_name(), host.clone()).unwrap().encode(), first);
    }
    assert_eq!(VirtualHost::decode(first.as_slice()).unwrap().encode_to_vec(), first);
}

#[test]
fn what_is_not_a_message_is_refused() {
    let error = |value| read(&Cluster::full_name(), value).unwrap_err();
    assert!(error(json!({"connect_timout": "1s"})).contains("connect_timout"));
    assert!(error(json!({"connect_timeout": 5})).contains("invalid type"));
    let socket =
        json!({"transport_socket": {"name": "t", "typed_config": {"@type": "type.googleapis.com/no.Such"}}});
    assert!(error(socket).contains("no.Such"));
}

#[test]
fn extensions_by_name_only_are_found() {
    let socket = read(&Cluster::full_name(), json!({"transport_socket": {"name": "tls"}})).unwrap();
    assert_eq!(socket.without_typed_config(), ["tls"]);
}
