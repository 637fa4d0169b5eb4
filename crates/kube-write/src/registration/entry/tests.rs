use pilot_base::{Labels, Name};
use pilot_ca::SpiffeId;
use pilot_model::{Locality, Proxy, ProxyConfig, ProxyType};
use pilot_server::WorkloadHealth;
use serde_json::{Value, json};

use super::{
    CHECKED, CONNECTED, CONTROLLER, DISCONNECTED, Farewell, GROUP, Mark, Switches, Workload, connected,
    disconnected, farewell, health, may_speak, parse, timestamp,
};

const ON: Switches = Switches { registers: true, checks_health: true };

fn words(all: &[(&str, &str)]) -> Labels {
    Labels::new(all.iter().map(|(key, value)| (Name::new(key), Name::new(value))))
}

fn proxy(metadata: &[(&str, &str)]) -> Proxy {
    let address = "2001:db8::1".parse().unwrap();
    Proxy { metadata: words(metadata), ..Proxy::new(ProxyType::Sidecar, "vm.shop", "shop", vec![address]) }
}

fn of(metadata: &[(&str, &str)]) -> Option<Workload> {
    Workload::of(&proxy(metadata), ON)
}

fn entry(annotations: &Value) -> Value {
    json!({"metadata": {"namespace": "shop", "resourceVersion": "7", "annotations": annotations}, "spec": {}})
}

#[test]
fn entries_are_called_as_istio_calls_them() {
    let name = |workload: Option<Workload>| workload.map(|workload| workload.id.to_string());
    assert_eq!(name(of(&[("AUTO_REGISTER_GROUP", "cart")])).unwrap(), "shop/cart-2001-db8--1");
    let mut distant = proxy(&[("AUTO_REGISTER_GROUP", "cart")]);
    distant.network = Name::new("east");
    assert_eq!(name(Workload::of(&distant, ON)).unwrap(), "shop/cart-2001-db8--1-east");
    assert_eq!(name(of(&[("WORKLOAD_ENTRY", "mine")])).unwrap(), "shop/mine");
    assert_eq!(name(of(&[("WORKLOAD_ENTRY", "")])), None);
    let long = "x".repeat(300);
    let long = of(&[("AUTO_REGISTER_GROUP", &long)]).unwrap().id.name;
    assert_eq!((long.len(), long.ends_with("x-2001-db8--1")), (253, true));
    let off = Switches { registers: false, checks_health: false };
    assert_eq!(Workload::of(&proxy(&[("AUTO_REGISTER_GROUP", "cart")]), off), None);
}

#[test]
fn the_proxy_has_the_last_word_about_itself() {
    let group = json!({
        "metadata": {"uid": "u"},
        "spec": {
            "metadata": {"labels": {"a": "group", "b": "group"}, "annotations": {"x": "y"}},
            "template": {"labels": {"a": "template", "c": "template"}, "serviceAccount": "vm", "ports": {"http": 8080}},
        },
    });
    let mut vm = proxy(&[("AUTO_REGISTER_GROUP", "cart")]);
    vm.labels = words(&[("b", "proxy"), ("istio-locality", "r.z")]);
    vm.locality = Locality::parse("r/z");
    vm.config = Some(ProxyConfig { readiness_probe: true, ..ProxyConfig::default() });
    let made = Workload::of(&vm, ON).unwrap().made_of(&group, "networking.istio.io/v1");
    let labels = json!({"a": "group", "b": "proxy", "c": "template"});
    assert_eq!(made["metadata"]["labels"], labels);
    let spec = json!({
        "labels": labels, "serviceAccount": "vm", "ports": {"http": 8080}, "address": "2001:db8::1", "locality": "r/z",
    });
    assert_eq!(made["spec"], spec);
    assert_eq!(made["metadata"]["annotations"], json!({GROUP: "cart", "x": "y", CHECKED: "true"}));
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "u");
}

#[test]
fn only_who_proved_it_speaks_for_a_workload() {
    let id = |namespace: &str| SpiffeId {
        trust_domain: "cluster.local".into(),
        namespace: namespace.into(),
        service_account: "vm".into(),
    };
    let mut of_vm = entry(&json!({}));
    of_vm["spec"]["serviceAccount"] = "vm".into();
    assert_eq!(may_speak(&of_vm, Some(&[id("shop")])), Ok(()));
    assert!(may_speak(&of_vm, Some(&[id("other")])).is_err());
    assert!(may_speak(&of_vm, None).unwrap_err().to_string().contains("verified identity"));
    of_vm["spec"]["serviceAccount"] = "other".into();
    let why = may_speak(&of_vm, Some(&[id("shop")])).unwrap_err().to_string();
    assert!(why.ends_with("spiffe://cluster.local/ns/shop/sa/vm is not of shop/other"), "{why}");
}

#[test]
fn who_came_last_is_believed() {
    let (since, patch) = connected(&entry(&json!({})), "a", 5_000_000_000);
    let patch = patch.unwrap();
    assert_eq!(since, 5_000_000_000);
    assert_eq!(patch["metadata"]["annotations"][CONNECTED], "1970-01-01T00:00:05Z");
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    let there = entry(&json!({CONTROLLER: "a", CONNECTED: timestamp(5)}));
    assert_eq!(connected(&there, "a", 5), (5, None), "it is known");
    assert_eq!(connected(&there, "a", 4), (5, None), "so it is to another stream of it");
    assert!(connected(&there, "a", 6).1.is_some());
    assert!(connected(&there, "b", 5).1.is_some(), "it moved");
    // Whatever clocks of others say, it is here.
    let (since, patch) = connected(&there, "b", 4);
    assert_eq!((since, &patch.unwrap()["metadata"]["annotations"][CONNECTED]), (6, &json!(timestamp(6))));
    let left = entry(&json!({CONTROLLER: "b", DISCONNECTED: timestamp(9)}));
    let (since, patch) = connected(&left, "a", 8);
    let expected = json!({CONTROLLER: "a", CONNECTED: timestamp(10), DISCONNECTED: null});
    assert_eq!((since, &patch.unwrap()["metadata"]["annotations"]), (10, &expected));

    let patch = disconnected(&there, "a", (5, 7)).unwrap();
    assert_eq!(patch["metadata"]["annotations"], json!({CONNECTED: null, DISCONNECTED: timestamp(7)}));
    assert_eq!(disconnected(&there, "b", (5, 7)), None);
    assert_eq!(disconnected(&there, "a", (4, 7)), None, "it is back");
    let earlier = disconnected(&there, "a", (5, 3)).unwrap();
    assert_eq!(earlier["metadata"]["annotations"][DISCONNECTED], timestamp(6), "it left after it came");
}

#[test]
fn health_is_written_when_it_changes() {
    let well = WorkloadHealth::Healthy;
    let ill = WorkloadHealth::Unhealthy("no answer".to_owned());
    let mut ours = entry(&json!({CONTROLLER: "a"}));
    ours["status"] = json!({"conditions": [{"type": "Other"}]});
    assert_eq!(health(&ours, "b", (&well, 1)), None);
    let patch = health(&ours, "a", (&ill, 1_000_000_000)).unwrap();
    let conditions = &patch["status"]["conditions"];
    assert_eq!(conditions[0]["type"], "Other");
    assert_eq!((&conditions[1]["status"], &conditions[1]["message"]), (&json!("False"), &json!("no answer")));
    ours["status"] = patch["status"].clone();
    assert_eq!(health(&ours, "a", (&ill, 2_000_000_000)), None, "nothing is new");
    assert!(health(&ours, "a", (&well, 1)).is_some(), "another clock was ahead");
}

#[test]
fn what_becomes_of_who_does_not_come_back() {
    let (left, came) = (Mark::Left("t".to_owned()), Mark::Came("t".to_owned()));
    let made = |annotations: Value, mark: &Mark| farewell(&entry(&annotations), mark);
    assert_eq!(made(json!({GROUP: "g", DISCONNECTED: "t"}), &left), Farewell::Delete);
    assert_eq!(made(json!({GROUP: "g", DISCONNECTED: "u"}), &left), Farewell::Nothing, "it was back since");
    assert_eq!(made(json!({GROUP: "g", DISCONNECTED: "t", CONNECTED: "t"}), &left), Farewell::Nothing);
    assert_eq!(made(json!({GROUP: "g"}), &left), Farewell::Nothing);
    assert_eq!(made(json!({CONTROLLER: "a", DISCONNECTED: "t"}), &left), Farewell::Nothing);
    assert_eq!(made(json!({GROUP: "g", CONNECTED: "t"}), &came), Farewell::Delete);
    assert_eq!(made(json!({GROUP: "g", CONNECTED: "u"}), &came), Farewell::Nothing, "it came anew");
    let mut theirs = entry(&json!({CONTROLLER: "a", DISCONNECTED: "t"}));
    theirs["status"] = json!({"conditions": [{"type": "Healthy"}, {"type": "Other"}]});
    let Farewell::Forget(patch) = farewell(&theirs, &left) else {
        panic!("its health is not known any more")
    };
    assert_eq!(patch["status"]["conditions"], json!([{"type": "Other"}]));
}

#[test]
fn times_are_those_of_go() {
    assert_eq!(timestamp(1_767_225_600_123_456_000), "2026-01-01T00:00:00.123456Z");
    assert_eq!(parse("2026-01-01T02:00:00.5+02:00"), Some(1_767_225_600_500_000_000));
    assert_eq!(parse("yesterday"), None);
}
