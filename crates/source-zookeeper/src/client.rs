//! A client of ZooKeeper's protocol: requests in a row on one connection, and what watches tell.

mod sasl;
mod wire;

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use pilot_source::Contact;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use self::sasl::Digest;
use self::wire::{Op, Reader, Reply, Writer};
use crate::source::Login;

/// Why something is not known.
#[derive(thiserror::Error, Debug)]
pub enum ZkError {
    /// The server cannot be reached, or broke off.
    #[error("{0}")]
    Lost(Arc<str>),
    /// There is no such node.
    #[error("no such node")]
    NoNode,
    /// We may not see it.
    #[error("not allowed: are user and password right?")]
    NoAuth,
    /// The server asks for a proof of another kind, or cannot prove itself.
    #[error("the server does not know the password either, or speaks no DIGEST-MD5")]
    NoProof,
    /// It exists already.
    #[error("exists already")]
    NodeExists,
    /// The server does not know the request.
    #[error("the server is older than 3.6 and has no recursive watches")]
    Unknown,
    /// Anything else that the server says.
    #[error("error {0}")]
    Other(i32),
    /// The answer has another form.
    #[error("the answer cannot be read")]
    Form,
}

/// A node that something happened to.
pub(crate) type Touched = String;

/// How a node is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Create {
    Persistent,
    /// It is gone with the session that made it.
    Ephemeral,
    /// Only who made it may see it and change it; the others may be seen and changed by anybody.
    Own,
}

/// A session with a server.
pub struct ZooKeeper {
    requests: mpsc::UnboundedSender<Request>,
    why: Arc<Mutex<Option<Arc<str>>>>,
    _tasks: JoinSet<()>,
}

struct Request {
    frame: Bytes,
    answer: oneshot::Sender<Result<Bytes, ZkError>>,
}

type Pending = Arc<Mutex<VecDeque<oneshot::Sender<Result<Bytes, ZkError>>>>>;

/// The number of the last change that any server of an ensemble was seen to know. Whoever knows less is not to be asked:
/// what it says is older than what was told.
#[derive(Clone, Default)]
pub(crate) struct Newest(Arc<AtomicI64>);

impl Newest {
    pub(crate) fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    fn seen(&self, change: i64) {
        self.0.fetch_max(change, Ordering::Relaxed);
    }

    pub(crate) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Who is told what a session hears.
#[derive(Clone)]
pub(crate) struct Listening {
    pub(crate) touched: mpsc::UnboundedSender<Touched>,
    pub(crate) contact: Contact,
    pub(crate) newest: Newest,
}

/// A server that does not take a connection for so long is not there.
const PATIENCE: Duration = Duration::from_secs(5);
/// ZooKeeper's own limit for a node is a megabyte; lists of very many children are larger.
const MAX_FRAME: usize = 64 << 20;

impl ZooKeeper {
    /// Begins a session. `touched` is told of every node that a watch is told of.
    pub async fn connect(
        server: &str,
        timeout: Duration,
        touched: mpsc::UnboundedSender<String>,
    ) -> Result<Self, ZkError> {
        let (contact, newest) = Default::default();
        Self::listen(server, timeout, Listening { touched, contact, newest }).await
    }

    /// The same, with a server that knows no less than what was seen.
    pub(crate) async fn listen(
        server: &str,
        timeout: Duration,
        listening: Listening,
    ) -> Result<Self, ZkError> {
        let begun = tokio::time::timeout(PATIENCE, begin(server, timeout, listening.newest.get())).await;
        let (stream, timeout) = begun.unwrap_or_else(|_| Err(lost("it does not answer")))?;
        let (read, write) = stream.into_split();
        let (requests, waiting) = mpsc::unbounded_channel();
        let (pending, why) = (Pending::default(), Arc::new(Mutex::new(None)));
        let mut tasks = JoinSet::new();
        let (for_reader, told) = (Arc::clone(&pending), Arc::clone(&why));
        tasks.spawn(async move {
            let reason = receive(read, timeout, &for_reader, listening).await;
            told.lock().get_or_insert(reason);
            // Who waits learns that nothing will come when its sender is gone.
            for_reader.lock().clear();
        });
        tasks.spawn(send(write, timeout, waiting, pending));
        Ok(Self { requests, why, _tasks: tasks })
    }

    /// Does a server that sends us away take whoever has seen nothing? Then it knows less than what was seen.
    pub(crate) async fn knows_less(server: &str, timeout: Duration) -> bool {
        tokio::time::timeout(PATIENCE, begin(server, timeout, 0)).await.is_ok_and(|begun| begun.is_ok())
    }

    /// Says who we are, in ZooKeeper's own scheme.
    pub async fn authenticate(&self, login: &Login) -> Result<(), ZkError> {
        let Login { user, password } = login;
        let body = Writer::default().int(0).text("digest").text(&format!("{user}:{password}"));
        self.ask(Op::Auth, body).await.map(drop)
    }

    /// Proves who we are without saying the password, and has the server do the same.
    pub async fn prove(&self, login: &Login) -> Result<(), ZkError> {
        let challenge = self.sasl(&[]).await?;
        let own_nonce = format!("{:016x}", RandomState::new().hash_one(login.user.len()));
        let digest = Digest::read(login, &challenge, own_nonce).ok_or(ZkError::NoProof)?;
        let answer = self.sasl(digest.response().as_bytes()).await?;
        if digest.is_proved_by(&answer) { Ok(()) } else { Err(ZkError::NoProof) }
    }

    async fn sasl(&self, token: &[u8]) -> Result<Bytes, ZkError> {
        let answer = self.ask(Op::Sasl, Writer::default().bytes(token)).await?;
        Reader::new(answer).bytes().ok_or(ZkError::Form)
    }

    /// From now on everything that happens at a node and below it is told.
    pub async fn watch(&self, path: &str) -> Result<(), ZkError> {
        const RECURSIVE: i32 = 1;
        self.ask(Op::AddWatch, Writer::default().text(path).int(RECURSIVE)).await.map(drop)
    }

    pub async fn children(&self, path: &str) -> Result<Vec<String>, ZkError> {
        self.request_children(path).wait().await
    }

    pub async fn data(&self, path: &str) -> Result<Bytes, ZkError> {
        self.request_data(path).wait().await
    }

    /// Asks now; the answer can be waited for later.
    pub(crate) fn request_children(&self, path: &str) -> Asked<Vec<String>> {
        let answer = self.request(Op::GetChildren, Writer::default().text(path).no());
        Asked { answer, read: |reader| reader.texts() }
    }

    pub(crate) fn request_data(&self, path: &str) -> Asked<Bytes> {
        let answer = self.request(Op::GetData, Writer::default().text(path).no());
        Asked { answer, read: |reader| reader.bytes() }
    }

    /// Makes a node.
    pub async fn create(&self, path: &str, data: &[u8], how: Create) -> Result<(), ZkError> {
        const ALL: i32 = 31;
        let (flags, who, id) = match how {
            Create::Persistent => (0, "world", "anyone"),
            Create::Ephemeral => (1, "world", "anyone"),
            Create::Own => (0, "auth", ""),
        };
        let body = Writer::default().text(path).bytes(data);
        let body = body.int(1).int(ALL).text(who).text(id).int(flags);
        self.ask(Op::Create, body).await.map(drop)
    }

    pub async fn set(&self, path: &str, data: &[u8]) -> Result<(), ZkError> {
        const ANY_VERSION: i32 = -1;
        self.ask(Op::SetData, Writer::default().text(path).bytes(data).int(ANY_VERSION)).await.map(drop)
    }

    /// From now on anybody may see and change a node.
    pub async fn open(&self, path: &str) -> Result<(), ZkError> {
        const ALL: i32 = 31;
        const ANY_VERSION: i32 = -1;
        let body = Writer::default().text(path).int(1).int(ALL).text("world").text("anyone").int(ANY_VERSION);
        self.ask(Op::SetAcl, body).await.map(drop)
    }

    pub async fn delete(&self, path: &str) -> Result<(), ZkError> {
        const ANY_VERSION: i32 = -1;
        self.ask(Op::Delete, Writer::default().text(path).int(ANY_VERSION)).await.map(drop)
    }

    /// Why there is no connection any more.
    pub(crate) fn why_lost(&self) -> ZkError {
        let why = self.why.lock().clone();
        ZkError::Lost(why.unwrap_or_else(|| Arc::from("the connection is over")))
    }

    async fn ask(&self, op: Op, body: Writer) -> Result<Bytes, ZkError> {
        match self.request(op, body).await {
            Ok(answer) => answer,
            Err(_) => Err(self.why_lost()),
        }
    }

    fn request(&self, op: Op, body: Writer) -> oneshot::Receiver<Result<Bytes, ZkError>> {
        let (answer, waiting) = oneshot::channel();
        // Where nobody takes requests any more, nobody answers either, and that is what is learnt.
        let _gone = self.requests.send(Request { frame: body.frame(op), answer });
        waiting
    }
}

/// Something that was asked for.
pub(crate) struct Asked<T> {
    answer: oneshot::Receiver<Result<Bytes, ZkError>>,
    read: fn(&mut Reader) -> Option<T>,
}

impl<T> Asked<T> {
    pub(crate) async fn wait(self) -> Result<T, ZkError> {
        let answer = self.answer.await.unwrap_or_else(|_| Err(lost("the connection broke off")))?;
        (self.read)(&mut Reader::new(answer)).ok_or(ZkError::Form)
    }
}

fn lost(why: &str) -> ZkError {
    ZkError::Lost(Arc::from(why))
}

/// Connects, and agrees with the server upon how long a session lives without a word.
async fn begin(server: &str, timeout: Duration, seen: i64) -> Result<(TcpStream, Duration), ZkError> {
    let io = |error: std::io::Error| ZkError::Lost(Arc::from(error.to_string()));
    let mut stream = TcpStream::connect(server).await.map_err(io)?;
    stream.set_nodelay(true).map_err(io)?;
    let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    stream.write_all(&wire::connect_frame(millis, seen)).await.map_err(io)?;
    let answer = frame(&mut stream).await.map_err(io)?;
    let agreed = wire::agreed_timeout(answer).ok_or(ZkError::Form)?;
    if agreed.is_zero() {
        return Err(lost("the session has expired"));
    }
    Ok((stream, agreed))
}

async fn frame<R: tokio::io::AsyncRead + Unpin>(stream: &mut R) -> std::io::Result<Bytes> {
    let length = usize::try_from(stream.read_i32().await?).unwrap_or(usize::MAX);
    if length > MAX_FRAME {
        return Err(std::io::Error::other("the answer is none of ZooKeeper's"));
    }
    // What a stranger says about the length is believed as far as bytes come.
    let mut bytes = BytesMut::with_capacity(length.min(1 << 20));
    let mut limited = stream.take(length as u64);
    while bytes.len() < length {
        if limited.read_buf(&mut bytes).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(bytes.freeze())
}

/// Takes what comes, until nothing comes any more. The server answers pings, so silence is a loss.
async fn receive(
    mut stream: OwnedReadHalf,
    timeout: Duration,
    pending: &Pending,
    Listening { touched, contact, newest }: Listening,
) -> Arc<str> {
    loop {
        let frame = match tokio::time::timeout(timeout, frame(&mut stream)).await {
            Err(_) => return Arc::from("the server has gone silent"),
            Ok(Err(error)) => return Arc::from(error.to_string()),
            Ok(Ok(frame)) => frame,
        };
        contact.heard();
        let Some((reply, change)) = wire::reply(frame) else {
            return Arc::from("the answer cannot be read");
        };
        newest.seen(change);
        match reply {
            Reply::Ping => {}
            Reply::Event(path) => {
                if touched.send(path).is_err() {
                    return Arc::from("nobody listens");
                }
            }
            Reply::Answer(answer) => {
                let Some(waiting) = pending.lock().pop_front() else {
                    return Arc::from("an answer that nobody asked for");
                };
                // Who has stopped waiting does not mind.
                let _gone = waiting.send(answer);
            }
        }
    }
}

async fn send(
    mut stream: OwnedWriteHalf,
    timeout: Duration,
    mut requests: mpsc::UnboundedReceiver<Request>,
    pending: Pending,
) {
    let every = timeout / 3;
    loop {
        let written = tokio::select! {
            request = requests.recv() => match request {
                None => return,
                Some(Request { frame, answer }) => {
                    pending.lock().push_back(answer);
                    stream.write_all(&frame).await
                }
            },
            () = tokio::time::sleep(every) => stream.write_all(&wire::ping_frame()).await,
        };
        if written.is_err() {
            return;
        }
    }
}
