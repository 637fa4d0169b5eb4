//! The contract of registries on a stand-in for Marathon.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod standin;

use std::net::SocketAddr;
use std::time::Duration;

use pilot_model::Object;
use pilot_source::contract::{
    Condition, Follower, Mirror, Registered, RegistryRig, check_bad, check_load, check_registry,
};
use pilot_source::{RegistryOptions, Source};
use pilot_source_http::{ClientOptions, Secret, ServerAddress};
use pilot_source_marathon::{MarathonOptions, MarathonSource};

use standin::{Standin, WRONG};

impl Standin {
    fn source_with(&self, server: SocketAddr, secret: Option<Secret>) -> Box<dyn Source> {
        let server = ServerAddress::parse(&format!("http://{server}")).unwrap();
        let patience = Duration::from_secs(2);
        let options = MarathonOptions {
            registry: RegistryOptions::new("marathon", "marathon.mesos"),
            client: ClientOptions { patience, secret, ..ClientOptions::new(vec![server]) },
            alive: Duration::from_millis(500),
            anew: self.anew,
        };
        Box::new(MarathonSource::open(options).unwrap())
    }
}

impl RegistryRig for Standin {
    fn about(&self) -> &'static str {
        "Marathon (stand-in)"
    }

    fn source(&self, server: SocketAddr) -> Box<dyn Source> {
        self.source_with(server, None)
    }

    fn server(&self) -> SocketAddr {
        self.address
    }

    async fn try_register(&mut self, instance: &Registered) -> bool {
        self.put(&instance.id, &of_service(instance), Condition::Well);
        true
    }

    async fn deregister(&mut self, instance: &Registered) {
        self.remove(&instance.id);
    }

    async fn set_condition(&mut self, instance: &Registered, condition: Condition) -> bool {
        self.put(&instance.id, &of_service(instance), condition);
        true
    }

    fn stream(&self) -> Option<&'static str> {
        Some("/v2/events")
    }

    async fn restart(&mut self) -> Option<bool> {
        self.stop_and_start().await;
        Some(true)
    }

    fn nonsense(&self) -> Vec<Vec<u8>> {
        let answer = |body: &str| {
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
        };
        vec![
            answer("{}"),
            answer("{\"apps\": [{}]}"),
            b"HTTP/1.1 503 No leader\r\ncontent-length: 0\r\n\r\n".to_vec(),
            vec![0xff; 64],
        ]
    }

    fn with_wrong_token(&self) -> Option<(Box<dyn Source>, &'static str)> {
        let secret = Secret::new("authorization", &format!("token={WRONG}"));
        Some((self.source_with(self.address, secret), WRONG))
    }

    async fn fill(&mut self, services: usize, instances: usize) {
        for service in 0..services {
            for instance in 0..instances {
                let (name, id) = (format!("svc-{service}"), format!("svc-{service}-{instance}"));
                self.put(&name, &Registered::new(&name, &id, 8080).with("version", "v1"), Condition::Well);
            }
        }
    }
}

/// Versions of a service are apps of their own that say which host they serve.
fn of_service(instance: &Registered) -> Registered {
    let mut instance = instance.clone();
    let host = format!("{}.marathon.mesos", instance.service);
    instance.metadata.entry("istio-host".to_owned()).or_insert(host);
    instance
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn marathon_keeps_the_contract() {
    let mut standin = Standin::start().await;
    check_registry(&mut standin).await;
    check_bad(&mut standin).await;
    // To list so many takes longer.
    standin.anew = Duration::from_secs(300);
    check_load(&mut standin).await;
}

/// Hosts and how many endpoints each has, by the names of objects.
fn told(mirror: &Mirror) -> Vec<String> {
    let each = |object: &Object| match object {
        Object::ServiceEntry(entry) => {
            format!("{} {} {}", entry.id.name, entry.spec.hosts[0], entry.spec.endpoints.len())
        }
        other => format!("{:?}", other.key()),
    };
    mirror.objects().map(each).collect()
}

fn issues(mirror: &Mirror) -> Vec<String> {
    mirror.issues.values().flatten().map(ToString::to_string).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn apps_that_share_a_name_are_two_and_an_app_that_cannot_be_read_is_tried_again() {
    let standin = Standin::start().await;
    standin.put("shop/cart", &Registered::new("cart", "1", 8080), Condition::Well);
    let mut follower = Follower::start(RegistryRig::source(&standin, standin.address));
    let first = "shop_cart.marathon cart-shop.marathon.mesos 1";
    follower.until("an app in a folder", |mirror| told(mirror) == [first]).await;
    standin.put("cart-shop", &Registered::new("cart", "2", 8081), Condition::Well);
    let second = "cart-shop.marathon cart-shop.marathon.mesos 1";
    follower.until("another one of that name", |mirror| told(mirror) == [second, first]).await;
    follower.until("that both are told of each other", |mirror| mirror.issues.len() == 2).await;
    standin.remove("cart-shop");
    follower.until("one", |mirror| told(mirror) == [first] && mirror.issues.is_empty()).await;
    standin.refuse("shop/cart");
    standin.put("shop/cart", &Registered::new("cart", "3", 8082), Condition::Well);
    standin.put("other", &Registered::new("other", "4", 8080), Condition::Well);
    follower.until("the other one", |mirror| told(mirror).len() == 2 && !mirror.issues.is_empty()).await;
    let issues = issues(&follower.mirror);
    assert!(issues.len() == 1 && issues[0].contains("default/shop_cart.marathon"), "{issues:?}");
    assert_eq!(told(&follower.mirror)[1], first, "it keeps what it was");
    standin.refuse("");
    let both = "shop_cart.marathon cart-shop.marathon.mesos 2";
    follower.until("it", |mirror| told(mirror)[1] == both && mirror.issues.is_empty()).await;
    follower.stop().await;
}
