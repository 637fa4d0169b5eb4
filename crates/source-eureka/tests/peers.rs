//! Peers that are none, and servers that tell no changes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::time::Duration;

use pilot_source::RegistryOptions;
use pilot_source::contract::Follower;
use pilot_source_eureka::{EurekaOptions, EurekaSource};
use pilot_source_http::{ClientOptions, ServerAddress};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Answers each path in one way, with a status and a body.
async fn serve(answer: impl Fn(&str) -> (u16, String) + Send + 'static) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut asked = vec![0; 16 << 10];
            let read = stream.read(&mut asked).await.unwrap_or_default();
            let question = String::from_utf8_lossy(&asked[..read]).into_owned();
            let (status, body) = answer(question.split(' ').nth(1).unwrap_or_default());
            let head =
                format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
            // Who hangs up has heard enough.
            let _heard = stream.write_all(format!("{head}{body}").as_bytes()).await;
        }
    });
    (address, serving)
}

fn apps() -> String {
    let shop = json!({"instanceId": "1", "ipAddr": "10.0.0.1", "status": "UP", "port": {"$": 8080, "@enabled": "true"}});
    let application = json!([{"name": "SHOP", "instance": [shop]}]);
    json!({"applications": {"apps__hashcode": "UP_1_", "application": application}}).to_string()
}

fn follow(servers: &[SocketAddr]) -> Follower {
    let servers = servers.iter().map(|at| ServerAddress::parse(&format!("http://{at}/eureka")).unwrap());
    let options = EurekaOptions {
        registry: RegistryOptions::new("eureka", "service.eureka"),
        client: ClientOptions { patience: Duration::from_secs(2), ..ClientOptions::new(servers.collect()) },
        every: Duration::from_millis(100),
    };
    Follower::start(Box::new(EurekaSource::open(options).unwrap()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_peers_one_that_is_a_eureka_is_asked() {
    let (page, _page) = serve(|_| (200, "<html>Welcome</html>".to_owned())).await;
    let (wrong, _wrong) = serve(|_| (404, "Not here".to_owned())).await;
    let (eureka, _eureka) = serve(|_| (200, apps())).await;
    let mut follower = follow(&[page, wrong, eureka]);
    follower.until("the service", |mirror| mirror.ready && mirror.objects().count() == 1).await;
    follower.until("that all is well", |mirror| mirror.issues.is_empty()).await;
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_never_knew_how_to_tell_changes_is_asked_for_everything() {
    for status in [404, 405, 501] {
        let (eureka, _eureka) =
            serve(move |path| if path.ends_with("/delta") { (status, String::new()) } else { (200, apps()) })
                .await;
        let mut follower = follow(&[eureka]);
        follower.until("the service", |mirror| mirror.ready && mirror.objects().count() == 1).await;
        let is_warned = |mirror: &pilot_source::contract::Mirror| {
            mirror
                .issues
                .values()
                .flatten()
                .any(|issue| issue.to_string().contains("it refuses to tell what changed"))
        };
        follower.until("that it tells no changes", is_warned).await;
        follower.mirror.reports = 0;
        follower.rest(Duration::from_secs(1)).await;
        assert_eq!(follower.mirror.reports, 0, "{status}: that is told once");
        follower.stop().await;
    }
}
