//! An application that knows nothing, beside a real Envoy: its traffic goes through Envoy both ways.

use std::cell::Cell;

use serde_json::{Value, json};

use super::support::{self, PROXY, PROXY_GROUP, Space, said};

const BACK_ENDS: [&str; 3] =
    ["--force-iptables-binary=legacy", "--force-iptables-binary=nft", "--native-nftables"];
const FLAGS: &str =
    "-b * -d 9091 -i * -o 8081 -x 10.77.9.0/24 --dual-stack --redirect-dns --capture-all-dns --drop-invalid";
const NOBODY: &[&str] = &[];

/// A workload with its proxy, and somebody else at the other end of a wire.
struct Scene {
    world: Space,
    pod: Space,
    /// When it was last counted.
    passed: Cell<Passed>,
}

/// Connections that came through Envoy: leaving and arriving.
type Passed = (u32, u32);

impl Scene {
    fn new(mode: &str, envoy: &str) -> Self {
        let (mut world, mut pod) = Space::pair();
        world.must("ip addr add 10.77.9.1/32 dev w0");
        let others =
            ["serve 10.77.0.1 8080", "serve 10.77.0.1 8081", "serve 10.77.9.1 8080", "serve fd77::1 8080"];
        others.iter().chain(&["answer 10.77.0.1 53"]).for_each(|words| world.start_peer(NOBODY, words));
        for words in ["serve 0.0.0.0 9090", "serve 0.0.0.0 9091", "serve fd77::2 9090"] {
            pod.start_peer(NOBODY, words);
        }
        pod.start_peer(PROXY, "answer 127.0.0.1 15053");
        let bootstrap = bootstrap(mode).to_string();
        let envoy = [
            envoy,
            "--disable-hot-restart",
            "--concurrency",
            "1",
            "-l",
            "warning",
            "--config-yaml",
            &bootstrap,
        ];
        let user = if mode == "TPROXY" { PROXY_GROUP } else { PROXY };
        pod.start(&[user, &envoy].concat());
        let scene = Self { world, pod, passed: Cell::new((0, 0)) };
        support::until("Envoy and all servers", || {
            let calls =
                ["call 10.77.0.1 8081", "call 10.77.9.1 8080", "call fd77::1 8080", "call 127.0.0.1 9091"];
            let answers = calls.map(|words| scene.pod.peer(NOBODY, words).is_ok());
            let ready = scene.pod.peer(NOBODY, "get 127.0.0.1 15000 /ready");
            let ready = ready.is_ok_and(|answer| answer.contains("200 OK"));
            (answers == [true; 4] && ready && scene.pod.peer(NOBODY, "call fd77::2 9090").is_ok())
                .then_some(())
        });
        scene
    }

    fn count(&self) -> Passed {
        let text = self.pod.peer(NOBODY, "get 127.0.0.1 15000 /stats?filter=downstream_cx_total").unwrap();
        let count = |name: &str| {
            let line =
                text.lines().find_map(|line| line.strip_prefix(&format!("tcp.{name}.downstream_cx_total: ")));
            line.map_or(0, |number| number.parse().unwrap())
        };
        (count("outbound"), count("inbound"))
    }

    /// What a caller is told, and how many connections came through Envoy meanwhile.
    fn call(&self, from: &Space, user: &[&str], words: &str) -> (String, Passed) {
        let answer = from.peer(user, words);
        let after = self.count();
        let before = self.passed.replace(after);
        let answer = answer.unwrap_or_else(|error| panic!("{words}: {error}\n{}", self.pod.log()));
        (answer, (after.0 - before.0, after.1 - before.1))
    }
}

/// Envoy as an Istio server would have it: what arrives is passed on from an address that rules know, or with TPROXY from
/// the client's own.
fn bootstrap(mode: &str) -> Value {
    let filter = |name: &str, fields: Value| {
        let kind = format!("type.googleapis.com/envoy.extensions.filters.listener.{name}.v3.{}", camel(name));
        let mut config = json!({ "@type": kind });
        config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({ "name": format!("envoy.filters.listener.{name}"), "typed_config": config })
    };
    let listener = |name: &str, port: u16, filters: Vec<Value>| {
        let address = |ip: &str| json!({ "socket_address": { "address": ip, "port_value": port } });
        json!({
            "name": name,
            "address": address("0.0.0.0"),
            "additional_addresses": [{ "address": address("::") }],
            "transparent": mode == "TPROXY" && name == "inbound",
            "listener_filters": filters,
            "filter_chains": [{ "filters": [{
                "name": "envoy.filters.network.tcp_proxy",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                    "stat_prefix": name,
                    "cluster": name,
                },
            }]}],
        })
    };
    let cluster =
        |name: &str| json!({ "name": name, "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED" });
    let mut inbound = cluster("inbound");
    let mut inbound_filters = vec![filter("original_dst", json!({}))];
    if mode == "TPROXY" {
        inbound_filters.push(filter("original_src", json!({ "mark": 1337 })));
    } else {
        inbound["upstream_bind_config"] = json!({
            "source_address": { "address": "127.0.0.6", "port_value": 0 },
            "extra_source_addresses": [{ "address": { "address": "::6", "port_value": 0 } }],
        });
    }
    json!({
        "admin": { "address": { "socket_address": { "address": "127.0.0.1", "port_value": 15000 } } },
        "static_resources": {
            "listeners": [
                listener("outbound", 15001, vec![filter("original_dst", json!({}))]),
                listener("inbound", 15006, inbound_filters),
            ],
            "clusters": [cluster("outbound"), inbound],
        },
    })
}

/// `original_dst` is the message `OriginalDst`.
fn camel(name: &str) -> String {
    name.split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect()
}

fn traffic_goes_through_envoy(mode: &str, heard: [&str; 2]) {
    let (Some(()), Some(envoy)) = (support::tools(), support::envoy()) else { return };
    let scene = Scene::new(mode, &envoy);
    let (world, pod) = (&scene.world, &scene.pod);
    for back_end in BACK_ENDS {
        let flags = format!("{back_end} {FLAGS} -m {mode}");
        pod.must_redirect(&flags);
        let told = |text: &str, passed: Passed| (text.to_owned(), passed);
        for (from, user, words, expected) in [
            // Both ways, both families.
            (pod, NOBODY, "call 10.77.0.1 8080", told("10.77.0.1 hears 10.77.0.2", (1, 0))),
            (pod, NOBODY, "call fd77::1 8080", told("fd77::1 hears fd77::2", (1, 0))),
            (world, NOBODY, "call 10.77.0.2 9090", told(&format!("0.0.0.0 hears {}", heard[0]), (0, 1))),
            (world, NOBODY, "call fd77::2 9090", told(&format!("fd77::2 hears {}", heard[1]), (0, 1))),
            // The workload with itself, and the proxy.
            (pod, NOBODY, "call 127.0.0.1 9090", told("0.0.0.0 hears 127.0.0.1", (0, 0))),
            (pod, NOBODY, "call 10.77.0.2 9090", told("0.0.0.0 hears 10.77.0.2", (0, 0))),
            (pod, PROXY, "call 10.77.0.1 8080", told("10.77.0.1 hears 10.77.0.2", (0, 0))),
            // What was left out.
            (pod, NOBODY, "call 10.77.0.1 8081", told("10.77.0.1 hears 10.77.0.2", (0, 0))),
            (pod, NOBODY, "call 10.77.9.1 8080", told("10.77.9.1 hears 10.77.0.2", (0, 0))),
            (world, NOBODY, "call 10.77.0.2 9091", told("0.0.0.0 hears 10.77.0.1", (0, 0))),
            // Names: the agent asks the server, everybody else asks the agent.
            (pod, NOBODY, "ask 10.77.0.1 53", told("port 15053 hears 10.77.0.2", (0, 0))),
            (pod, PROXY, "ask 10.77.0.1 53", told("port 53 hears 10.77.0.2", (0, 0))),
        ] {
            assert_eq!(scene.call(from, user, words), expected, "{flags}: {words}");
        }
        pod.must_redirect(&format!("{flags} --cleanup-only"));
        let direct = scene.call(world, NOBODY, "call 10.77.0.2 9090");
        assert_eq!(direct, told("0.0.0.0 hears 10.77.0.1", (0, 0)), "{flags}");
        assert_eq!(scene.call(pod, NOBODY, "call 10.77.0.1 8080").1, (0, 0), "{flags}");
        assert_eq!(scene.call(pod, NOBODY, "ask 10.77.0.1 53").0, "port 53 hears 10.77.0.2", "{flags}");
    }
}

#[test]
fn with_redirect_the_workload_hears_its_proxy() {
    traffic_goes_through_envoy("REDIRECT", ["127.0.0.6", "::6"]);
}

#[test]
fn with_tproxy_the_workload_hears_the_client() {
    traffic_goes_through_envoy("TPROXY", ["10.77.0.1", "fd77::1"]);
}

#[test]
fn a_proxy_that_calls_its_own_workload_by_address_arrives_like_others() {
    let (Some(()), Some(envoy)) = (support::tools(), support::envoy()) else { return };
    let scene = Scene::new("REDIRECT", &envoy);
    for back_end in BACK_ENDS {
        scene.pod.must_redirect(&format!("{back_end} {FLAGS}"));
        let called = scene.call(&scene.pod, PROXY, "call 10.77.0.2 9090");
        assert_eq!(called, ("0.0.0.0 hears 127.0.0.6".to_owned(), (0, 1)), "{back_end}");
        let output = scene.pod.clean(&format!("{back_end} {FLAGS}"));
        assert!(output.status.success(), "{}", said(&output));
    }
}
