//! Clients that do not stop asking, and what they ask.
#![allow(clippy::unwrap_used, clippy::panic, reason = "only tests are here")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longer than any answer takes: a client that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(20);
/// Enough to be in the middle of something at any moment, and little enough for two processors.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Shared {
    over: AtomicBool,
    sent: AtomicU64,
    failures: Mutex<Vec<String>>,
}

pub(crate) struct Load {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<()>>,
}

pub(crate) struct LoadResult {
    pub(crate) sent: u64,
    pub(crate) failures: Vec<String>,
}

impl Load {
    /// Two clients with connections of their own that they keep, and two that open one for each request.
    pub(crate) fn start(port: u16) -> Self {
        let shared = Arc::new(Shared::default());
        let client = |keeps: Keeps| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || ask_on(port, keeps, &shared))
        };
        let clients =
            [Keeps::Connection, Keeps::Nothing, Keeps::Connection, Keeps::Nothing].map(client).into();
        Self { shared, clients }
    }

    pub(crate) fn end(self) -> LoadResult {
        self.shared.over.store(true, Ordering::SeqCst);
        for client in self.clients {
            client.join().unwrap();
        }
        let failures = std::mem::take(&mut *self.shared.failures.lock().unwrap());
        LoadResult { sent: self.shared.sent.load(Ordering::SeqCst), failures }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeps {
    Connection,
    Nothing,
}

fn ask_on(port: u16, keeps: Keeps, shared: &Shared) {
    let mut connection = None;
    while !shared.over.load(Ordering::SeqCst) {
        shared.sent.fetch_add(1, Ordering::SeqCst);
        match ask(&mut connection, port) {
            Ok(Answer::Last) => connection = None,
            Ok(Answer::More) if keeps == Keeps::Connection => (),
            Ok(Answer::More) => connection = None,
            Err(error) => {
                connection = None;
                shared.failures.lock().unwrap().push(error);
            }
        }
        std::thread::sleep(PAUSE);
    }
}

enum Answer {
    /// The server goes on listening on this connection.
    More,
    Last,
}

fn ask(connection: &mut Option<BufReader<TcpStream>>, port: u16) -> Result<Answer, String> {
    let fail = |what: &str| {
        let what = what.to_owned();
        move |error: std::io::Error| format!("{what}: {error}")
    };
    let stream = match connection {
        Some(stream) => stream,
        None => {
            let stream = TcpStream::connect(("127.0.0.1", port)).map_err(fail("connect"))?;
            stream.set_read_timeout(Some(PATIENCE)).map_err(fail("set up"))?;
            connection.insert(BufReader::new(stream))
        }
    };
    stream.get_mut().write_all(b"GET / HTTP/1.1\r\nhost: app\r\n\r\n").map_err(fail("write"))?;
    let (mut length, mut last, mut status) = (0, false, String::new());
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).map_err(fail("read"))? == 0 {
            return Err(format!("the connection was closed after {status:?}"));
        }
        let line = line.trim_end().to_ascii_lowercase();
        if status.is_empty() {
            status = line;
        } else if line.is_empty() {
            break;
        } else if let Some(number) = line.strip_prefix("content-length: ") {
            length = number.parse().unwrap();
        } else if line == "connection: close" {
            last = true;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).map_err(fail("read the body"))?;
    if !status.starts_with("http/1.1 200") {
        return Err(format!("{status}: {}", String::from_utf8_lossy(&body)));
    }
    Ok(if last { Answer::Last } else { Answer::More })
}

/// Answers everything with yes, on connections that are kept.
pub(crate) fn backend() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            std::thread::spawn(move || serve(stream));
        }
    });
    port
}

fn serve(stream: TcpStream) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while matches!(stream.read_line(&mut line), Ok(read) if read > 0) {
        if line == "\r\n"
            && stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nyes").is_err()
        {
            return;
        }
        line.clear();
    }
}
