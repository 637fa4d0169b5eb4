//! The contract of registries on a stand-in for Copilot, and what only Cloud Foundry has.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod standin;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use pilot_config::ReadOptions;
use pilot_model::Object;
use pilot_source::contract::{
    Condition, Follower, Mirror, Registered, RegistryRig, check_load, check_registry,
};
use pilot_source::{RegistryOptions, Source};
use pilot_source_cloudfoundry::{CfConfig, CloudFoundryOptions, CloudFoundrySource};
use pilot_source_http::TlsFiles;
use tempfile::TempDir;

use standin::{Mood, Standin};

struct CloudFoundry {
    standin: Standin,
    /// Where each instance is.
    registered: BTreeMap<String, SocketAddr>,
    _folder: TempDir,
}

impl CloudFoundry {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let standin = Standin::start(folder.path(), SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        Self { standin, registered: BTreeMap::new(), _folder: folder }
    }

    fn follow(&self, config: CfConfig) -> Follower {
        Follower::start(source(config))
    }
}

fn source(config: CfConfig) -> Box<dyn Source> {
    let registry = RegistryOptions::new("cloudfoundry", "");
    let (read, patience) = (ReadOptions::default(), Duration::from_secs(2));
    Box::new(CloudFoundrySource::open(CloudFoundryOptions { registry, config, read, patience }).unwrap())
}

fn host(service: &str) -> String {
    format!("{service}.apps.example.com")
}

fn backend(instance: &Registered) -> SocketAddr {
    SocketAddr::new(instance.address.parse().unwrap(), instance.port)
}

impl RegistryRig for CloudFoundry {
    fn about(&self) -> &'static str {
        "Cloud Foundry (stand-in)"
    }

    fn source(&self, server: SocketAddr) -> Box<dyn Source> {
        source(self.standin.config(server))
    }

    fn server(&self) -> SocketAddr {
        self.standin.address
    }

    /// Applications have no metadata but which they are.
    fn version_label(&self) -> Option<&'static str> {
        Some("cfapp")
    }

    async fn try_register(&mut self, instance: &Registered) -> bool {
        let mut world = self.standin.world.lock();
        if let Some(before) = self.registered.insert(instance.id.clone(), backend(instance)) {
            world.stop(before);
        }
        let app = instance.metadata.get("version").cloned().unwrap_or_default();
        world.map(host(&instance.service).as_bytes(), (String::new(), app, backend(instance)), 0);
        true
    }

    async fn deregister(&mut self, instance: &Registered) {
        self.registered.remove(&instance.id);
        self.standin.world.lock().stop(backend(instance));
    }

    /// Who is ill is no back end any more.
    async fn set_condition(&mut self, instance: &Registered, condition: Condition) -> bool {
        match condition {
            Condition::Well => self.register(instance).await,
            Condition::Ill => self.deregister(instance).await,
        }
        true
    }

    async fn restart(&mut self) -> Option<bool> {
        self.standin.stop_and_start().await.unwrap();
        Some(true)
    }

    fn nonsense(&self) -> Vec<Vec<u8>> {
        vec![vec![0xff; 64], b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()]
    }

    async fn fill(&mut self, services: usize, instances: usize) {
        let mut world = self.standin.world.lock();
        for service in 0..services {
            for instance in 0..instances {
                let port = u16::try_from(10_000 + instance).unwrap();
                let to = (String::new(), "v1".to_owned(), SocketAddr::from(([10, 0, 0, 1], port)));
                world.map(host(&format!("svc-{service}")).as_bytes(), to, 100);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cloudfoundry_keeps_the_contract() {
    let mut cloudfoundry = CloudFoundry::start().await;
    check_registry(&mut cloudfoundry).await;
    check_load(&mut cloudfoundry).await;
}

/// Kind, name and a word on each object.
fn told(mirror: &Mirror) -> Vec<String> {
    let each = |object: &Object| match object {
        Object::ServiceEntry(config) => {
            let spec = &config.spec;
            format!("service {} {:?} {}", spec.hosts[0], spec.addresses, spec.endpoints.len())
        }
        Object::VirtualService(config) => format!("{} {} routes", config.id.name, config.spec.http.len()),
        Object::DestinationRule(config) => {
            format!("{} {} subsets", config.id.name, config.spec.subsets.len())
        }
        other => format!("{:?}", other.key()),
    };
    mirror.objects().map(each).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_weights_and_virtual_addresses_are_told_as_they_change() {
    let cloudfoundry = CloudFoundry::start().await;
    let standin = &cloudfoundry.standin;
    let at = |last: u8| SocketAddr::from(([10, 0, 0, last], 61_001));
    let map = |path: &str, app: &str, last: u8, weight: i32| {
        standin.world.lock().map(b"shop.example.com", (path.into(), app.into(), at(last)), weight);
    };
    map("", "a", 1, 100);
    standin.world.lock().map_inside("shop.apps.internal", "127.1.0.1", at(1));
    let mut follower = cloudfoundry.follow(standin.config(standin.address));
    let plain = ["service shop.apps.internal [\"127.1.0.1\"] 1", "service shop.example.com [] 1"];
    follower.until("hosts without rules", |mirror| told(mirror) == plain).await;
    map("/cart", "b", 2, 100);
    let ruled = |subsets: u8, endpoints: u8| {
        vec![
            plain[0].to_owned(),
            format!("service shop.example.com [] {endpoints}"),
            "virtual-service-for-shop.example.com 2 routes".to_owned(),
            format!("dest-rule-for-shop.example.com {subsets} subsets"),
        ]
    };
    let same = |mirror: &Mirror, mut expected: Vec<String>| {
        let mut told = told(mirror);
        told.sort();
        expected.sort();
        told == expected
    };
    follower.until("rules for a path", |mirror| same(mirror, ruled(2, 2))).await;
    follower.mirror.rows = 0;
    map("/cart", "b", 3, 100);
    follower.until("another instance", |mirror| same(mirror, ruled(2, 3))).await;
    assert_eq!(follower.mirror.rows, 1, "an instance more changes no rule");
    map("", "c", 4, 10);
    follower.until("weights", |mirror| same(mirror, ruled(3, 4))).await;
    standin.world.lock().stop(at(2));
    standin.world.lock().stop(at(3));
    standin.world.lock().stop(at(4));
    follower.until("no rules any more", |mirror| told(mirror) == plain).await;
    assert!(follower.mirror.issues.is_empty(), "{:?}", follower.mirror.issues);
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_told_once_and_takes_nothing_along() {
    let cloudfoundry = CloudFoundry::start().await;
    let standin = &cloudfoundry.standin;
    let good = SocketAddr::from(([10, 0, 0, 1], 61_001));
    let to = |path: &str, app: &str, at| (path.to_owned(), app.to_owned(), at);
    standin.world.lock().map(b"shop.example.com", to("", "a", good), 0);
    standin.world.lock().map(b"b\xffd.example.com", to("", "a", good), 0);
    standin.world.lock().map(b"no port.example.com", to("", "a", SocketAddr::from(([10, 0, 0, 2], 0))), 0);
    standin.world.lock().map_inside("in.apps.internal", "not an address", good);
    let mut follower = cloudfoundry.follow(standin.config(standin.address));
    let flows = ["service in.apps.internal [] 1", "service shop.example.com [] 1"];
    follower.until("what is right", |mirror| told(mirror) == flows).await;
    let issues = |mirror: &Mirror| -> Vec<String> {
        mirror.issues.values().flatten().map(ToString::to_string).collect()
    };
    let seen = issues(&follower.mirror);
    assert_eq!(follower.mirror.issues.len(), 3, "{seen:?}");
    assert!(
        seen.iter().all(|issue| issue.starts_with("cloudfoundry: error: ServiceEntry default/")),
        "{seen:?}"
    );
    follower.mirror.issues.clear();
    follower.rest(Duration::from_millis(300)).await;
    assert!(follower.mirror.issues.is_empty(), "what was told is not told again");
    for mood in [Mood::Malformed, Mood::Refusing] {
        standin.world.lock().mood = mood;
        follower.until("an issue", |mirror| mirror.issues.contains_key("cloudfoundry")).await;
        assert_eq!(told(&follower.mirror), flows, "{mood:?} empties nothing");
        standin.world.lock().mood = Mood::Good;
        follower.until("that all is well", |mirror| mirror.issues.is_empty()).await;
    }
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copilot_wants_to_know_who_asks() {
    let cloudfoundry = CloudFoundry::start().await;
    let config = cloudfoundry.standin.config(cloudfoundry.standin.address);
    let nobody = TlsFiles { own: None, ..config.tls.clone() };
    let mut follower = cloudfoundry.follow(CfConfig { tls: nobody, ..config });
    follower.until("a refusal", |mirror| !mirror.issues.is_empty()).await;
    assert!(!follower.mirror.ready, "what may not be seen is not nothing");
    follower.stop().await;
    let stranger = CloudFoundry::start().await;
    let config = cloudfoundry.standin.config(stranger.standin.address);
    let mut follower = cloudfoundry.follow(config);
    follower.until("a stranger", |mirror| !mirror.issues.is_empty()).await;
    let issue = follower.mirror.issues.values().flatten().next().unwrap().to_string();
    assert!(issue.contains("certificate"), "{issue}");
    follower.stop().await;
}
