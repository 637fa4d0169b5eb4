//! The contract of registries on a real ZooKeeper, and what only ZooKeeper can do.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pilot_source::contract::{
    Condition, Follower, Mirror, Registered, RegistryRig, Server, check_bad, check_load, check_registry,
    free_port, garbled, wanted,
};
use pilot_source::{RegistryOptions, Source};
use pilot_source_zookeeper::{
    Create, Credentials, Layout, Login, ZkError, ZooKeeper, ZooKeeperOptions, ZooKeeperSource,
};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::sync::mpsc;

struct Ensemble {
    server: Server,
    address: SocketAddr,
    client: Option<ZooKeeper>,
    _scratch: TempDir,
}

fn reader() -> Login {
    Login { user: "reader".to_owned(), password: "sec\"ret".to_owned() }
}

/// How servers learn who may ask, by files of Java's.
const USERS: &str = "Server {\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n  \
    user_reader=\"sec\\\"ret\";\n};\n";

fn config(scratch: &Path, port: u16) -> PathBuf {
    let file = scratch.join("zoo.cfg");
    let data = scratch.join("data");
    let lines = [
        "tickTime=500".to_owned(),
        format!("dataDir={}", data.display()),
        "clientPortAddress=127.0.0.1".to_owned(),
        format!("clientPort={port}"),
        "admin.enableServer=false".to_owned(),
        "maxClientCnxns=0".to_owned(),
    ];
    std::fs::write(&file, lines.join("\n")).unwrap();
    file
}

impl Ensemble {
    async fn start() -> Option<Self> {
        Self::start_with(Vec::new()).await
    }

    /// With properties of the server's own, which are Java's.
    async fn start_with(properties: Vec<String>) -> Option<Self> {
        let lib = wanted("PILOT_ZOOKEEPER")?;
        let scratch = tempfile::tempdir().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let file = config(scratch.path(), address.port());
        let users = scratch.path().join("users.conf");
        std::fs::write(&users, USERS).unwrap();
        let server = Server::start(move || {
            let mut java = Command::new("java");
            java.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
                .args(&properties)
                .arg(format!("-Djava.security.auth.login.config={}", users.display()))
                .arg("-cp")
                .arg(format!("{}/*", lib.display()))
                .arg("org.apache.zookeeper.server.ZooKeeperServerMain")
                .arg(&file);
            java
        });
        let mut ensemble = Self { server, address, client: None, _scratch: scratch };
        ensemble.reconnect().await;
        Some(ensemble)
    }

    async fn reconnect(&mut self) {
        let address = self.address;
        self.server.until("ZooKeeper answers", || async move { session(address).await.is_ok() }).await;
        self.client = session(address).await.ok();
    }

    fn client(&self) -> &ZooKeeper {
        self.client.as_ref().unwrap()
    }

    async fn put(&self, path: &str, data: &[u8], how: Create) {
        make_parents(self.client(), path).await;
        match self.client().create(path, data, how).await {
            Err(ZkError::NodeExists) => self.client().set(path, data).await.unwrap(),
            other => other.unwrap(),
        }
    }

    fn follow(&self, layout: Layout, root: &str) -> Follower {
        Follower::start(self.source_of(self.address, layout, root))
    }

    fn source_of(&self, server: SocketAddr, layout: Layout, root: &str) -> Box<dyn Source> {
        Box::new(ZooKeeperSource::new(ZooKeeperOptions {
            registry: RegistryOptions::new("zookeeper", "service.zookeeper"),
            servers: vec![server.to_string()],
            root: root.to_owned(),
            layout,
            credentials: Some(Credentials::Digest(reader())),
            session: Duration::from_secs(2),
            again: Duration::from_secs(1),
        }))
    }
}

async fn session(address: SocketAddr) -> Result<ZooKeeper, ZkError> {
    let (sender, _) = mpsc::unbounded_channel();
    ZooKeeper::connect(&address.to_string(), Duration::from_secs(10), sender).await
}

async fn make_parents(client: &ZooKeeper, path: &str) {
    let mut at = 1;
    while let Some(slash) = path[at..].find('/') {
        at += slash;
        match client.create(&path[..at], b"", Create::Persistent).await {
            Ok(()) | Err(ZkError::NodeExists) => {}
            Err(error) => panic!("{error}"),
        }
        at += 1;
    }
}

fn curator(instance: &Registered, condition: Condition) -> String {
    serde_json::json!({
        "name": instance.service, "id": instance.id, "address": instance.address, "port": instance.port,
        "sslPort": null, "payload": {"@class": "x", "metadata": instance.metadata}, "serviceType": "DYNAMIC",
        "enabled": condition == Condition::Well,
    })
    .to_string()
}

fn path(instance: &Registered) -> String {
    format!("/services/{}/{}", instance.service, instance.id)
}

impl RegistryRig for Ensemble {
    fn about(&self) -> &'static str {
        "ZooKeeper 3.9.4"
    }

    fn source(&self, server: SocketAddr) -> Box<dyn Source> {
        self.source_of(server, Layout::Curator, "/services")
    }

    fn server(&self) -> SocketAddr {
        self.address
    }

    async fn try_register(&mut self, instance: &Registered) -> bool {
        let node = garbled(&curator(instance, Condition::Well));
        // A node has a megabyte at most; a server that is sent more hangs up.
        let fits = node.len() < 1 << 20;
        if fits {
            self.put(&path(instance), &node, Create::Persistent).await;
        }
        fits
    }

    async fn deregister(&mut self, instance: &Registered) {
        self.client().delete(&path(instance)).await.unwrap();
    }

    async fn set_condition(&mut self, instance: &Registered, condition: Condition) -> bool {
        self.put(&path(instance), curator(instance, condition).as_bytes(), Create::Persistent).await;
        true
    }

    async fn restart(&mut self) -> Option<bool> {
        self.server.stop().await;
        self.server.start_again();
        self.reconnect().await;
        Some(true)
    }

    /// Curator's id stands in the node, and the name of the node is another one.
    async fn add_twin(&mut self, instance: &Registered) -> bool {
        let path = format!("{}-twin", path(instance));
        self.put(&path, curator(instance, Condition::Well).as_bytes(), Create::Persistent).await;
        true
    }

    async fn remove_twin(&mut self, instance: &Registered) {
        self.client().delete(&format!("{}-twin", path(instance))).await.unwrap();
    }

    fn nonsense(&self) -> Vec<Vec<u8>> {
        vec![vec![0xff; 64], vec![0; 64], b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()]
    }

    async fn fill(&mut self, services: usize, instances: usize) {
        for service in 0..services {
            let name = format!("svc-{service}");
            make_parents(self.client(), &format!("/services/{name}/x")).await;
            for instance in 0..instances {
                let one = Registered::new(&name, &format!("i-{instance}"), 8080).with("version", "v1");
                self.put(&path(&one), curator(&one, Condition::Well).as_bytes(), Create::Persistent).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zookeeper_keeps_the_contract() {
    let Some(mut ensemble) = Ensemble::start().await else { return };
    check_registry(&mut ensemble).await;
    check_bad(&mut ensemble).await;
    check_load(&mut ensemble).await;
}

fn hosts(mirror: &Mirror) -> Vec<String> {
    let host = |object: &pilot_model::Object| match object {
        pilot_model::Object::ServiceEntry(config) => {
            Some(format!("{} {}", config.spec.hosts[0], config.spec.endpoints.len()))
        }
        _ => None,
    };
    mirror.objects().filter_map(host).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_go_with_their_sessions_and_layouts_differ() {
    let Some(ensemble) = Ensemble::start().await else { return };
    let mut curator_world = ensemble.follow(Layout::Curator, "/services");
    curator_world.until("an empty tree", |mirror| mirror.ready).await;

    // An instance that registers itself is gone when it is.
    let own = session(ensemble.address).await.unwrap();
    let shop = Registered::new("shop", "shop-1", 8080);
    make_parents(&own, &path(&shop)).await;
    own.create(&path(&shop), curator(&shop, Condition::Well).as_bytes(), Create::Ephemeral).await.unwrap();
    curator_world.until("an instance", |mirror| hosts(mirror) == ["shop.service.zookeeper 1"]).await;
    drop(own);
    curator_world.until("that its session is over", |mirror| hosts(mirror).is_empty()).await;

    // What cannot be read is told once and takes nothing along.
    ensemble.put("/services/shop/good", curator(&shop, Condition::Well).as_bytes(), Create::Persistent).await;
    ensemble.put("/services/shop/bad", &[0xff, 0xfe], Create::Persistent).await;
    curator_world.until("an issue", |mirror| !mirror.issues.is_empty()).await;
    curator_world.until("the good one", |mirror| hosts(mirror) == ["shop.service.zookeeper 1"]).await;
    let issue = curator_world.mirror.issues.values().next().unwrap()[0].to_string();
    assert!(
        issue.starts_with("zookeeper: error: ServiceEntry default/shop.zookeeper: instances[bad]"),
        "{issue}"
    );
    curator_world.stop().await;

    let url = "dubbo%3A%2F%2F10.0.0.7%3A20880%2Fcom.shop.Cart%3Fversion%3D1.0.0";
    ensemble.put(&format!("/dubbo/com.shop.Cart/providers/{url}"), b"", Create::Persistent).await;
    let mut dubbo = ensemble.follow(Layout::Dubbo, "/dubbo");
    dubbo.until("a provider", |mirror| hosts(mirror) == ["com.shop.cart.service.zookeeper 1"]).await;
    dubbo.stop().await;

    ensemble.put("/plain/cart/10.0.0.1:80", b"version=v1", Create::Persistent).await;
    let mut plain = ensemble.follow(Layout::Plain, "/plain");
    plain.until("a plain node", |mirror| hosts(mirror) == ["cart.service.zookeeper 1"]).await;
    ensemble.put("/plain/cart/10.0.0.2:80", b"", Create::Persistent).await;
    plain.until("another", |mirror| hosts(mirror) == ["cart.service.zookeeper 2"]).await;
    plain.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_not_everybody_may_see_are_seen_by_who_proves_who_he_is() {
    let provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider";
    let Some(ensemble) =
        Ensemble::start_with(vec![format!("-Dzookeeper.authProvider.sasl={provider}")]).await
    else {
        return;
    };
    let shop = Registered::new("shop", "shop-1", 8080);
    make_parents(ensemble.client(), &path(&shop)).await;
    let cart = Registered::new("cart", "cart-1", 8080);
    make_parents(ensemble.client(), &path(&cart)).await;
    // One node for each way of saying who one is.
    let proved = session(ensemble.address).await.unwrap();
    proved.prove(&reader()).await.unwrap();
    proved.create(&path(&shop), curator(&shop, Condition::Well).as_bytes(), Create::Own).await.unwrap();
    let told = session(ensemble.address).await.unwrap();
    told.authenticate(&reader()).await.unwrap();
    told.create(&path(&cart), curator(&cart, Condition::Well).as_bytes(), Create::Own).await.unwrap();

    let follow = |credentials: Option<Credentials>| {
        let registry = RegistryOptions::new("zookeeper", "service.zookeeper");
        let (servers, root) = (vec![ensemble.address.to_string()], "/services".to_owned());
        let (layout, session, again) = (Layout::Curator, Duration::from_secs(2), Duration::from_secs(1));
        let options = ZooKeeperOptions { registry, servers, root, layout, credentials, session, again };
        Follower::start(Box::new(ZooKeeperSource::new(options)))
    };
    let wrong = Login { password: "wr0ngpass".to_owned(), ..reader() };
    for credentials in [None, Some(Credentials::Sasl(wrong.clone())), Some(Credentials::Digest(wrong))] {
        let mut follower = follow(credentials);
        follower.until("a refusal", |mirror| !mirror.issues.is_empty()).await;
        let issue = follower.mirror.issues.values().flatten().next().unwrap().to_string();
        assert!(issue.contains("password") && !issue.contains("wr0ngpass"), "{issue}");
        assert!(!follower.mirror.ready, "what may not be seen is not nothing");
        follower.stop().await;
    }
    // What one may not see is told, and takes nothing along.
    for (credentials, seen, hidden) in
        [(Credentials::Sasl(reader()), "shop", "cart"), (Credentials::Digest(reader()), "cart", "shop")]
    {
        let mut follower = follow(Some(credentials));
        let expected = format!("{seen}.service.zookeeper 1");
        follower.until("what may be seen", |mirror| hosts(mirror) == [expected.clone()]).await;
        let issues: Vec<String> =
            follower.mirror.issues.values().flatten().map(ToString::to_string).collect();
        let (place, why) = (format!("{hidden}.zookeeper: instances[{hidden}-1]"), "not allowed");
        assert!(issues.len() == 1 && issues[0].contains(&place) && issues[0].contains(why), "{issues:?}");
        follower.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_be_seen_after_all_or_is_gone_is_no_issue_any_more() {
    let Some(ensemble) = Ensemble::start().await else { return };
    let [shop, cart, far] =
        ["shop", "cart", "far"].map(|name| Registered::new(name, &format!("{name}-1"), 8080));
    let node = |instance: &Registered| curator(instance, Condition::Well).into_bytes();
    ensemble.put(&path(&shop), &node(&shop), Create::Persistent).await;
    let owner = session(ensemble.address).await.unwrap();
    owner.authenticate(&Login { user: "owner".to_owned(), password: "own".to_owned() }).await.unwrap();
    // Two services that only their owner may list, with an instance each.
    for (service, instance) in [("/services/cart", &cart), ("/services/far", &far)] {
        owner.create(service, b"", Create::Own).await.unwrap();
        owner.create(&path(instance), &node(instance), Create::Persistent).await.unwrap();
    }
    let mut follower = ensemble.follow(Layout::Curator, "/services");
    follower.until("what may be seen", |mirror| hosts(mirror) == ["shop.service.zookeeper 1"]).await;
    follower.until("that two may not", |mirror| mirror.issues.len() == 2).await;
    // Nothing tells that a node may be seen.
    owner.open("/services/cart").await.unwrap();
    let both = ["cart.service.zookeeper 1", "shop.service.zookeeper 1"];
    follower.until("another one", |mirror| hosts(mirror) == both && mirror.issues.len() == 1).await;
    owner.delete(&path(&far)).await.unwrap();
    owner.delete("/services/far").await.unwrap();
    follower.until("that it is gone", |mirror| mirror.issues.is_empty()).await;
    assert_eq!(hosts(&follower.mirror), both);
    follower.stop().await;
}
