//! The contracts of registries and of stores on the memory registry, over its own interface.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::{Method, StatusCode};
use pilot_config::ReadOptions;
use pilot_source::contract::{
    Condition, Follower, Mirror, Registered, RegistryRig, Started, check_bad, check_load, check_registry,
    free_port, garbled,
};
use pilot_source::{RegistryOptions, Source};
use pilot_source_http::{Answer, Client, ClientOptions, Secret, ServerAddress};
use pilot_source_memory::{MemoryOptions, MemorySource};
use pilot_source_store::contract::{Seen, StoreRig, Written, check_store, check_store_load, rule};
use serde_json::{Value, json};

const TOKEN: &str = "open sesame";

struct Memory {
    follower: Follower,
    client: Client,
}

fn client(address: SocketAddr, token: &str) -> Client {
    let server = ServerAddress::parse(&address.to_string()).unwrap();
    let secret = Secret::new("authorization", &format!("Bearer {token}"));
    Client::new(ClientOptions { secret, ..ClientOptions::new(vec![server]) }).unwrap()
}

fn listen(port: u16) -> MemorySource {
    listen_with(port, None).unwrap()
}

fn listen_with(port: u16, file: Option<PathBuf>) -> std::io::Result<MemorySource> {
    let (registry, token) = (RegistryOptions::new("memory", "service.mesh"), Some(TOKEN.to_owned()));
    let options = MemoryOptions { registry, read: ReadOptions::default(), token, file };
    MemorySource::listen(SocketAddr::from(([127, 0, 0, 1], port)), options)
}

async fn put(client: &Client, instance: &Registered, ttl: u64) -> StatusCode {
    let body = json!({"address": instance.address, "port": instance.port, "metadata": instance.metadata, "ttlSeconds": ttl});
    let path = format!("/v1/services/{}/instances/{}", instance.service, instance.id);
    let ask = || client.ask(Method::PUT, &path, garbled(&body.to_string()).into(), Duration::from_secs(30));
    match ask().await {
        Ok(answer) => answer.status,
        // The connection may be one to a registry that has ended; what is written twice is written once.
        Err(_) => ask().await.unwrap().status,
    }
}

impl Memory {
    async fn start() -> (Self, SocketAddr) {
        let source = listen(0);
        assert_eq!(source.name(), "memory");
        let address = source.address().unwrap();
        let mut follower = Follower::start(Box::new(source));
        follower.until("that there is nothing", |mirror| mirror.ready).await;
        (Self { follower, client: client(address, TOKEN) }, address)
    }

    async fn ask(&self, method: Method, path: &str, body: &str) -> Answer {
        self.client.ask(method, path, body.to_owned().into(), Duration::from_secs(30)).await.unwrap()
    }

    async fn register(&self, instance: &Registered, ttl: u64) -> StatusCode {
        put(&self.client, instance, ttl).await
    }
}

fn told(mirror: &Mirror) -> Vec<String> {
    let each = |object: &pilot_model::Object| match object {
        pilot_model::Object::ServiceEntry(config) => {
            format!("{} {}", config.spec.hosts[0], config.spec.endpoints.len())
        }
        pilot_model::Object::DestinationRule(config) => format!("rule {}", config.spec.host),
        other => panic!("{other:?}"),
    };
    mirror.objects().map(each).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_come_change_and_go() {
    let (mut memory, _) = Memory::start().await;
    let one = Registered::new("shop", "1", 8080).with("version", "v1");
    assert_eq!(memory.register(&one, 0).await, StatusCode::OK);
    memory.follower.until("an instance", |mirror| told(mirror) == ["shop.service.mesh 1"]).await;
    memory.register(&Registered::new("shop", "2", 8080), 0).await;
    memory.follower.until("another", |mirror| told(mirror) == ["shop.service.mesh 2"]).await;
    let health = |healthy: bool| json!({"healthy": healthy}).to_string();
    memory.ask(Method::PUT, "/v1/services/shop/instances/2/health", &health(false)).await;
    memory.follower.until("an ill one", |mirror| told(mirror) == ["shop.service.mesh 1"]).await;
    memory.ask(Method::PUT, "/v1/services/shop/instances/2/health", &health(true)).await;
    memory.follower.until("a healthy one", |mirror| told(mirror) == ["shop.service.mesh 2"]).await;
    memory.ask(Method::DELETE, "/v1/services/shop/instances/2", "").await;
    memory.follower.until("one less", |mirror| told(mirror) == ["shop.service.mesh 1"]).await;
    memory.follower.mirror.rows = 0;
    memory.register(&one.with("version", "v2"), 0).await;
    memory.follower.until("one row", |mirror| mirror.rows == 1).await;
    memory.ask(Method::DELETE, "/v1/services/shop/instances/1", "").await;
    memory.follower.until("nothing", |mirror| told(mirror).is_empty()).await;
    assert!(memory.follower.mirror.issues.is_empty());
    memory.follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_heartbeat_an_instance_is_gone() {
    let (mut memory, _) = Memory::start().await;
    memory.register(&Registered::new("shop", "1", 8080), 1).await;
    memory.register(&Registered::new("shop", "2", 8080), 3600).await;
    memory.follower.until("both", |mirror| told(mirror) == ["shop.service.mesh 2"]).await;
    let beat = memory.ask(Method::PUT, "/v1/services/shop/instances/2/heartbeat", "").await;
    assert_eq!(beat.status, StatusCode::NO_CONTENT);
    memory.follower.until("that one expired", |mirror| told(mirror) == ["shop.service.mesh 1"]).await;
    let beat = memory.ask(Method::PUT, "/v1/services/shop/instances/1/heartbeat", "").await;
    assert_eq!(beat.status, StatusCode::NOT_FOUND);
    memory.follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_in_a_file_is_there_after_a_restart() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("memory.json");
    let start = || {
        let source = listen_with(0, Some(file.clone())).unwrap();
        let client = client(source.address().unwrap(), TOKEN);
        Memory { follower: Follower::start(Box::new(source)), client }
    };
    let mut memory = start();
    memory.follower.until("that there is nothing", |mirror| mirror.ready).await;
    memory.register(&Registered::new("shop", "1", 8080).with("version", "v1"), 0).await;
    memory.register(&Registered::new("cart", "1", 8080), 2).await;
    memory.ask(Method::PUT, "/v1/rules/shop", &rule("shop", 1)).await;
    let all = ["rule h1.example.com", "cart.service.mesh 1", "shop.service.mesh 1"];
    memory.follower.until("all of it", |mirror| told(mirror) == all).await;
    let is_written = || std::fs::read_to_string(&file).is_ok_and(|text| text.contains("h1.example.com"));
    while !is_written() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    memory.follower.stop().await;
    // Everything is there at once, and who is silent from now on is gone in time.
    let mut memory = start();
    memory.follower.until("what was kept", |mirror| mirror.ready).await;
    assert_eq!(told(&memory.follower.mirror), all);
    memory.follower.until("that one expired", |mirror| told(mirror) == [all[0], all[2]]).await;
    // Where nothing can be written, that is told.
    std::fs::create_dir(file.with_extension("draft")).unwrap();
    memory.ask(Method::PUT, "/v1/rules/shop", &rule("shop", 2)).await;
    let is_told = |mirror: &Mirror| {
        mirror
            .issues
            .values()
            .flatten()
            .any(|issue| issue.to_string().contains("memory.json cannot be written"))
    };
    memory.follower.until("that it cannot be written", is_told).await;
    memory.follower.stop().await;
    std::fs::write(&file, "{").unwrap();
    assert!(listen_with(0, Some(file)).is_err(), "what cannot be read is not written over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_registers_wrongly_is_told() {
    let (memory, address) = Memory::start().await;
    let put = |path: &'static str, body: Value| memory.ask_text(path, body);
    for (path, body, why) in [
        ("/v1/services/shop/instances/1", json!({"address": "10.0.0.1"}), "port: is missing"),
        (
            "/v1/services/shop/instances/1",
            json!({"address": "a b", "port": 80}),
            "neither an IP nor a host name",
        ),
        (
            "/v1/services/shop/instances/1",
            json!({"address": "10.0.0.1", "port": 70000}),
            "70000 is not a port",
        ),
        (
            "/v1/services/shop/instances/1",
            json!({"adress": "10.0.0.1", "port": 80}),
            "unknown field `adress`",
        ),
        ("/v1/services/a%20b/instances/1", json!({"address": "10.0.0.1", "port": 80}), "is not a host name"),
    ] {
        let (status, answer) = put(path, body).await;
        assert!(status == StatusCode::BAD_REQUEST && answer.contains(why), "{answer} should say {why}");
    }
    let large = json!({"address": "10.0.0.1", "port": 80, "metadata": {"x": "y".repeat(2 << 20)}});
    assert_eq!(put("/v1/services/shop/instances/1", large).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    let stranger = client(address, "wrong").get("/v1/services", Duration::ZERO).await.unwrap();
    assert_eq!(stranger.status, StatusCode::UNAUTHORIZED);
    memory.follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_description_of_the_interface_says_is_there_and_nothing_else() {
    let (memory, _) = Memory::start().await;
    let page = memory.ask(Method::GET, "/openapi.yaml", "").await;
    let text = String::from_utf8(page.body.to_vec()).unwrap();
    let mut described: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut path = String::new();
    for line in text.lines().skip_while(|line| *line != "paths:") {
        let indent = line.len() - line.trim_start().len();
        let key = line.trim().trim_end_matches(':');
        match indent {
            2 => path = key.to_owned(),
            4 if key != "parameters" && !key.contains(' ') => {
                described.entry(path.clone()).or_default().insert(key.to_ascii_uppercase());
            }
            _ => {}
        }
    }
    assert_eq!(described.len(), 7, "{described:?}");
    for (path, methods) in described {
        let place = path.replace("{service}", "shop").replace("{id}", "1").replace("{key}", "shop");
        for method in ["GET", "PUT", "DELETE", "POST"] {
            let answer = memory.ask(method.parse().unwrap(), &place, "{}").await;
            let is_there = answer.status != StatusCode::METHOD_NOT_ALLOWED;
            assert_eq!(is_there, methods.contains(method), "{method} {path}: {}", answer.status);
            // What is not there at all says nothing about why.
            assert!(answer.status != StatusCode::NOT_FOUND || !answer.body.is_empty(), "{method} {path}");
        }
    }
    memory.follower.stop().await;
}

impl Memory {
    async fn ask_text(&self, path: &str, body: Value) -> (StatusCode, String) {
        let answer = self.ask(Method::PUT, path, &body.to_string()).await;
        (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_for_a_change_is_told_of_it() {
    let (memory, _) = Memory::start().await;
    memory.register(&Registered::new("shop", "1", 8080), 0).await;
    let first: Value = memory.ask(Method::GET, "/v1/services", "").await.json().unwrap();
    let version = first["version"].as_u64().unwrap();
    let path = format!("/v1/services?after={version}&wait=30");
    let (second, status) = tokio::join!(memory.ask(Method::GET, &path, ""), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        memory.register(&Registered::new("cart", "1", 8080), 0).await
    });
    assert_eq!(status, StatusCode::OK);
    let second: Value = second.json().unwrap();
    assert!(second["version"].as_u64().unwrap() > version && second["services"]["cart"]["1"]["port"] == 8080);
    memory.follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_learns_of_who_is_gone_without_a_word_and_of_a_new_beginning() {
    let (memory, _) = Memory::start().await;
    memory.register(&Registered::new("shop", "1", 8080), 1).await;
    let first: Value = memory.ask(Method::GET, "/v1/services", "").await.json().unwrap();
    let path = format!("/v1/services?after={}&wait=60", first["version"]);
    let waited: Value = memory.ask(Method::GET, &path, "").await.json().unwrap();
    assert_eq!(waited["services"], json!({}), "{waited}");
    assert!(waited["version"].as_u64() > first["version"].as_u64());
    // It has seen versions of one who was here before.
    let path = "/v1/services?after=1000000000&wait=60";
    let answer: Value = memory.ask(Method::GET, path, "").await.json().unwrap();
    assert_eq!(answer["version"], waited["version"]);
    let path = format!("/v1/rules?after={}&wait=60", waited["version"]);
    let (rules, written) = tokio::join!(memory.ask(Method::GET, &path, ""), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        memory.ask(Method::PUT, "/v1/rules/shop", &rule("shop", 1)).await
    });
    assert_eq!(written.status, StatusCode::NO_CONTENT);
    assert_eq!(rules.json::<Value>().unwrap()["rules"].as_object().unwrap().len(), 1);
    memory.follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_are_written_read_and_guarded_against_lost_writes() {
    let (mut memory, address) = Memory::start().await;
    let put = memory.ask(Method::PUT, "/v1/rules/shop", &rule("shop", 1)).await;
    assert_eq!(put.status, StatusCode::NO_CONTENT);
    memory.follower.until("a rule", |mirror| told(mirror) == ["rule h1.example.com"]).await;
    let bad = memory.ask(Method::PUT, "/v1/rules/shop", "kind: [").await;
    assert!(bad.status == StatusCode::BAD_REQUEST && bad.body.windows(8).any(|w| w == b"not YAML"));

    // Two who write what they have both seen: the second one learns that there is something newer.
    let seen = put.headers["etag"].to_str().unwrap().to_owned();
    let server = ServerAddress::parse(&address.to_string()).unwrap();
    let careful = |version: &str| {
        let secret = Secret::new("if-match", version);
        let options = ClientOptions { secret, ..ClientOptions::new(vec![server.clone()]) };
        Client::new(options).unwrap()
    };
    let without_token =
        careful(&seen).ask(Method::PUT, "/v1/rules/shop", rule("shop", 2).into(), Duration::ZERO).await;
    assert_eq!(without_token.unwrap().status, StatusCode::UNAUTHORIZED);
    memory.ask(Method::PUT, "/v1/rules/shop", &rule("shop", 3)).await;
    memory.follower.until("the newer rule", |mirror| told(mirror) == ["rule h3.example.com"]).await;
    let text = memory.ask(Method::GET, "/v1/rules/shop", "").await;
    assert!(String::from_utf8_lossy(&text.body).contains("h3.example.com") && text.headers["etag"] != *seen);
    memory.ask(Method::DELETE, "/v1/rules/shop", "").await;
    memory.follower.until("no rule", |mirror| told(mirror).is_empty()).await;
    let list: Value = memory.ask(Method::GET, "/v1/rules", "").await.json().unwrap();
    assert_eq!(list["rules"], json!({}));
    memory.follower.stop().await;
}

/// The registry in the source, written over its interface.
struct Own {
    port: u16,
    client: Client,
}

impl RegistryRig for Own {
    fn about(&self) -> &'static str {
        "memory"
    }

    fn source(&self, _: SocketAddr) -> Box<dyn Source> {
        Box::new(listen(self.port))
    }

    fn server(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    fn started(&self) -> Started {
        Started::WithSource
    }

    async fn try_register(&mut self, instance: &Registered) -> bool {
        put(&self.client, instance, 0).await == StatusCode::OK
    }

    async fn deregister(&mut self, instance: &Registered) {
        let path = format!("/v1/services/{}/instances/{}", instance.service, instance.id);
        let answer = self.client.ask(Method::DELETE, &path, "".into(), Duration::ZERO).await.unwrap();
        assert_eq!(answer.status, StatusCode::NO_CONTENT);
    }

    async fn set_condition(&mut self, instance: &Registered, condition: Condition) -> bool {
        let path = format!("/v1/services/{}/instances/{}/health", instance.service, instance.id);
        let body = json!({"healthy": condition == Condition::Well}).to_string();
        let answer = self.client.ask(Method::PUT, &path, body.into(), Duration::ZERO).await.unwrap();
        answer.status == StatusCode::NO_CONTENT
    }

    async fn restart(&mut self) -> Option<bool> {
        None
    }

    fn nonsense(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    async fn fill(&mut self, services: usize, instances: usize) {
        for service in 0..services {
            for instance in 0..instances {
                let (name, id) = (format!("svc-{service}"), format!("svc-{service}-{instance}"));
                self.register(&Registered::new(&name, &id, 8080).with("version", "v1")).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_keeps_the_contract() {
    let port = free_port();
    let mut own = Own { port, client: client(SocketAddr::from(([127, 0, 0, 1], port)), TOKEN) };
    check_registry(&mut own).await;
    nobody_listens(port).await;
    check_bad(&mut own).await;
    nobody_listens(port).await;
    check_load(&mut own).await;
}

/// A registry that was let go of closes its port a moment later.
async fn nobody_listens(port: u16) {
    while std::net::TcpListener::bind(("127.0.0.1", port)).is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl StoreRig for Own {
    fn about(&self) -> &'static str {
        "memory"
    }

    fn source(&self, _: SocketAddr) -> Box<dyn Source> {
        Box::new(listen(self.port))
    }

    fn server(&self) -> Option<SocketAddr> {
        None
    }

    fn started(&self) -> Started {
        Started::WithSource
    }

    async fn put(&mut self, key: &str, bytes: &[u8]) -> bool {
        let (path, body) = (format!("/v1/rules/{key}"), bytes.to_vec().into());
        let answer = self.client.ask(Method::PUT, &path, body, Duration::ZERO).await.unwrap();
        answer.status == StatusCode::NO_CONTENT
    }

    async fn put_if(&mut self, key: &str, seen: Seen, bytes: &[u8]) -> Option<Written> {
        let header = match seen {
            Seen::Nothing => "if-none-match: *".to_owned(),
            Seen::Version(version) => format!("if-match: \"{version}\""),
        };
        let rule = String::from_utf8_lossy(bytes);
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let (status, version) = careful(address, &format!("PUT /v1/rules/{key}"), (&header, &rule)).await;
        Some(match (status, version) {
            (204, Some(version)) => Written::Version(version.trim_matches('"').parse().unwrap()),
            (412, _) => Written::Conflict,
            other => panic!("{other:?}"),
        })
    }

    async fn delete(&mut self, key: &str) {
        let path = format!("/v1/rules/{key}");
        let answer = self.client.ask(Method::DELETE, &path, "".into(), Duration::ZERO).await.unwrap();
        assert_eq!(answer.status, StatusCode::NO_CONTENT);
    }

    async fn list(&mut self) -> BTreeSet<String> {
        let page = self.client.page("/v1/rules", Duration::ZERO).await.unwrap();
        let page: Value = page.json().unwrap();
        page["rules"].as_object().unwrap().keys().cloned().collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_keeps_the_contract_of_stores() {
    let port = free_port();
    let mut own = Own { port, client: client(SocketAddr::from(([127, 0, 0, 1], port)), TOKEN) };
    check_store(&mut own).await;
    nobody_listens(port).await;
    check_store_load(&mut own).await;
}

/// Asks with a header that says which version has been seen; tells the status, and the version that there is.
async fn careful(address: SocketAddr, question: &str, (header, rule): (&str, &str)) -> (u16, Option<String>) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = format!("{question} HTTP/1.1\r\nhost: memory\r\nconnection: close\r\n");
    let who = format!("authorization: Bearer {TOKEN}\r\n{header}\r\ncontent-length: {}\r\n\r\n", rule.len());
    stream.write_all(format!("{head}{who}{rule}").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let status = answer.split(' ').nth(1).and_then(|text| text.parse().ok()).unwrap();
    let version = answer.lines().find_map(|line| line.strip_prefix("etag: ")).map(str::to_owned);
    (status, version)
}

const PUT: &str = "PUT /v1/rules/shop";
const DELETE: &str = "DELETE /v1/rules/shop";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_who_write_what_both_have_seen_the_second_is_told_so() {
    let (mut memory, address) = Memory::start().await;
    let (one, two) = (rule("shop", 1), rule("shop", 2));
    let (status, first) = careful(address, PUT, ("if-none-match: *", &one)).await;
    let seen = format!("if-match: {}", first.unwrap());
    assert_eq!((status, careful(address, PUT, ("if-none-match: *", &two)).await.0), (204, 412));
    let (status, second) = careful(address, PUT, (&seen, &two)).await;
    assert_eq!(status, 204);
    assert!(second.is_some_and(|second| !seen.ends_with(&second)));
    for question in [PUT, DELETE] {
        let (status, _) = careful(address, question, (&seen, &one)).await;
        assert_eq!(status, 412, "{question} of what is no longer so");
    }
    assert_eq!(careful(address, PUT, ("if-match: soon", &one)).await.0, 400);
    assert_eq!(careful(address, PUT, ("if-match: *", &two)).await.0, 204, "whichever it is");
    let newest = format!("if-match: {}", careful(address, PUT, ("if-match: *", &two)).await.1.unwrap());
    memory.follower.until("what was not lost", |mirror| told(mirror) == ["rule h2.example.com"]).await;
    assert_eq!(careful(address, DELETE, (&newest, "")).await.0, 204);
    assert_eq!(careful(address, PUT, (&newest, &one)).await.0, 412, "it is gone");
    assert_eq!(careful(address, PUT, ("if-match: *", &one)).await.0, 412, "there is none");
    memory.follower.until("no rule", |mirror| told(mirror).is_empty()).await;
    memory.follower.stop().await;
}
