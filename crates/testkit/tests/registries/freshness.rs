//! A registry that is quiet is told from one that cannot be heard.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use pilot_testkit::http_call;
use pilot_testkit::server::PilotServer;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// How a Eureka without applications behaves.
const GOOD: u8 = 0;
const TELLS_NO_CHANGES: u8 = 1;
const SILENT: u8 = 2;

const NOTHING: &str = r#"{"applications": {"apps__hashcode": "", "application": []}}"#;

async fn answer(mut stream: TcpStream, mood: Arc<AtomicU8>) -> std::io::Result<()> {
    let mut asked = vec![0; 16 << 10];
    loop {
        let read = stream.read(&mut asked).await?;
        let question = String::from_utf8_lossy(&asked[..read]).into_owned();
        let (status, body) = match mood.load(Ordering::Relaxed) {
            _ if read == 0 => return Ok(()),
            SILENT => return std::future::pending().await,
            TELLS_NO_CHANGES if question.contains("/apps/delta") => ("403 No", ""),
            _ => ("200 OK", NOTHING),
        };
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).await?;
    }
}

async fn eureka(mood: &Arc<AtomicU8>) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (mut serving, mood) = (JoinSet::new(), Arc::clone(mood));
    serving.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(answer(stream, Arc::clone(&mood)));
        }
    });
    (address, serving)
}

/// What is shown of one source.
async fn shown(monitoring: SocketAddr, source: &str) -> Value {
    let page = format!("/debug/registry/sources?source={source}");
    let body = http_call::get(monitoring, &page).await.map(|(_, body)| body).unwrap_or_default();
    let list: Vec<Value> = serde_json::from_str(&body).unwrap_or_default();
    assert!(list.len() <= 1, "{body}");
    list.into_iter().next().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_registry_is_told_from_one_that_cannot_be_heard() {
    let scratch = tempfile::tempdir().unwrap();
    let mood = Arc::new(AtomicU8::new(GOOD));
    let (eureka, _serving) = eureka(&mood).await;
    // It takes connections, and that is all.
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let flags = [
        "--registries=Eureka,Marathon".to_owned(),
        format!("--eurekaserverURL=http://{eureka}/eureka"),
        "--eurekaserverInterval=100ms".to_owned(),
        format!("--marathonserverURL=http://{}", nobody.local_addr().unwrap()),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut server = PilotServer::launch_in(scratch.path(), &flags, &[]).unwrap();
    let monitoring = server.monitoring;
    let seconds = |value: &Value, what: &str| value[what].as_u64();
    let is_quiet = || async {
        let eureka = shown(monitoring, "eureka").await;
        let (heard, told) = (seconds(&eureka, "lastHeardSecondsAgo"), seconds(&eureka, "lastToldSecondsAgo"));
        told >= Some(3) && heard.is_some() && heard < told
    };
    server.process.until("Eureka is heard though nothing is new", is_quiet).await.unwrap();
    let marathon = shown(monitoring, "marathon").await;
    assert_eq!(
        (marathon["complete"].as_bool(), &marathon["lastHeardSecondsAgo"]),
        (Some(false), &Value::Null)
    );
    mood.store(TELLS_NO_CHANGES, Ordering::Relaxed);
    let is_warned = || async { shown(monitoring, "eureka").await["warning"].is_string() };
    server.process.until("that it tells no changes", is_warned).await.unwrap();
    assert_eq!(shown(monitoring, "eureka").await["trouble"], Value::Null);
    let (_, metrics) = http_call::get(monitoring, "/metrics").await.unwrap();
    assert!(metrics.contains("pilot_source_up{source=\"eureka\"} 1"), "a warning is no trouble: {metrics}");
    assert!(metrics.contains("pilot_source_up{source=\"marathon\"} 0"), "{metrics}");
    mood.store(SILENT, Ordering::Relaxed);
    let is_lost = || async {
        let eureka = shown(monitoring, "eureka").await;
        seconds(&eureka, "lastHeardSecondsAgo") >= Some(7) && eureka["trouble"].is_string()
    };
    server.process.until("that it is heard no more", is_lost).await.unwrap();
}
