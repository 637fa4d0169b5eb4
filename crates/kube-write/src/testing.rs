//! An API server of a few objects, for tests: it knows GET, POST, PUT and DELETE, and may fall silent.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use pilot_base::{Clock, Millis};
use pilot_source_kube::{Access, Client, Credential, Pace, Trust};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The time that tests can hold.
pub(crate) struct PausedClock(Instant);

impl Default for PausedClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for PausedClock {
    fn now(&self) -> Millis {
        self.0.elapsed().as_millis().try_into().unwrap()
    }
}

pub(crate) struct ApiServer {
    address: SocketAddr,
    silent: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

#[derive(Clone)]
struct Desk {
    objects: Arc<Mutex<BTreeMap<String, Value>>>,
    silent: watch::Receiver<bool>,
}

impl ApiServer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (silent, is_silent) = watch::channel(false);
        let desk = Desk { objects: Arc::default(), silent: is_silent };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let desk = desk.clone();
                connections.spawn(async move {
                    let _ended = desk.serve(stream).await;
                });
            }
        });
        Self { address, silent, _tasks: tasks }
    }

    pub(crate) fn client(&self, clock: &Arc<PausedClock>) -> Client {
        let access = Access {
            server: format!("http://{}", self.address),
            server_name: None,
            trust: Trust::Anybody,
            identity: None,
            credential: Credential::None,
        };
        Client::new(&access, Pace::default(), Arc::clone(clock) as Arc<dyn Clock>).unwrap()
    }

    /// From now on nothing is answered any more.
    pub(crate) fn fall_silent(&self) {
        self.silent.send_replace(true);
    }
}

impl Desk {
    async fn serve(mut self, stream: TcpStream) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            let mut words = line.split(' ').map(str::to_owned);
            let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let mut length = 0;
            loop {
                let mut header = String::new();
                stream.read_line(&mut header).await?;
                if let Some(value) = header.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if header.trim().is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await?;
            // Without anybody who could say it, it is not silent.
            if *self.silent.borrow() {
                let _gone = self.silent.wait_for(|silent| !*silent).await;
            }
            let (status, answer) = self.answer(&method, &path, &body);
            let answer = answer.to_string();
            let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", answer.len());
            stream.write_all(format!("{head}{answer}").as_bytes()).await?;
        }
    }

    fn answer(&self, method: &str, path: &str, body: &[u8]) -> (u16, Value) {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let mut objects = self.objects.lock();
        let found = objects.get(path).cloned();
        match (method, found) {
            ("POST", _) => {
                let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap());
                objects.insert(path, body.clone());
                (201, body)
            }
            (_, None) => (404, json!({"message": "not found"})),
            ("DELETE", Some(object)) => {
                objects.remove(path);
                (200, object)
            }
            ("PUT", Some(_)) => {
                objects.insert(path.to_owned(), body.clone());
                (200, body)
            }
            (_, Some(object)) => (200, object),
        }
    }
}
